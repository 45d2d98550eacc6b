"""Lowering of the primitives to custom calls on CPU."""

import dataclasses
import functools
import hashlib
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Primitive
from jax.interpreters import mlir

from raggemm._src import library, options, sharding, versions
from raggemm._src.call import (
    COLUMN_BLOCKS,
    WORD_BLOCKS,
    Arguments,
    Call,
    OperandRole,
    OptionalOperand,
    custom_call_shape,
    from_word_order,
    from_word_values,
)
from raggemm._src.dtypes import FLOATS, compute_dtype
from raggemm._src.mlp_primitive import BackwardCall, backward_p, mlp_p, tangent_p
from raggemm._src.mlp_reference import REQUIRED, Args, MlpCall, is_given
from raggemm._src.primitive import grouped_gemm_p


def _register(primitive: Primitive, make_function: Callable[..., Callable[..., Any]]) -> None:
    """Makes a primitive lower to the function that `make_function(ctx, call)` returns."""

    def rule(ctx, *operands, call):
        if others := set(ctx.platforms or ctx.module_context.platforms) - {"cpu"}:
            names = ", ".join(sorted(others))
            raise NotImplementedError(f"raggemm: {primitive.name} runs on the platform cpu only, not on {names}")
        return mlir.lower_fun(make_function(ctx, call), multiple_results=primitive.multiple_results)(ctx, *operands)

    mlir.register_lowering(primitive, rule)


def _flatten_blocks(call: Call, args: Arguments, operand: OptionalOperand, x: jax.Array) -> jax.Array:
    """Reshapes per-block scales or zero points from canonical shape to the shape of the custom call."""
    p, second, *blocks = x.shape
    data, storage = (args.lhs, call.lhs) if operand.side == "lhs" else (args.rhs, call.rhs)
    if not storage.per_group:
        # Along a ragged axis, the custom call takes one value for all rows, or one for each row of all problems.
        if storage.first is not None and p * second != 1:
            blocks[0] = data.shape[2]
        return jnp.broadcast_to(x, (p, second, *blocks)).reshape(p * second * blocks[0], blocks[1])
    groups = data.shape[1]
    if p != 1 and second != groups:
        x, second = jnp.broadcast_to(x, (p, groups, *blocks)), groups
    return x.reshape(p * second, *blocks)


def _flatten_optional(call: Call, args: Arguments, operand: OptionalOperand, replicas: int) -> jax.Array:
    x = args.optional[operand.name]
    if operand.is_per_block(x):
        return _flatten_blocks(call, args, operand, x)
    if not operand.axes:
        return x.reshape(custom_call_shape(x.shape, call.out))
    if operand.is_per_group:
        return x.reshape(math.prod(x.shape[:3]), *x.shape[3:])
    if operand.role is OperandRole.ROW_INDEX:
        p, _, rows = x.shape
        return jnp.broadcast_to(x, (p, replicas, rows)).reshape(p * replicas * rows)
    return jnp.broadcast_to(x, (x.shape[0], replicas))


def _grouped_gemm_call(*flat, call: Call, options: dict[str, str | int]) -> jax.Array:
    """Calls the custom call of grouped_gemm. options: see options.attributes."""
    args = call.unflatten(flat)
    if call.rhs.layout == WORD_BLOCKS and call.lhs_block is None:  # A tangent: the custom call does not take it.
        call = dataclasses.replace(call, rhs=call.rhs._replace(layout=COLUMN_BLOCKS))
        in_blocks = (x for x in args.given if x.side == "rhs" and x.is_per_block(args.optional[x.name]))
        values = {x.name: from_word_values(args.optional[x.name], call.rhs.columns) for x in in_blocks}
        args = args._replace(rhs=from_word_order(args.rhs), optional=args.optional | values)
    shape = call.out_shape(args)
    dims = {name: args.dims[index] for name, index in call.ragged_slots.items()}
    unset = jnp.zeros((0,), np.int32)
    slots = [dims.get(f"{operand}_{axis}", unset) for operand in ("lhs", "rhs", "out") for axis in ("first", "last")]
    replicas = args.dims[0].shape[1] if dims else 1
    optional = {x.name: _flatten_optional(call, args, x, replicas) for x in args.given}
    if call.overwrites_c and "c" in optional:
        optional["beta"] = jnp.zeros((), compute_dtype(args.lhs.dtype, args.rhs.dtype, call.dtype))

    groups = np.prod(args.dims[0].shape) if dims else shape[0] * shape[1]
    constant, per_group = library.workspace_coefficients(len(dims))
    results = (
        jax.ShapeDtypeStruct(custom_call_shape(shape, call.out), call.dtype),
        jax.ShapeDtypeStruct((constant + per_group * groups,), np.int64),
    )
    aliases = {2 + len(slots) + list(optional).index("c"): 0} if "c" in optional else None
    attributes = call.attributes() | ({"operands": ",".join(optional)} if optional else {})
    if names := call.names_attribute():
        attributes["names"] = names
    # If lhs has no rows, every index in row_index is wrong, and the call must report that. A side effect keeps XLA from
    # dropping the call.
    is_check = "row_index" in optional and args.lhs.shape[2] == 0
    with jax.named_scope(call.mode.name.lower()):
        out, _ = jax.ffi.ffi_call(library.TARGET, results, input_output_aliases=aliases, has_side_effect=is_check)(
            args.lhs.reshape(custom_call_shape(args.lhs.shape, call.lhs)),
            args.rhs.reshape(custom_call_shape(args.rhs.shape, call.rhs)),
            *slots,
            *optional.values(),
            **attributes,
            **options,
        )
    return out.reshape(shape)


def _grouped_gemm_function(ctx, call: Call) -> Callable[..., jax.Array]:
    in_effect = options.attributes()
    function = functools.partial(_grouped_gemm_call, options=in_effect)
    if not sharding.is_enabled() or not versions.partitions_program(ctx):
        return functools.partial(function, call=call)
    partitioned = sharding.make_partitionable(call, function, ctx.avals_in, ctx.avals_out[0].shape)

    def named(*operands):
        return partitioned(*operands)

    # The lowered program contains only the address of `partitioned`. In a later process, another call may have the same
    # address. The hash in the function name keeps JAX's persistent compilation cache from mixing up such calls.
    key = repr((dataclasses.astuple(call), sorted(in_effect.items())))
    named.__name__ = f"grouped_gemm_{hashlib.sha256(key.encode()).hexdigest()[:16]}"
    return jax.jit(named)


def _mlp_custom_call(
    target: str, operands: Sequence[Any], avals: Sequence[Any], extents: Sequence[int], attributes: Args
) -> Any:
    results = [jax.ShapeDtypeStruct(aval.shape, aval.dtype) for aval in avals]
    workspace = jax.ShapeDtypeStruct((library.moe_mlp_workspace(target, *extents),), np.int64)
    given = {name: value for name, value in attributes.items() if is_given(value)}
    # Without tokens, a row that names a token is an error. A side effect keeps XLA from dropping the call.
    is_check = all(0 in result.shape for result in results)
    with jax.named_scope(library.call_name(target)):
        return jax.ffi.ffi_call(target, (*results, workspace), has_side_effect=is_check)(*operands, **given)[:-1]


def _extents(call: MlpCall, args: Args) -> tuple[int, ...]:
    (tokens, hidden), (rows,), (groups,) = (args[name].shape for name in ("x", "row_tokens", "group_sizes"))
    return tokens, hidden, call.intermediate_size(args), rows, groups


def _mlp_call(*flat, call: MlpCall, avals: Sequence[Any], options: dict[str, str | int]) -> Any:
    """Calls the custom call of moe_mlp, or grouped GEMMs if a symbolic extent makes the workspace's size unknown."""
    extents = _extents(call, call.unflatten(flat))
    if any(map(jax.export.is_symbolic_dim, extents)):
        return call(*flat)
    rounds_rows = call.lhs_block is not None
    extents = *extents, avals[0].dtype != np.float32, "row_slots" in call.operands, rounds_rows
    return _mlp_custom_call(library.MLP_TARGET, flat, avals, extents, call.attributes() | options)


def _mlp_backward_call(*flat, call: BackwardCall, avals: Sequence[Any], options: dict[str, str | int]) -> Any:
    args = call.call.unflatten(flat[: len(call.call.names)])
    extents = _extents(call.call, args)
    if any(map(jax.export.is_symbolic_dim, extents)):
        return call(*flat)
    elements = (args[name].dtype for name in ("x", "w_up", "w_down"))  # w_gate has the dtype of w_up
    element_bytes = max(dtype.itemsize for dtype in elements if dtype in FLOATS)
    is_narrow = {name: aval.dtype != np.float32 for name, aval in zip(call.wanted, avals, strict=True)}
    sums_tokens = is_narrow.pop("x", False)
    extents = *extents, element_bytes, sums_tokens, any(is_narrow.values())
    operands = [*flat[: len(REQUIRED)], flat[-1], *flat[len(REQUIRED) : -1]]
    attributes = call.attributes() | options
    return _mlp_custom_call(library.MLP_BACKWARD_TARGET, operands, avals, extents, attributes)


def _bind_avals(function: Callable[..., Any]) -> Callable[..., Callable[..., Any]]:
    return lambda ctx, call: functools.partial(function, call=call, avals=ctx.avals_out, options=options.attributes())


_register(grouped_gemm_p, _grouped_gemm_function)
_register(mlp_p, _bind_avals(_mlp_call))
_register(backward_p, _bind_avals(_mlp_backward_call))
_register(tangent_p, lambda ctx, call: call)
