"""The batching rule of grouped_gemm: every vmap is one call. The batch axis merges with one canonical axis:

    call                                                               canonical axis
    ragged M or uniform, rhs and its scales shared by the batch        replicas; uniform becomes ragged M
    ragged N, one lhs per group, shared by the batch                   replicas; becomes ragged M of the transpose
    ragged N, one lhs for all groups, out not PACKED,                  rows of lhs
      no batched operands except lhs, c and gate
    all other calls                                                    problems

Per-group weights that the batch shares are not copied, unless their scales are batched.
"""

import jax
import jax.numpy as jnp
from jax.interpreters import batching

from raggemm._src import versions
from raggemm._src.call import PACKED, Arguments, Call, Mode, OperandRole
from raggemm._src.primitive import bind, bind_ragged_n_as_m, bind_uniform_as_ragged_m, grouped_gemm_p


def _merge_batch(x, axis: int | None, size: int, into: int, extent=None):
    """Merges the batch axis of x with another axis.

    axis: the batch axis, or None to repeat x. size: the batch size. into: the other axis, not counting the batch axis.
    extent: extent to which the other axis is broadcast first.
    """
    x = jnp.expand_dims(x, into) if axis is None else jnp.moveaxis(x, axis, into)
    before, after = x.shape[:into], x.shape[into + 2 :]
    extent = x.shape[into + 1] if extent is None else extent
    return jnp.broadcast_to(x, (*before, size, extent, *after)).reshape(*before, size * extent, *after)


def _unbatched_aval(x, axis: int | None) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(x.shape if axis is None else (*x.shape[:axis], *x.shape[axis + 1 :]), x.dtype)


def _bind_into_problems(call: Call, args: Arguments, axes: Arguments, size: int) -> jax.Array:
    return bind(
        call,
        call.unflatten(
            [_merge_batch(x, axis, size, 0) for x, axis in zip(args.flatten(), axes.flatten(), strict=True)]
        ),
    )


def _bind_into_replicas(call: Call, args: Arguments, axes: Arguments, size: int) -> jax.Array:
    def merge(x, axis):
        return _merge_batch(x, axis, size, 1, extent=_unbatched_aval(args.lhs, axes.lhs).shape[1])

    optional = {}
    for operand in args.given:
        x, axis = args.optional[operand.name], axes.optional[operand.name]
        is_common = operand.side == "rhs" if operand.is_per_block(x) else x.shape[1] == 1 and operand.axes
        for_all_replicas = axis is None and is_common
        optional[operand.name] = x if for_all_replicas else merge(x, axis)
    dims = tuple(map(merge, args.dims, axes.dims))
    return bind(call, Arguments(merge(args.lhs, axes.lhs), args.rhs, dims, optional))


def _bind_into_rows(call: Call, args: Arguments, axes: Arguments, size: int) -> jax.Array:
    lhs = _merge_batch(args.lhs, axes.lhs, size, 3 if call.lhs.trans else 2)
    optional = dict(args.optional)
    for operand in args.given:
        if not operand.axes:
            optional[operand.name] = _merge_batch(optional[operand.name], axes.optional[operand.name], size, 2)
    return bind(call, args._replace(lhs=lhs, optional=optional))


def _batch(flat, flat_axes, *, call: Call):
    flat = [versions.replicate_explicit_axes(x) for x in flat]  # an explicit mesh axis may divide the batch axis
    args, axes = call.unflatten(flat), call.unflatten(flat_axes)
    size = next(x.shape[axis] for x, axis in zip(flat, flat_axes, strict=True) if axis is not None)
    as_out = {x.name: None for x in args.given if not x.axes}
    others = axes._replace(lhs=None, optional=axes.optional | as_out)
    only_rows = all(axis is None for axis in others.flatten())
    fold, into = _bind_into_problems, 0
    rhs_params = (x for x in args.given if x.role is OperandRole.QUANT_PARAM and x.side == "rhs")
    rhs_is_shared = axes.rhs is None and all(axes.optional[x.name] is None for x in rhs_params)
    match call.mode:
        case Mode.RAGGED_M if rhs_is_shared:
            fold, into = _bind_into_replicas, 1
        case Mode.RAGGED_N if call.lhs.shared and call.out.layout != PACKED and only_rows:
            fold, into = _bind_into_rows, 2
        case Mode.RAGGED_N if call.lhs.per_group and axes.lhs is None:
            return jax.vmap(lambda *xs: bind_ragged_n_as_m(call, call.unflatten(xs)), tuple(flat_axes))(*flat), 0
        case Mode.UNIFORM if rhs_is_shared:
            return jax.vmap(lambda *xs: bind_uniform_as_ragged_m(call, call.unflatten(xs)), tuple(flat_axes))(*flat), 0
    out = fold(call, args, axes, size)
    shape = call.out_shape(call.unflatten([_unbatched_aval(x, axis) for x, axis in zip(flat, flat_axes, strict=True)]))
    return out.reshape(*shape[:into], size, *shape[into:]), into


batching.primitive_batchers[grouped_gemm_p] = _batch
