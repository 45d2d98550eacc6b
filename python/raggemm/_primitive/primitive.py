"""The JAX primitive: its value and shape, and the custom call that it becomes (by the lowering in partitioning.py)."""

import math

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Primitive
from jax.sharding import PartitionSpec

from raggemm._primitive import library
from raggemm._primitive.call import Arguments, Call, OptionalOperand, Term, compute_dtype, flat_shape

primitive = Primitive("grouped_gemm")


def runs_compiled(primitive: Primitive) -> None:
    """Outside of jit it is a compiled program of its own."""

    def bound(*args, call):
        return primitive.bind(*args, call=call)

    # As JAX marks what runs one primitive: with jax_debug_nans it would take it apart for ever.
    setattr(bound, "_apply_primitive", True)  # noqa: B010  no attribute that a function has
    compiled = jax.jit(bound, static_argnames="call")

    @primitive.def_impl
    def run(*args, call):
        with jax.disable_jit(False):  # there is no other way to run it
            return compiled(*args, call=call)


def check_platform(ctx, primitive: Primitive) -> None:
    """NotImplementedError where it is lowered for anything but CPUs."""
    if others := set(ctx.platforms or ctx.module_context.platforms) - {"cpu"}:
        names = ", ".join(sorted(others))
        raise NotImplementedError(f"raggemm: {primitive.name} runs on the platform cpu only, not on {names}")


runs_compiled(primitive)


@primitive.def_abstract_eval
def _abstract_out(*avals, call: Call):
    lhs, shape = avals[0], call.out_shape(call.named(avals))
    replicated = lhs.sharding.update(spec=PartitionSpec(*[None] * len(shape)))
    return lhs.update(shape=shape, dtype=call.dtype, weak_type=False, sharding=replicated)


def _blocks_argument(call: Call, args: Arguments, operand: OptionalOperand, x: jax.Array) -> jax.Array:
    p, second, *blocks = x.shape
    data, storage = (args.lhs, call.lhs) if operand.side == "lhs" else (args.rhs, call.rhs)
    if not storage.per_group:
        if storage.first is not None and p * second != 1:  # one of all rows, or one of each
            blocks[0] = data.shape[2]
        return jnp.broadcast_to(x, (p, second, *blocks)).reshape(p * second * blocks[0], blocks[1])
    groups = data.shape[1]
    if p != 1 and second != groups:
        x, second = jnp.broadcast_to(x, (p, groups, *blocks)), groups
    return x.reshape(p * second, *blocks)


def _optional_argument(call: Call, args: Arguments, operand: OptionalOperand, replicas: int) -> jax.Array:
    x = args.optional[operand.name]
    if operand.is_blocks(x):
        return _blocks_argument(call, args, operand, x)
    if not operand.axes:
        return x.reshape(flat_shape(x.shape, call.out))
    if operand.of_groups:
        return x.reshape(math.prod(x.shape[:3]), *x.shape[3:])
    if operand.term is Term.ROWS:
        p, _, rows = x.shape
        return jnp.broadcast_to(x, (p, replicas, rows)).reshape(p * replicas * rows)
    return jnp.broadcast_to(x, (x.shape[0], replicas))


def custom_call(*flat, call: Call, options: dict[str, str | int]) -> jax.Array:
    """What the primitive is on the platform cpu. options: attributes that say how to compute it."""
    args = call.named(flat)
    shape = call.out_shape(args)
    dims = {name: args.dims[index] for name, index in call.ragged.items()}
    unset = jnp.zeros((0,), np.int32)
    slots = [dims.get(f"{operand}_{axis}", unset) for operand in ("lhs", "rhs", "out") for axis in ("first", "last")]
    replicas = args.dims[0].shape[1] if dims else 1
    optional = {x.name: _optional_argument(call, args, x, replicas) for x in args.given}
    if call.overwrites_c and "c" in optional:
        optional["beta"] = jnp.zeros((), compute_dtype(args.lhs.dtype, args.rhs.dtype, call.dtype))

    groups = np.prod(args.dims[0].shape) if dims else shape[0] * shape[1]
    constant, per_group = library.workspace_coefficients(len(dims))
    results = (
        jax.ShapeDtypeStruct(flat_shape(shape, call.out), call.dtype),
        jax.ShapeDtypeStruct((constant + per_group * groups,), np.int64),
    )
    aliases = {2 + len(slots) + list(optional).index("c"): 0} if "c" in optional else None
    attributes = call.attributes() | ({"operands": ",".join(optional)} if optional else {})
    if names := call.names():
        attributes["names"] = names
    # Every index of no rows is wrong, which XLA must not leave out with what has no elements.
    is_check = "row_index" in optional and args.lhs.shape[2] == 0
    with jax.named_scope(call.mode.name.lower()):
        out, _ = jax.ffi.ffi_call(library.TARGET, results, input_output_aliases=aliases, has_side_effect=is_check)(
            args.lhs.reshape(flat_shape(args.lhs.shape, call.lhs)),
            args.rhs.reshape(flat_shape(args.rhs.shape, call.rhs)),
            *slots,
            *optional.values(),
            **attributes,
            **options,
        )
    return out.reshape(shape)
