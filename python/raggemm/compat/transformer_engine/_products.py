"""From tensors with scales to products: what scales go into a call as they are, and what is dequantized before it."""

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from raggemm._src import checks
from raggemm._src.arguments import default_precision
from raggemm._src.call import PACKED
from raggemm._src.grouped_gemm import compute_product
from raggemm._src.operands import ArgNames, parse_operands
from raggemm._src.quantization import E5M2, compute_scale, multiply_by_scale
from raggemm._src.tensors import GroupedTensor, QuantizedTensor
from raggemm.compat.transformer_engine._ragged import (
    Rows,
    block_of_rows,
    blocks_of,
    ceiling,
    filled,
    most_blocks,
    unpacked,
)
from raggemm.compat.transformer_engine._tensors import F32, Layout, Scaled, dims_of, scaled

Axes = tuple[Sequence[int], Sequence[int]]


def operand(name: str, x: Any) -> Any:
    """A Scaled, or what raggemm.grouped_gemm takes, from an array or anything that has the attributes of a tensor."""
    if isinstance(x, GroupedTensor | Scaled | jax.Array | np.ndarray):
        return x
    if hasattr(x, "scale_inv"):
        return scaled(name, x)
    missing = [a for a in ("data", "first_dims", "last_dims", "original_shape") if not hasattr(x, a)]
    if missing:
        raise TypeError(f"{name}: {type(x).__name__} is no array and has no attribute {', '.join(missing)}")
    data, shape = jnp.asarray(x.data), tuple(x.original_shape)
    if data.size != np.prod(shape, dtype=np.int64):
        raise ValueError(f"{name}: data has shape {data.shape}, which does not hold original_shape {shape}")
    return _tensor(data.reshape(shape), *dims_of(name, x))


def _tensor(data: Any, axis: int | None, sizes: jax.Array | None) -> GroupedTensor:
    if axis == 1:
        return GroupedTensor(data, last_dims=sizes, layout=PACKED)
    return GroupedTensor(data, first_dims=sizes)


def _is_divided(x: Any) -> bool:
    if isinstance(x, Scaled):
        return x.sizes is not None
    return isinstance(x, GroupedTensor) and not (x.first_dims is None and x.last_dims is None)


def amax_factor(amax: jax.Array) -> jax.Array:
    """Returns the factor of all elements of a group of NVFP4."""
    return compute_scale(jnp.where(jnp.isfinite(amax), amax, 0), 6 * 448, F32)


def _factor(x: Any) -> jax.Array | None:
    """Returns the factor of the sums of each group, (G,), or of all, ()."""
    if not isinstance(x, Scaled):
        return None
    factor = x.scale if x.block is None else None
    if x.mode.has_amax_factor and x.amax is not None:
        factor = amax_factor(x.amax)
    is_one = x.layout.ragged is None and not x.layout.lead
    return factor.reshape(()) if factor is not None and is_one else factor


def _takes_blocks(layout: Layout, block: tuple[int, int]) -> bool:
    """Returns True if the call takes these blocks: they divide the matrices, and begin where the groups do."""
    if layout.ragged == 1 or (layout.ragged == 0 and block[0] > 1) or len(layout.shape) != layout.lead + 2:
        return False
    return all(extent % size == 0 for extent, size in zip(layout.matrix, block, strict=True))


@jax.jit
def _dequantized(x: Scaled) -> jax.Array:
    """The elements times the scales of their blocks in bfloat16, [G,rows,columns], or [rows,columns] where groups
    divide an axis, which are the rows then: those that divide the columns are transposed."""
    layout, block, data, scale = x.layout, x.block, x.data, x.scale
    assert block is not None and scale is not None
    rows, columns = layout.matrix
    if x.sizes is None:
        data = data.reshape(layout.groups, rows, columns)
        scale = jnp.repeat(scale.reshape(layout.scales(block)), block[0], 1)[:, :rows]
    else:
        if layout.ragged == 1:
            counts = most_blocks(columns, layout.groups, block[1]), ceiling(rows, block[0])
            scale = unpacked(scale, blocks_of(x.sizes, block[1]), counts)
            data, block = unpacked(data, x.sizes, (columns, rows)), block[::-1]
            columns = rows
        else:
            data, scale = data.reshape(rows, columns), scale.reshape(layout.scales(block))
        scale = filled(scale, block_of_rows(Rows.of(x.sizes, data.shape[0]), x.sizes, block[0]))
    scale = jnp.repeat(scale, block[1], -1)[..., :columns]
    return multiply_by_scale(data.astype(jnp.float32), scale).astype(jnp.bfloat16)


def _array(x: Any, takes_factors: bool) -> tuple[Any, Callable[[int], int]]:
    """Returns an operand of raggemm.grouped_gemm without factors of whole groups, and a map of x's axes to its axes."""
    if not isinstance(x, Scaled):
        return x, lambda axis: axis
    layout, block = x.layout, x.block
    if block is not None and not (takes_factors and _takes_blocks(layout, block)):
        layout = layout.turned() if layout.ragged == 1 else layout
        data = _dequantized(x).reshape(layout.shape)
    elif x.scale is None:
        data = x.data.reshape(layout.shape)
    else:
        scale = None if block is None else x.scale.reshape(layout.scales(block))
        data = QuantizedTensor(x.data.reshape(layout.shape), scale)
    return _tensor(data, layout.ragged, x.sizes), layout.stored


def axes_of(contracting_dims: Any) -> tuple[tuple[int, ...], ...]:
    """Returns the axes of lhs and of rhs, or nothing for wrong ones, which raggemm.grouped_gemm refuses."""
    try:
        axes = tuple(map(tuple, contracting_dims))
    except TypeError:
        return ()
    is_pair = len(axes) == 2 and all(hasattr(axis, "__index__") for axis in itertools.chain(*axes))
    return axes if is_pair else ()


def _alpha(factors: list[jax.Array], groups: int | None, offset: Any) -> jax.Array | None:
    """Their product for each of the processed groups, of which there are so many, or all."""

    def processed(factor: jax.Array) -> jax.Array:
        if groups is None or offset is None or factor.ndim == 0 or factor.shape[0] <= groups:
            return factor
        return jax.lax.dynamic_slice_in_dim(
            factor, checks.as_integer_array("group_offset", offset).reshape(-1)[0], groups
        )

    return functools.reduce(jnp.multiply, map(processed, factors)) if factors else None


def multiplied(
    words: ArgNames, lhs: Any, rhs: Any, contracting_dims: Axes, *, precision: Any, dtype: Any, **options: Any
) -> jax.Array:
    """The product of operands, with the options of raggemm.grouped_gemm; dtype: preferred_element_type."""
    is_ragged_n = _is_divided(rhs) and not _is_divided(lhs)
    (left, at_left), (right, at_right) = (_array(x, not is_ragged_n) for x in (lhs, rhs))
    if all(isinstance(x, Scaled) and x.data.dtype == E5M2 for x in (lhs, rhs)):
        raise ValueError(f"{words.lhs}, {words.rhs}: dtype is float8_e5m2 of both, one must be float8_e4m3fn")
    factors = [factor for x in (lhs, rhs) if (factor := _factor(x)) is not None]
    default = lhs.dtype if isinstance(lhs, Scaled) else None
    stored = tuple(
        tuple(map(at, axes)) for at, axes in zip((at_left, at_right), axes_of(contracting_dims), strict=False)
    )
    lhs, rhs = parse_operands(words, left, right, stored or contracting_dims)
    default = lhs.data.dtype if default is None else default
    groups = rhs.data.shape[0] if lhs.dims and not rhs.dims else options.get("num_actual_groups")
    options["alpha"] = _alpha(factors, groups, options.get("group_offset"))
    options["preferred_element_type"] = default if dtype is None else dtype
    return compute_product(words, lhs, rhs, precision=default_precision(precision), **options)
