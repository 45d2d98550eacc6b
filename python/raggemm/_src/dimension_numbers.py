"""Computes jax.lax's ragged_dot_general as one call of grouped_gemm.

Converts the dimension numbers and the operands to the canonical form of call.py.
"""

import functools
import math
import operator
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from raggemm._src import versions
from raggemm._src.call import Arguments, Call, Storage
from raggemm._src.dtypes import INTEGERS, SUB_BYTE
from raggemm._src.primitive import bind

# Axes of the caller's lhs or rhs in four lists. They merge to problems, to replicas or groups, to rows and to columns.
MergedAxes = tuple[Sequence[int], Sequence[int], Sequence[int], Sequence[int]]


def _canonicalize_blocks(values: jax.Array, shape: tuple[int, ...], parts: MergedAxes, ragged: int | None) -> jax.Array:
    """Converts per-block scales or zero points to the canonical shape of OptionalOperand in call.py.

    The custom call requires blocks of one size along each canonical axis. So `values` get one value per index along
    these axes of data:

    - axes that merge to problems, or to the replicas of an operand that groups divide
    - axes that merge to groups, if one of them has several blocks
    - axes that merge to rows or columns, before the last one with several blocks
    - the ragged axis, if it has several blocks, or if it is the rows of several matrices

    shape: shape of data. parts: axes of data that merge to each canonical axis. ragged: axis of data that groups
    divide, or None.
    """
    x = values.transpose([axis for part in parts for axis in part])
    extents = [shape[axis] for part in parts for axis in part]
    stacked = math.prod(shape[axis] for part in parts[:2] for axis in part) > 1
    merged, at = [], 0
    for index, part in enumerate(parts):
        axes = range(at, at + len(part))
        at = axes.stop
        divided = max((axis for axis in axes if x.shape[axis] != 1), default=-1)
        if index == 0 or (index == 1 and ragged is not None):
            whole = at
        elif index == 1 or ragged in part:
            whole = at if divided != -1 or (index == 2 and stacked) else 0
        else:
            whole = divided
        for axis in axes:
            if axis < whole and x.shape[axis] != extents[axis]:
                x = jnp.repeat(x, extents[axis] // x.shape[axis], axis)
        merged.append(math.prod(x.shape[axis] for axis in axes))
    return x.reshape(merged)


def canonicalize_quant_params(
    quant_params: dict[str, jax.Array],
    side: str,
    x: jax.Array,
    parts: MergedAxes,
    groups: int,
    ragged: int | None = None,
) -> dict[str, jax.Array]:
    """Returns the scale and zero point of lhs or rhs, by operand name, in canonical shape.

    side: "lhs" or "rhs". quant_params: scales and zero points of lhs and rhs, in the caller's shapes. x: the caller's
    elements. parts, ragged: see _canonicalize_blocks.
    """
    canonical = {}
    for name, values in quant_params.items():
        if not name.startswith(side):
            continue
        if values.ndim == 1 and x.ndim > 2:
            values = values.reshape(-1, *[1] * (x.ndim - 1))
        if values.ndim == x.ndim:
            canonical[name] = _canonicalize_blocks(values, x.shape, parts, ragged)
            continue
        if values.ndim and values.shape != (groups,):
            field = name.replace("_zero", ".zero_point").replace("_scale", ".scale")
            raise ValueError(f"{field}: shape is {values.shape}, must be ({groups},), one for each processed group")
        canonical[name] = jnp.broadcast_to(values, (math.prod(x.shape[axis] for axis in parts[0]), 1, groups))
    return canonical


RAGGED_DOT_NUMBERS = lax.RaggedDotDimensionNumbers(
    dot_dimension_numbers=(((1,), (1,)), ((), ())), lhs_ragged_dimensions=[0], rhs_group_dimensions=[0]
)

_NARROW = ("int8", "int16", "uint8", "uint16")
SIZES_DTYPES = (*_NARROW, *map(str, INTEGERS))  # dtypes of group_sizes that widen_sizes accepts
_DIMS_NAMES = ("group_sizes",)


def widen_sizes(group_sizes: Any) -> Any:
    return group_sizes.astype(np.int32) if group_sizes.dtype.name in _NARROW else group_sizes


def _widen_to_bytes(x: jax.Array, out: np.dtype) -> jax.Array:
    """Widens integers narrower than a byte to int8 or uint8. The custom call requires this for int32 results."""
    return x.astype(SUB_BYTE[x.dtype][1]) if out == np.int32 and x.dtype in SUB_BYTE else x


def _is_identity(axes: Sequence[int]) -> bool:
    return list(axes) == list(range(len(axes)))


def _arrange(x: jax.Array, lead: Sequence[int], rows: Sequence[int], cols: Sequence[int]) -> tuple[jax.Array, bool]:
    """Transposes x to [lead..., rows..., cols...]. Returns the result and False.

    If the axes of x already have the order [lead..., cols..., rows...], returns x unchanged and True.
    """
    swapped = [*lead, *cols, *rows]
    if _is_identity(swapped) and not _is_identity([*lead, *rows, *cols]):
        return x, True
    return x.transpose([*lead, *rows, *cols]), False


def _extents(x: Any, axes: Sequence[int]) -> tuple[int, ...]:
    return tuple(x.shape[axis] for axis in axes)


class Result(NamedTuple):
    dtype: np.dtype
    precision: str


class _Axes:
    """The axes of lhs and rhs by role.

    `left` and `right` are the contracted axes of lhs and of rhs. Their order is that of rhs, so that weights are not
    transposed. If the ragged axis is contracted, the dimension numbers give the order.
    """

    def __init__(self, numbers: lax.RaggedDotDimensionNumbers, lhs_rank: int, rhs_rank: int):
        (left, right), (self.lhs_batch, self.rhs_batch) = numbers.dot_dimension_numbers
        (self.ragged,) = numbers.lhs_ragged_dimensions
        self.group = tuple(numbers.rhs_group_dimensions)
        self.is_contracting, self.is_batch = self.ragged in left, self.ragged in self.lhs_batch
        if not self.is_contracting:
            pairs = sorted(zip(left, right, strict=True), key=operator.itemgetter(1))
            left, right = tuple(a for a, _ in pairs), tuple(b for _, b in pairs)
        self.left, self.right = left, right
        self.lhs_free = [a for a in range(lhs_rank) if a not in (*left, *self.lhs_batch)]
        self.rhs_free = [a for a in range(rhs_rank) if a not in (*right, *self.rhs_batch, *self.group)]

    @property
    def ragged_side(self) -> Sequence[int]:
        return self.left if self.is_contracting else self.lhs_free


def _arrange_ragged(x, lead, free, ragged, trans_if_first):
    """Transposes x like _arrange, to [lead, ragged, free] or [lead, free, ragged]. Also returns the Storage.

    ragged: the axis of x that groups divide. trans_if_first: Storage.trans for [lead, ragged, free]. The other order
    gets the opposite.
    """
    matrix, last = _arrange(x, lead, [ragged], free)
    return matrix, Storage(last=0, trans=not trans_if_first) if last else Storage(first=0, trans=trans_if_first)


def _matrix_parts(storage: Storage, free: Sequence[int], ragged: int) -> tuple[Sequence[int], Sequence[int]]:
    """Returns (axes that merge to rows, axes that merge to columns) for a result of _arrange_ragged."""
    return ((ragged,), free) if storage.last is None else (free, (ragged,))


def _canonicalize_sizes(group_sizes: jax.Array, lhs: jax.Array, axes: _Axes) -> jax.Array:
    """Converts group_sizes to a dims array [P,R,G].

    group_sizes: [G], or [batch..., outer..., G] as in jax.lax. The outer axes are the free axes of lhs before the
    ragged axis. Sizes are repeated along free axes after the ragged axis. If the ragged axis is contracted, all of this
    holds for contracted axes instead of free axes.
    """
    side = axes.ragged_side
    position = side.index(axes.ragged)
    batch, outer, inner = (_extents(lhs, part) for part in (axes.lhs_batch, side[:position], side[position + 1 :]))
    groups = group_sizes.shape[-1]
    if group_sizes.ndim > 1:
        group_sizes = group_sizes.reshape(*batch, *outer, *[1] * len(inner), groups)
    sizes = jnp.broadcast_to(group_sizes, (*batch, *outer, *inner, groups))
    return sizes.reshape(math.prod(batch), math.prod((*outer, *inner)), groups)


def _bind_noncontracting(lhs, rhs, group_sizes, optional, quant_params, axes: _Axes, result: Result):
    """Computes [b...,m...,k...] x [g,b...,k...,n...] -> [b...,m...,n...].

    One of the axes m... is ragged, and the others are replicas.
    """
    rest = [a for a in axes.lhs_free if a != axes.ragged]
    batch, free = _extents(lhs, axes.lhs_batch), _extents(rhs, axes.rhs_free)
    k, n = math.prod(_extents(lhs, axes.left)), math.prod(free)
    left, storage = _arrange_ragged(lhs, [*axes.lhs_batch, *rest], axes.left, axes.ragged, trans_if_first=False)
    right, rhs_trans = _arrange(rhs, [*axes.rhs_batch, *axes.group], axes.right, axes.rhs_free)
    p, r, m = math.prod(batch), math.prod(_extents(lhs, rest)), lhs.shape[axes.ragged]
    groups = rhs.shape[axes.group[0]]
    left = left.reshape(p, r, *((k, m) if storage.trans else (m, k)))
    right = right.reshape(p, groups, *((n, k) if rhs_trans else (k, n)))
    call = Call(storage, Storage(trans=rhs_trans), Storage(first=0), *result, dims_names=_DIMS_NAMES)
    matrix = (axes.rhs_free, axes.right) if rhs_trans else (axes.right, axes.rhs_free)
    lhs_parts = (axes.lhs_batch, rest, *_matrix_parts(storage, axes.left, axes.ragged))
    optional |= canonicalize_quant_params(quant_params, "lhs", lhs, lhs_parts, groups, axes.ragged)
    optional |= canonicalize_quant_params(quant_params, "rhs", rhs, (axes.rhs_batch, axes.group, *matrix), groups)
    out = bind(call, Arguments(left, right, (_canonicalize_sizes(group_sizes, lhs, axes),), optional))
    out = out.reshape(*batch, *_extents(lhs, rest), m, *free)
    ragged_now = len(batch) + len(rest)
    return jnp.moveaxis(out, ragged_now, len(batch) + axes.lhs_free.index(axes.ragged))


def _bind_contracting(lhs, rhs, group_sizes, optional, quant_params, axes: _Axes, result: Result):
    """Computes [b...,m...,k...] x [b...,k...,n...] -> [g,b...,m...,n...].

    One of the axes k... is ragged. The others are replicas, which ragged K sums over.
    """
    index = axes.left.index(axes.ragged)
    left_rest, right_rest = ([a for i, a in enumerate(side) if i != index] for side in (axes.left, axes.right))
    batch, m, n = _extents(lhs, axes.lhs_batch), _extents(lhs, axes.lhs_free), _extents(rhs, axes.rhs_free)
    left, lhs_storage = _arrange_ragged(lhs, [*axes.lhs_batch, *left_rest], axes.lhs_free, axes.ragged, True)
    right, rhs_storage = _arrange_ragged(rhs, [*axes.rhs_batch, *right_rest], axes.rhs_free, axes.right[index], False)
    p, r, k = math.prod(batch), math.prod(_extents(lhs, left_rest)), lhs.shape[axes.ragged]

    def canonical(x, storage, free):
        return x.reshape(p, r, *((math.prod(free), k) if storage.last is not None else (k, math.prod(free))))

    groups = group_sizes.shape[-1]
    call = Call(lhs_storage, rhs_storage, Storage(), *result, out_extent=groups, dims_names=_DIMS_NAMES)
    operands = canonical(left, lhs_storage, m), canonical(right, rhs_storage, n)
    lhs_parts = (axes.lhs_batch, left_rest, *_matrix_parts(lhs_storage, axes.lhs_free, axes.ragged))
    rhs_parts = (axes.rhs_batch, right_rest, *_matrix_parts(rhs_storage, axes.rhs_free, axes.right[index]))
    optional |= canonicalize_quant_params(quant_params, "lhs", lhs, lhs_parts, groups, axes.ragged)
    optional |= canonicalize_quant_params(quant_params, "rhs", rhs, rhs_parts, groups, axes.right[index])
    out = bind(call, Arguments(*operands, (_canonicalize_sizes(group_sizes, lhs, axes),), optional))
    return jnp.moveaxis(out.reshape(*batch, groups, *m, *n), len(batch), 0)


def _bind_batched(lhs, rhs, quant_params, axes: _Axes, result: Result):
    """Computes [b...,m...,k...] x [b...,k...,n...] -> [b...,m...,n...].

    One of the axes b... is ragged. Its group sizes have no effect, as in jax.lax on CPU.
    """
    batch, m, n = _extents(lhs, axes.lhs_batch), _extents(lhs, axes.lhs_free), _extents(rhs, axes.rhs_free)
    k, groups = math.prod(_extents(lhs, axes.left)), math.prod(batch)
    left, lhs_trans = _arrange(lhs, axes.lhs_batch, axes.lhs_free, axes.left)
    right, rhs_trans = _arrange(rhs, axes.rhs_batch, axes.right, axes.rhs_free)
    left = left.reshape(1, groups, *((k, math.prod(m)) if lhs_trans else (math.prod(m), k)))
    right = right.reshape(1, groups, *((math.prod(n), k) if rhs_trans else (k, math.prod(n))))
    call = Call(Storage(trans=lhs_trans), Storage(trans=rhs_trans), Storage(), *result)
    lhs_parts = ((), axes.lhs_batch, *((axes.left, axes.lhs_free) if lhs_trans else (axes.lhs_free, axes.left)))
    rhs_parts = ((), axes.rhs_batch, *((axes.rhs_free, axes.right) if rhs_trans else (axes.right, axes.rhs_free)))
    optional = canonicalize_quant_params(quant_params, "lhs", lhs, lhs_parts, groups)
    optional |= canonicalize_quant_params(quant_params, "rhs", rhs, rhs_parts, groups)
    return bind(call, Arguments(left, right, (), optional)).reshape(*batch, *m, *n)


@functools.partial(jax.jit, static_argnames=("numbers", "result"), inline=versions.INLINE)
def ragged_dot_general(
    lhs: jax.Array,
    rhs: jax.Array,
    group_sizes: jax.Array,
    group_offset: jax.Array | None = None,
    quant_params: dict[str, jax.Array] | None = None,
    *,
    numbers: lax.RaggedDotDimensionNumbers,
    result: Result,
) -> jax.Array:
    """Computes ragged_dot_general of checked operands.

    group_sizes: int32, int64 or uint32. group_offset: one element of these types, or None. It must be None if a batch
    axis is ragged. quant_params: scales and zero points by the names of the custom call, such as "lhs_scale".
    """
    lhs, rhs = (_widen_to_bytes(versions.replicate_explicit_axes(x), result.dtype) for x in (lhs, rhs))
    group_sizes = versions.replicate_explicit_axes(group_sizes)
    quant_params = {name: versions.replicate_explicit_axes(x) for name, x in (quant_params or {}).items()}
    axes = _Axes(numbers, lhs.ndim, rhs.ndim)
    if axes.is_batch:
        return _bind_batched(lhs, rhs, quant_params, axes, result)
    optional: dict[str, jax.Array] = {}
    if group_offset is not None:
        problems = math.prod(_extents(lhs, axes.lhs_batch))
        optional["group_offset"] = jnp.broadcast_to(group_offset, (problems, 1))
    form = _bind_contracting if axes.is_contracting else _bind_noncontracting
    return form(lhs, rhs, group_sizes, optional, quant_params, axes, result)
