"""The batch rules of the experts' MLP: a batch is one call, of the tokens and rows of all.

    weights that all share    G groups: of each the rows of the first of the batch, then those of the second
    weights of each           B*G groups: those of the first of the batch, then those of the second

Rows of a group, and of a token, keep their order, and so results their bits; rows of no processed group lie behind all
groups. Matrices are never copied for it: where only some weights are batched, or the gradient of shared ones is wanted
for each of the batch, it is grouped GEMMs. So are tangents, and extents that are symbols or beyond int32.
"""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.interpreters import batching

from raggemm._src import versions
from raggemm._src.mlp_primitive import BackwardCall, TangentCall, backward_p, mlp_p, tangent_p
from raggemm._src.mlp_reference import Args, MlpCall

_LIMIT = np.iinfo(np.int32).max
_ROW_ARGS = ("row_tokens", "row_weights", "row_slots")
_SIZE_ARGS = ("group_sizes", "group_offset")
_NON_WEIGHTS = ("x", *_ROW_ARGS, *_SIZE_ARGS)


def _move_batch_first(x: jax.Array, axis: int | None, size: int) -> jax.Array:
    """[B,...]"""
    return jnp.broadcast_to(x, (size, *x.shape)) if axis is None else jnp.moveaxis(x, axis, 0)


def _stack_groups(x: jax.Array, count: int) -> jax.Array:
    """[B*G,...] of the [B,G,...] of weights, or of the [B,1,...] of factors that all groups share."""
    return lax.collapse(jnp.broadcast_to(x, (len(x), count, *x.shape[2:])), 0, 2)


def _saturating_add(x: jax.Array, number: int) -> jax.Array:
    """x + number, or the largest integer of that type."""
    same_type = x.dtype.type(number)
    return jnp.minimum(x, np.iinfo(x.dtype).max - same_type) + same_type


def _offset_tokens(tokens: jax.Array, count: int) -> jax.Array:
    """[B,M], each below `count`, as numbers of the tokens of all. A wrong one stays wrong, and is none of another."""
    size, dtype = len(tokens), tokens.dtype
    first = (jnp.arange(size, dtype=dtype) * dtype.type(count))[:, None]
    beyond = jnp.where(tokens < 0, tokens, _saturating_add(tokens, (size - 1) * count))
    return jnp.where((tokens >= 0) & (tokens < count), tokens + first, beyond)


@dataclasses.dataclass(frozen=True)
class _MergedBatch:
    """The positions of the groups and rows of a batch in one call."""

    rows: int  # M
    count: int  # G, of the groups that have weights
    shared: bool  # True if the batch shares the weights
    sizes: jax.Array  # [B,all groups]
    offsets: jax.Array | None  # [B]

    def _merge(self, x: jax.Array) -> jax.Array:
        return x.sum(0, dtype=x.dtype) if self.shared else x.reshape(-1)

    def _select_processed(self, x: jax.Array) -> jax.Array:
        """[B,G] of [B,all groups]."""
        if self.offsets is None:
            return x
        groups = self.offsets[:, None] + jnp.arange(self.count, dtype=self.offsets.dtype)
        return jnp.take_along_axis(x, groups, 1, mode="clip")

    def _find_wrong_sizes(self) -> tuple[jax.Array, jax.Array]:
        """Returns whether any size is wrong, and sizes [B,all groups] for the error.

        These are the sizes of the first of the batch with a wrong one, behind all rows of the others, whose sizes could
        make up for them.
        """
        sizes, others = self.sizes, (len(self.sizes) - 1) * self.rows
        ends = jnp.cumsum(sizes, 1, dtype=sizes.dtype)
        wrong = ((sizes < 0) | (ends < sizes) | (ends > self.rows)).any(1)
        is_first = wrong & (jnp.cumsum(wrong) == 1)
        is_behind = (jnp.arange(sizes.shape[1]) == 0) & (sizes >= 0)
        shown = jnp.where(is_behind, _saturating_add(sizes, others), sizes)
        return wrong.any(), jnp.where(is_first[:, None], shown, 0)

    def group_arguments(self) -> Args:
        """group_sizes, and with offsets group_offset. Groups that are processed are the first ones then, and no others
        have rows, unless there is an error to be found."""
        is_wrong, shown = self._find_wrong_sizes()
        of_all = self._merge(jnp.where(is_wrong, shown, self.sizes))
        if self.offsets is None:
            return {"group_sizes": of_all}
        limit = self.sizes.shape[1] - self.count
        wrong = (self.offsets < 0) | (self.offsets > limit)
        value = self.offsets[jnp.argmax(wrong)]
        if not self.shared:
            value = jnp.where(value > limit, _saturating_add(value, (len(self.sizes) - 1) * limit), value)
        sizes = self._merge(self._select_processed(self.sizes))
        sizes = jnp.pad(sizes, (0, len(of_all) - len(sizes)))
        offset = jnp.where(wrong.any(), value, 0).reshape(1)
        return {"group_sizes": jnp.where(is_wrong | wrong.any(), of_all, sizes), "group_offset": offset}

    @functools.cached_property
    def _order(self) -> tuple[jax.Array, jax.Array]:
        """int32 [B*M]: of each row of the call, which of the batch's it is, and any of those behind all groups; of each
        row of the batch, which of the call's it is."""
        sizes, total = self.sizes.astype(jnp.int32), len(self.sizes) * self.rows
        starts = jnp.cumsum(sizes, 1) - sizes + self.rows * jnp.arange(len(sizes), dtype=jnp.int32)[:, None]
        sizes, starts = (self._select_processed(x) for x in (sizes, starts))
        sizes, starts = ((x.T if self.shared else x).reshape(-1) for x in (sizes, starts))
        shifts, inside = starts - jnp.cumsum(sizes) + sizes, sizes.sum()
        shifts = jnp.repeat(jnp.append(shifts, 0), jnp.append(sizes, total - inside), total_repeat_length=total)
        places = jnp.arange(total, dtype=jnp.int32)
        order = places + shifts
        behind = jnp.full(total, total - 1, jnp.int32)
        return order, behind.at[jnp.where(places < inside, order, total)].set(places, mode="drop")

    def merge_rows(self, x: jax.Array) -> jax.Array:
        """[B*M,...] of [B,M,...]."""
        return lax.collapse(x, 0, 2).at[self._order[0]].get(mode="clip")

    def split_batch(self, x: jax.Array, is_of_rows: bool = False) -> jax.Array:
        """[B,n,...] of the call's [B*n,...]."""
        x = x.at[self._order[1]].get(mode="clip") if is_of_rows else x
        return x.reshape(len(self.sizes), x.shape[0] // len(self.sizes), *x.shape[1:])


def _are_shared(args: Args, axes: Args) -> bool | None:
    """Returns True if the batch shares all weights. None if some are batched, but not all matrices."""
    weights = [name for name in args if name not in _NON_WEIGHTS]
    if all(axes[name] is None for name in weights):
        return True
    return None if any(axes[name] is None for name in weights if name.startswith("w_")) else False


def _merge_arguments(args: Args, axes: Args, size: int) -> tuple[_MergedBatch, Args] | None:
    """With its arguments; None where there is none."""
    shared = _are_shared(args, axes)
    tokens, rows = (args[name].shape[axes[name] == 0] for name in ("x", "row_tokens"))
    if shared is None or size * max(tokens, rows) >= _LIMIT:
        return None
    groups = args["w_up"].shape[axes["w_up"] == 0]
    args = {n: x if shared and n not in _NON_WEIGHTS else _move_batch_first(x, axes[n], size) for n, x in args.items()}
    offsets = args["group_offset"][:, 0] if "group_offset" in args else None
    one = _MergedBatch(rows, groups, shared, args["group_sizes"], offsets)
    args["row_tokens"] = _offset_tokens(args["row_tokens"], tokens)
    flat = {name: one.merge_rows(args[name]) for name in _ROW_ARGS if name in args}
    flat["x"] = lax.collapse(args["x"], 0, 2)
    if not shared:
        flat |= {name: _stack_groups(x, groups) for name, x in args.items() if name not in _NON_WEIGHTS}
    return one, args | flat | one.group_arguments()


def _bind_forward(flat: Sequence[Any], axes: Sequence[Any], call: MlpCall, size: int) -> list[jax.Array] | None:
    found = _merge_arguments(call.unflatten(flat), call.unflatten(axes), size)
    if found is None:
        return None
    one, args = found
    out, *saved = mlp_p.bind(*call.flatten(args), call=call)
    return [one.split_batch(out), *(one.split_batch(x, is_of_rows=True) for x in saved)]


def _bind_backward(flat: Sequence[Any], axes: Sequence[Any], call: BackwardCall, size: int) -> list[jax.Array] | None:
    count = len(call.call.names)
    given, axes_of = call.call.unflatten(flat[:count]), call.call.unflatten(axes[:count])
    if _are_shared(given, axes_of) and not {"x", "row_weights"}.issuperset(call.wanted):
        return None
    found = _merge_arguments(given, axes_of, size)
    if found is None:
        return None
    one, args = found
    *saved, ct = (_move_batch_first(x, axis, size) for x, axis in zip(flat[count:], axes[count:], strict=True))
    others = [*map(one.merge_rows, saved), lax.collapse(ct, 0, 2)]
    gradients = backward_p.bind(*call.call.flatten(args), *others, call=call)
    return [one.split_batch(x, name == "row_weights") for name, x in zip(call.wanted, gradients, strict=True)]


def _bind_merged(flat: Sequence[Any], axes: Sequence[Any], call: MlpCall | BackwardCall, size: int) -> Any:
    """The results, with the batch in front; None where that is not one call."""
    if size == 1:
        alone = (x if axis is None else jnp.squeeze(x, axis) for x, axis in zip(flat, axes, strict=True))
        found = mlp_p.bind(*alone, call=call) if isinstance(call, MlpCall) else backward_p.bind(*alone, call=call)
        return [x[None] for x in found]
    return (
        _bind_forward(flat, axes, call, size) if isinstance(call, MlpCall) else _bind_backward(flat, axes, call, size)
    )


def _batch(flat, axes, *, call: MlpCall | TangentCall | BackwardCall):
    flat = [versions.replicate_explicit_axes(x) for x in flat]  # along the axis of a vmap they may still be divided
    size = next(x.shape[axis] for x, axis in zip(flat, axes, strict=True) if axis is not None)
    has_symbols = any(jax.export.is_symbolic_dim(n) for x in flat for n in x.shape)
    out = None
    if not (isinstance(call, TangentCall) or has_symbols or size == 0):
        out = _bind_merged(flat, axes, call, size)
    if out is None:
        out = jax.vmap(jax.checkpoint(call), tuple(axes))(*flat)
    return out, jax.tree.map(lambda _: 0, out)


for _p in (mlp_p, tangent_p, backward_p):
    batching.primitive_batchers[_p] = _batch
