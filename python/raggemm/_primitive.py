"""The JAX primitive: its value and shape, and its lowering to the custom call."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Primitive
from jax.interpreters import mlir
from jax.sharding import PartitionSpec

from raggemm import _compat, _ffi
from raggemm._call import PACKED, Arguments, Call, Mode, flat_shape, flatten

primitive = Primitive("grouped_gemm")


def bind(call: Call, args: Arguments) -> jax.Array:
    return primitive.bind(*_compat.align_varying(args.flat()), call=call)


@functools.partial(jax.jit, static_argnames="call")
def _compiled(*args, call: Call):
    return primitive.bind(*args, call=call)


primitive.def_impl(_compiled)


@primitive.def_abstract_eval
def _abstract_out(*avals, call: Call):
    lhs, rhs = avals[:2]
    shape = call.out_shape(lhs, rhs)
    replicated = lhs.sharding.update(spec=PartitionSpec(*[None] * len(shape)))
    return lhs.update(shape=shape, dtype=call.dtype, weak_type=False, sharding=replicated)


def _dims_arguments(call: Call, args: Arguments) -> dict[str, jax.Array]:
    """The dims arrays that are set, under the custom call's names."""
    named = {}
    for operand in ("lhs", "rhs", "out"):
        for axis in ("first", "last"):
            index = getattr(getattr(call, operand), axis)
            if index is not None:
                named[f"{operand}_{axis}"] = args.dims[index]
    return named


def _optional_argument(call: Call, name: str, x: jax.Array) -> jax.Array:
    if name == "c":
        return flatten(x, call.out, call.mode)
    if name == "bias":
        return x.reshape(-1, x.shape[3])
    if name != "group_offset":
        return x.reshape(-1)  # alpha, beta
    if call.mode is Mode.UNIFORM:  # one problem to the custom call: a value that is wrong stands for all
        return x.reshape(-1)[jnp.argmax(x.reshape(-1) != 0)]
    return x


def _attributes(call: Call, ragged: list[str]) -> dict[str, str | bool]:
    """Those that differ from the defaults in proto/config.proto."""
    attributes: dict[str, str | bool] = {}
    for name in ("lhs", "rhs", "out"):
        storage = getattr(call, name)
        if storage.trans:
            attributes[f"{name}_is_trans"] = True
        if storage.layout == PACKED:
            attributes[f"{name}_layout"] = PACKED
    if ragged:
        attributes["ragged"] = ",".join(ragged)
    if call.operands:
        attributes["operands"] = ",".join(call.operands)
    return attributes


def _custom_call(*flat, call: Call) -> jax.Array:
    args = call.named(flat)
    shape = call.out_shape(args.lhs, args.rhs)
    dims = _dims_arguments(call, args)
    unset = jnp.zeros((0,), np.int32)
    slots = [dims.get(f"{operand}_{axis}", unset) for operand in ("lhs", "rhs", "out") for axis in ("first", "last")]
    optional = [_optional_argument(call, name, x) for name, x in args.optional.items()]

    groups = np.prod(args.dims[0].shape) if dims else shape[0] * shape[1]
    constant, per_group = _ffi.workspace_coefficients(len(dims))
    results = (
        jax.ShapeDtypeStruct(flat_shape(shape, call.out, call.mode), call.dtype),
        jax.ShapeDtypeStruct((constant + per_group * groups,), np.int64),
    )
    c_position = 2 + len(slots)
    aliases = {c_position: 0} if "c" in args.optional else None
    out, _ = jax.ffi.ffi_call(_ffi.TARGET, results, input_output_aliases=aliases)(
        flatten(args.lhs, call.lhs, call.mode),
        flatten(args.rhs, call.rhs, call.mode),
        *slots,
        *optional,
        **_attributes(call, list(dims)),
    )
    return out.reshape(shape)


def _no_lowering(ctx, *_, **__):
    platforms = ", ".join(ctx.module_context.platforms)
    raise NotImplementedError(f"raggemm: grouped_gemm runs on the platform cpu only, not on {platforms}")


mlir.register_lowering(primitive, _no_lowering)
mlir.register_lowering(primitive, mlir.lower_fun(_custom_call, multiple_results=False), platform="cpu")
