"""The JAX primitive grouped_gemm, and bind(), the only function that binds it.

bind() rewrites Calls that the custom call does not support.
"""

import dataclasses

import jax
import jax.numpy as jnp
from jax.extend.core import Primitive
from jax.sharding import PartitionSpec

from raggemm._src import versions
from raggemm._src.call import PACKED, STRIDED, Arguments, Call, Mode, OperandRole, Storage
from raggemm._src.dtypes import SUB_BYTE, compute_dtype

grouped_gemm_p = Primitive("grouped_gemm")


def register_jitted_impl(primitive: Primitive) -> None:
    def bound(*args, call):
        return primitive.bind(*args, call=call)

    # Without this attribute, jax_debug_nans would recurse forever.
    setattr(bound, "_apply_primitive", True)  # noqa: B010  mypy rejects the assignment
    compiled = jax.jit(bound, static_argnames="call")

    @primitive.def_impl
    def run(*args, call):
        with jax.disable_jit(False):  # the primitive has no implementation without jit
            return compiled(*args, call=call)


register_jitted_impl(grouped_gemm_p)


@grouped_gemm_p.def_abstract_eval
def _abstract_out(*avals, call: Call):
    lhs, shape = avals[0], call.out_shape(call.unflatten(avals))
    replicated = lhs.sharding.update(spec=PartitionSpec(*[None] * len(shape)))
    return lhs.update(shape=shape, dtype=call.dtype, weak_type=False, sharding=replicated)


def _widen_partial_bytes(call: Call, args: Arguments) -> Arguments:
    """Widens elements narrower than a byte to a byte if a row or a group could end inside a byte."""
    for side, x in (("lhs", args.lhs), ("rhs", args.rhs)):
        count, wider = SUB_BYTE.get(x.dtype, (1, x.dtype))
        if x.shape[-1] % count or (count > 1 and call.storages[side].last is not None):
            zero = {name: y.astype(wider) for name, y in args.optional.items() if name == f"{side}_zero"}
            args = args._replace(**{side: x.astype(wider)}, optional=args.optional | zero)
    return args


def bind(call: Call, args: Arguments) -> jax.Array:
    """Binds the primitive for the call. Returns out in canonical shape.

    Callers must replicate the operands over explicit mesh axes first.
    """
    args = _widen_partial_bytes(call, args)
    if needs_one_group(call):
        return _bind_as_one_group(call, args)
    offset, replicas = args.optional.get("group_offset"), args.rhs.shape[1]
    as_m = replicas != 1 or offset is not None or any(x.role is OperandRole.QUANT_PARAM for x in args.given)
    if call.mode is Mode.RAGGED_N and call.lhs.per_group and as_m:
        return bind_ragged_n_as_m(call, args)
    if call.mode is Mode.RAGGED_K and args.lhs.shape[1] == 0:
        return bind(call, args.map(_add_empty_replica))
    if call.mode is Mode.RAGGED_K and offset is not None and offset.shape[1] != 1:
        return _bind_replicas_and_sum(call, args)
    call = dataclasses.replace(call, operands=tuple(operand.name for operand in args.given))
    return grouped_gemm_p.bind(*versions.promote_vma(args.flatten()), call=call)


def needs_one_group(call: Call) -> bool:
    """Returns True for ragged M or K with a matrix that all groups share.

    The custom call does not support them, so bind() computes them with a single group. Derivatives of ragged N with a
    shared lhs are such calls.
    """
    storages = (call.lhs, call.rhs, call.out)
    return call.mode in (Mode.RAGGED_M, Mode.RAGGED_K) and any(s.shared for s in storages)


def _sum_sizes(sizes: jax.Array) -> jax.Array:
    """Sums group sizes [P,R,G] to [P,R,1]. A negative size or an overflow gives -1, which the library rejects."""
    ends = jnp.cumsum(sizes, -1, dtype=sizes.dtype)
    is_wrong = ((sizes < 0) | (ends < sizes)).any(-1, keepdims=True)
    return jnp.where(is_wrong, jnp.int32(-1).astype(sizes.dtype), sizes.sum(-1, keepdims=True, dtype=sizes.dtype))


def _bind_as_one_group(call: Call, args: Arguments) -> jax.Array:
    def strided(x: jax.Array, storage: Storage) -> jax.Array:
        packed = storage.last is not None and storage.layout == PACKED
        return _unpack(x, args.sizes(storage.last)) if packed else x

    sums = tuple(map(_sum_sizes, args.dims))
    lhs, rhs, out = (s._replace(layout=STRIDED, shared=False) for s in (call.lhs, call.rhs, call.out))
    one = dataclasses.replace(call, lhs=lhs, rhs=rhs, out=out, out_extent=1)
    optional = args.select(OperandRole.GROUP_OFFSET).optional
    return bind(one, Arguments(strided(args.lhs, call.lhs), strided(args.rhs, call.rhs), sums, optional))


def _add_empty_replica(x: jax.Array) -> jax.Array:
    """Adds a replica of zeros if there is none, because the custom call requires one."""
    return x if x.shape[1] else jnp.zeros((x.shape[0], 1, *x.shape[2:]), x.dtype)


def replicas_to_problems(x: jax.Array, replicas: int) -> jax.Array:
    p, _, *rest = x.shape
    return jnp.broadcast_to(x, (p, replicas, *rest)).reshape(p * replicas, 1, *rest)


def _bind_replicas_and_sum(call: Call, args: Arguments) -> jax.Array:
    """Computes ragged K with one group_offset per replica. The custom call does not support this.

    Such a call is the gradient of weights that a batch shares, with a group_offset per batch element.
    """
    dtype = compute_dtype(args.lhs.dtype, args.rhs.dtype, call.dtype)
    p, replicas = args.lhs.shape[:2]
    problems = dataclasses.replace(call, dtype=dtype)
    out = bind(problems, args.map(lambda x: replicas_to_problems(x, replicas)))
    return out.reshape(p, replicas, *out.shape[1:]).sum(1).astype(call.dtype)


def bind_ragged_n_as_m(call: Call, args: Arguments) -> jax.Array:
    """Computes ragged N with one matrix per group as the transpose of ragged M.

    Unlike ragged N, ragged M supports group_offset, replicas, and one scale per block.
    """
    sizes, packed = args.sizes(call.out.last), call.out.layout == PACKED
    swapped = {"lhs": "rhs", "rhs": "lhs"}
    optional = {
        swapped[x.side] + x.name[3:] if x.role is OperandRole.QUANT_PARAM else x.name: args.optional[x.name]
        for x in args.given
    }
    for operand in args.given:
        if not operand.axes:
            x = args.optional[operand.name]
            optional[operand.name] = (_unpack(x, sizes) if packed else x).swapaxes(2, 3)
    transposed = dataclasses.replace(
        call, lhs=call.rhs.transposed(), rhs=call.lhs.transposed(), out=Storage(first=call.out.last)
    )
    out = bind(transposed, Arguments(args.rhs, args.lhs, args.dims, optional)).swapaxes(2, 3)
    return _pack(out, sizes) if packed else out


def bind_uniform_as_ragged_m(call: Call, args: Arguments) -> jax.Array:
    """Computes a uniform call as ragged M with equal groups. Unlike uniform, ragged M supports replicas."""
    lhs = args.lhs.swapaxes(2, 3) if call.lhs.trans else args.lhs
    p, g, m, _ = lhs.shape

    def as_rows(x):
        return x.reshape(p, 1, g * m, x.shape[3])

    optional = dict(args.optional)
    for operand in args.given:
        x = optional[operand.name]
        if not operand.axes:
            optional[operand.name] = as_rows(x)
        if operand.is_per_block(x) and operand.side == "lhs":
            x = x.swapaxes(2, 3) if call.lhs.trans else x
            x = jnp.repeat(x, m // max(x.shape[2], 1), 2)  # Ragged M needs one value per row of lhs.
            optional[operand.name] = jnp.broadcast_to(x, (p, g, m, x.shape[3])).reshape(p, 1, g * m, x.shape[3])
    sizes = jnp.full((p, 1, g), m, jnp.int32)
    ragged = dataclasses.replace(call, lhs=Storage(first=0), out=Storage(first=0))
    out = bind(ragged, Arguments(as_rows(lhs), args.rhs, (sizes,), optional))
    return out.reshape(p, g, m, out.shape[3])


def _packed_positions(sizes: jax.Array, rows: int, cols: int) -> jax.Array:
    """Returns [rows,cols]: the index in PACKED layout of each element of a STRIDED matrix."""
    ends = jnp.append(jnp.cumsum(sizes, dtype=sizes.dtype), cols)
    starts = jnp.append(0, ends[:-1])
    column = jnp.arange(cols, dtype=sizes.dtype)
    group = jnp.searchsorted(ends, column, side="right")
    start, width = starts[group], (ends - starts)[group]
    return jnp.arange(rows, dtype=sizes.dtype)[:, None] * width[None] + (rows * start + column - start)[None]


def _pack_one(x: jax.Array, sizes: jax.Array) -> jax.Array:
    return jnp.zeros_like(x).reshape(-1).at[_packed_positions(sizes, *x.shape)].set(x).reshape(x.shape)


def _unpack_one(x: jax.Array, sizes: jax.Array) -> jax.Array:
    return x.reshape(-1)[_packed_positions(sizes, *x.shape)]


# _pack converts matrices [P,R,rows,cols] with group sizes [P,R,G] from STRIDED to PACKED layout. _unpack converts them
# back.
_pack = jax.vmap(jax.vmap(_pack_one))
_unpack = jax.vmap(jax.vmap(_unpack_one))
