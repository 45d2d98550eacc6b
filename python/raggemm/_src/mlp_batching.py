"""Batching rules of the experts' MLP. They compute B batch elements by one call, if possible.

The call has the tokens and rows of all batch elements, in these groups:

    shared weights     G groups: each has the rows of batch element 0, then of element 1, and so on
    batched weights    B*G groups: those of batch element 0, then of element 1, and so on

Rows of a group and of a token keep their order, so results have the same bits.

In these cases, grouped GEMMs compute the batch instead:

- A weight, scale or bias is batched, but not every matrix. One call would need B copies of the other matrices.
- Each batch element gets its own gradient of shared weights.
- The call is a TangentCall.
- An extent is symbolic, B is 0, or B times the number of tokens or rows is not below the maximum of int32.

If B is 1, the first two cases do not apply.
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
    """Returns x as [B,...]. axis: the batch axis, or None to repeat x. size: B."""
    return jnp.broadcast_to(x, (size, *x.shape)) if axis is None else jnp.moveaxis(x, axis, 0)


def _stack_groups(x: jax.Array, count: int) -> jax.Array:
    """Reshapes weights [B,G,...] to [B*G,...]. First repeats scales [B,1,...] for all groups. count: G."""
    return lax.collapse(jnp.broadcast_to(x, (len(x), count, *x.shape[2:])), 0, 2)


def _saturating_add(x: jax.Array, number: int) -> jax.Array:
    same_type = x.dtype.type(number)
    return jnp.minimum(x, np.iinfo(x.dtype).max - same_type) + same_type


def _offset_tokens(tokens: jax.Array, count: int) -> jax.Array:
    """Converts token indices of each batch element, [B,M], to indices into the tokens of the whole batch.

    count: number of tokens of one batch element. Indices out of range stay out of range.
    """
    size, dtype = len(tokens), tokens.dtype
    first = (jnp.arange(size, dtype=dtype) * dtype.type(count))[:, None]
    beyond = jnp.where(tokens < 0, tokens, _saturating_add(tokens, (size - 1) * count))
    return jnp.where((tokens >= 0) & (tokens < count), tokens + first, beyond)


@dataclasses.dataclass(frozen=True)
class _MergedBatch:
    """The groups and rows of a batch, merged for one call."""

    rows: int  # rows of one batch element, M
    count: int  # groups of one batch element that have weights, G
    shared: bool  # True if batch elements share the weights
    sizes: jax.Array  # group sizes of each batch element, [B,all groups]
    offsets: jax.Array | None  # group_offset of each batch element, [B]; None: not given

    def _merge(self, x: jax.Array) -> jax.Array:
        return x.sum(0, dtype=x.dtype) if self.shared else x.reshape(-1)

    def _select_processed(self, x: jax.Array) -> jax.Array:
        if self.offsets is None:
            return x
        groups = self.offsets[:, None] + jnp.arange(self.count, dtype=self.offsets.dtype)
        return jnp.take_along_axis(x, groups, 1, mode="clip")

    def _find_wrong_sizes(self) -> tuple[jax.Array, jax.Array]:
        """Returns (True if any group size is wrong, sizes [B,all groups] with which the merged call reports the error).

        Only the first batch element with a wrong size keeps its sizes. All other sizes are 0, because they could hide
        the error. The first size of this element, unless negative, grows by the rows of all other elements: the merged
        call also has these rows.
        """
        sizes, others = self.sizes, (len(self.sizes) - 1) * self.rows
        ends = jnp.cumsum(sizes, 1, dtype=sizes.dtype)
        wrong = ((sizes < 0) | (ends < sizes) | (ends > self.rows)).any(1)
        is_first = wrong & (jnp.cumsum(wrong) == 1)
        is_behind = (jnp.arange(sizes.shape[1]) == 0) & (sizes >= 0)
        shown = jnp.where(is_behind, _saturating_add(sizes, others), sizes)
        return wrong.any(), jnp.where(is_first[:, None], shown, 0)

    def group_arguments(self) -> Args:
        """Returns the arguments of the merged call: group_sizes and, if the batch has offsets, group_offset.

        With offsets, group_sizes begins with the sizes of the processed groups. The rest is 0. If a size or offset is
        wrong, the call reports the error.
        """
        is_wrong, shown = self._find_wrong_sizes()
        all_sizes = self._merge(jnp.where(is_wrong, shown, self.sizes))
        if self.offsets is None:
            return {"group_sizes": all_sizes}
        limit = self.sizes.shape[1] - self.count
        wrong = (self.offsets < 0) | (self.offsets > limit)
        value = self.offsets[jnp.argmax(wrong)]
        if not self.shared:
            value = jnp.where(value > limit, _saturating_add(value, (len(self.sizes) - 1) * limit), value)
        sizes = self._merge(self._select_processed(self.sizes))
        sizes = jnp.pad(sizes, (0, len(all_sizes) - len(sizes)))
        offset = jnp.where(wrong.any(), value, 0).reshape(1)
        return {"group_sizes": jnp.where(is_wrong | wrong.any(), all_sizes, sizes), "group_offset": offset}

    @functools.cached_property
    def _order(self) -> tuple[jax.Array, jax.Array]:
        """Returns two int32 arrays [B*M] that map rows between the batch and the merged call.

        The first array has, for each row of the merged call, its index in the batch, flattened from [B,M]. The second
        array is the inverse. For rows of no processed group, the first array has any index. The second array has B*M-1,
        a row in no group.
        """
        sizes, total = self.sizes.astype(jnp.int32), len(self.sizes) * self.rows
        starts = jnp.cumsum(sizes, 1) - sizes + self.rows * jnp.arange(len(sizes), dtype=jnp.int32)[:, None]
        sizes, starts = (self._select_processed(x) for x in (sizes, starts))
        sizes, starts = ((x.T if self.shared else x).reshape(-1) for x in (sizes, starts))
        shifts, inside = starts - jnp.cumsum(sizes) + sizes, sizes.sum()
        shifts = jnp.repeat(jnp.append(shifts, 0), jnp.append(sizes, total - inside), total_repeat_length=total)
        positions = jnp.arange(total, dtype=jnp.int32)
        order = positions + shifts
        behind = jnp.full(total, total - 1, jnp.int32)
        return order, behind.at[jnp.where(positions < inside, order, total)].set(positions, mode="drop")

    def merge_rows(self, x: jax.Array) -> jax.Array:
        return lax.collapse(x, 0, 2).at[self._order[0]].get(mode="clip")

    def split_batch(self, x: jax.Array, is_rows: bool = False) -> jax.Array:
        """Splits a result [B*n,...] of the merged call to [B,n,...].

        is_rows: True for a result with one entry per row. The entries are put in the order of the batch.
        """
        x = x.at[self._order[1]].get(mode="clip") if is_rows else x
        return x.reshape(len(self.sizes), x.shape[0] // len(self.sizes), *x.shape[1:])


def _shares_weights(args: Args, axes: Args) -> bool | None:
    """Returns True if no weight, scale or bias is batched, False if all matrices are batched, and None otherwise."""
    weights = [name for name in args if name not in _NON_WEIGHTS]
    if all(axes[name] is None for name in weights):
        return True
    return None if any(axes[name] is None for name in weights if name.startswith("w_")) else False


def _merge_arguments(args: Args, axes: Args, size: int) -> tuple[_MergedBatch, Args] | None:
    shared = _shares_weights(args, axes)
    tokens, rows = (args[name].shape[axes[name] == 0] for name in ("x", "row_tokens"))
    if shared is None or size * max(tokens, rows) >= _LIMIT:
        return None
    groups = args["w_up"].shape[axes["w_up"] == 0]
    args = {n: x if shared and n not in _NON_WEIGHTS else _move_batch_first(x, axes[n], size) for n, x in args.items()}
    offsets = args["group_offset"][:, 0] if "group_offset" in args else None
    merged = _MergedBatch(rows, groups, shared, args["group_sizes"], offsets)
    args["row_tokens"] = _offset_tokens(args["row_tokens"], tokens)
    flat = {name: merged.merge_rows(args[name]) for name in _ROW_ARGS if name in args}
    flat["x"] = lax.collapse(args["x"], 0, 2)
    if not shared:
        flat |= {name: _stack_groups(x, groups) for name, x in args.items() if name not in _NON_WEIGHTS}
    return merged, args | flat | merged.group_arguments()


def _bind_forward(flat: Sequence[Any], axes: Sequence[Any], call: MlpCall, size: int) -> list[jax.Array] | None:
    found = _merge_arguments(call.unflatten(flat), call.unflatten(axes), size)
    if found is None:
        return None
    merged, args = found
    out, *saved = mlp_p.bind(*call.flatten(args), call=call)
    return [merged.split_batch(out), *(merged.split_batch(x, is_rows=True) for x in saved)]


def _bind_backward(flat: Sequence[Any], axes: Sequence[Any], call: BackwardCall, size: int) -> list[jax.Array] | None:
    count = len(call.call.names)
    given, given_axes = call.call.unflatten(flat[:count]), call.call.unflatten(axes[:count])
    if _shares_weights(given, given_axes) and not {"x", "row_weights"}.issuperset(call.wanted):
        return None
    found = _merge_arguments(given, given_axes, size)
    if found is None:
        return None
    merged, args = found
    *saved, ct = (_move_batch_first(x, axis, size) for x, axis in zip(flat[count:], axes[count:], strict=True))
    others = [*map(merged.merge_rows, saved), lax.collapse(ct, 0, 2)]
    gradients = backward_p.bind(*call.call.flatten(args), *others, call=call)
    return [merged.split_batch(x, name == "row_weights") for name, x in zip(call.wanted, gradients, strict=True)]


def _bind_merged(flat: Sequence[Any], axes: Sequence[Any], call: MlpCall | BackwardCall, size: int) -> Any:
    """Computes the batch by one call. Returns results with the batch axis first, or None if this is not possible."""
    if size == 1:
        single = (x if axis is None else jnp.squeeze(x, axis) for x, axis in zip(flat, axes, strict=True))
        found = mlp_p.bind(*single, call=call) if isinstance(call, MlpCall) else backward_p.bind(*single, call=call)
        return [x[None] for x in found]
    return (
        _bind_forward(flat, axes, call, size) if isinstance(call, MlpCall) else _bind_backward(flat, axes, call, size)
    )


def _batch(flat, axes, *, call: MlpCall | TangentCall | BackwardCall):
    # JAX cannot always merge the batch axis with the next one if an explicit mesh axis divides it.
    flat = [versions.replicate_explicit_axes(x) for x in flat]
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
