"""How the compiler may divide a call under plain jit over several devices: a rule that can be switched on.

Without it the partitioner knows nothing of a custom call, so that every device gathers all operands and computes
everything: right, but slow. With it each device computes its part of an axis that no group divides:

    problems (of a vmap), replicas, groups of a uniform call, free axes        no communication
    contracted axes, replicas that ragged K sums over                          partial results are summed over devices

Free axes come first. An axis that groups divide is gathered as before, and so is one that the devices do not divide
evenly, or that is summed over where c or bias would be added more than once, or an activation be of parts of a sum.
Factors are divided as their operand is, which is gathered where a device would have a part of a block or of a byte.
"""

import dataclasses
import functools
import hashlib
import itertools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
from jax.experimental.custom_partitioning import custom_partitioning
from jax.interpreters import mlir
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from raggemm._primitive import jax_versions
from raggemm._primitive.call import (
    COLUMN_BLOCKS,
    OPTIONAL,
    PACKED,
    Call,
    Mode,
    OptionalOperand,
    Storage,
    Term,
    compute_dtype,
    elements_of_a_byte,
)
from raggemm._primitive.options import attributes
from raggemm._primitive.primitive import check_platform, custom_call, primitive

_PRIORITY = ("problem", "replica", "group", "n", "m", "k")


def enable_partitioning(enabled: bool = True) -> None:
    """Lets jax.jit divide calls over the devices of a mesh, where sharded operands are gathered otherwise.

    With weights [G,K,N] sharded along N there is then no communication in the forward pass; along K partial results
    are summed, so that the last bits depend on the number of devices. A change forgets all that jax has compiled.

    It rests on a registry inside of jax that says which primitives need to know the devices, with its conditions: all
    arrays of a program have the same mesh, which has devices (no AbstractMesh). Therefore it is off by default.
    NotImplementedError where this jax has no such registry.
    """
    if not isinstance(enabled, bool):
        raise TypeError(f"enabled is {enabled!r}, must be True or False")
    registry = jax_versions.primitives_that_need_devices()
    if enabled == (primitive in registry):
        return
    registry.symmetric_difference_update({primitive})
    jax.clear_caches()  # one of which says for each jaxpr whether it has such a primitive


def _is_enabled() -> bool:
    try:
        return primitive in jax_versions.primitives_that_need_devices()
    except NotImplementedError:
        return False


def _matrix_axes(storage: Storage, axes: tuple[str, str]) -> tuple[list[str], set[str]]:
    """Names of the axes behind the first two, and those of them that cannot be divided."""
    if storage.first is not None and storage.last is not None:
        return [""], set()
    if storage.layout == COLUMN_BLOCKS:
        return ["", axes[0], ""], {axes[1]}
    packed = storage.last is not None and storage.layout == PACKED
    ragged = {axes[0]} if storage.first is not None else {axes[1]} if storage.last is not None else set()
    return list(axes), set(axes) if packed else ragged


class _Axes(NamedTuple):
    """A name for each axis of each operand and of out, "" for one that cannot be divided."""

    operands: list[list[str]]
    out: list[str]
    summed: set[str]  # axes of lhs and rhs that out does not have
    parts: dict[str, int]  # what the devices along a named axis must divide: its extent, or whole blocks or bytes


def _named_axes(call: Call, operands: Sequence[Any], out_shape: tuple[int, ...]) -> _Axes:
    summed = {"k", "replica"} if call.mode is Mode.RAGGED_K else {"k"}
    whole = set() if call.mode is Mode.UNIFORM else {"group"}  # axes that each device needs all of
    optional = [operand for operand in OPTIONAL if operand.name in call.operands]
    if call.activation or any(operand.term is Term.ADDED for operand in optional):
        whole |= summed
    matrices = []
    for name, left, right in (("lhs", "m", "k"), ("rhs", "k", "n"), ("out", "m", "n")):
        storage = call.storages[name]
        axes, ragged = _matrix_axes(storage, (right, left) if storage.trans else (left, right))
        whole |= ragged
        second = "group" if storage.per_group else "" if storage.shared else "replica"
        matrices.append(["problem", second, *axes])
    lhs, rhs, out = matrices
    dims = [["problem", "replica", "group"]] * (len(operands) - 2 - len(optional))
    shapes = [x.shape for x in operands]

    def optional_axes(operand: OptionalOperand, shape: tuple[int, ...]) -> list[str]:
        if len(shape) == 4 and operand.term is Term.FACTOR:
            axes = lhs if operand.side == "lhs" else rhs
            return axes if len(axes) == 4 else [*axes[:2], axes[3], ""]  # of blocks of columns, which stay together
        return list(operand.axes) or out

    names = [lhs, rhs, *dims, *map(optional_axes, optional, shapes[len(shapes) - len(optional) :]), out]
    shapes.append(out_shape)
    parts: dict[str, int] = {}
    for axis, extent in itertools.chain.from_iterable(map(zip, names, shapes)):
        if extent != 1:
            parts[axis] = math.gcd(parts.get(axis, 0), extent)
    for axes, x in zip((lhs, rhs), operands, strict=False):
        parts[axes[-1]] = math.gcd(parts.get(axes[-1], 0), x.shape[-1] // elements_of_a_byte(x.dtype))
    whole |= {axis for axis, count in parts.items() if count == 1}

    def divisible(axes, shape):
        return ["" if extent == 1 or axis in whole else axis for axis, extent in zip(axes, shape, strict=True)]

    *named, result = (divisible(*x) for x in zip(names, shapes, strict=True))
    return _Axes(named, result, summed - whole, parts)


def _mesh_axes(entry: Any) -> tuple[str, ...]:
    return () if entry is None else entry if isinstance(entry, tuple) else (entry,)


def _assignment(axes: _Axes, mesh: Mesh, arrays: list[tuple[list[str], Any]]) -> dict[str, tuple[str, ...]]:
    """The axes of the mesh that divide each named axis: those of the first array that has any and where it comes out
    even. None is used twice."""
    used: set[str] = set()
    assigned: dict[str, tuple[str, ...]] = {}
    for axis in _PRIORITY:
        for names, array in arrays:
            spec = dict(zip(names, getattr(array.sharding, "spec", ()), strict=False))
            wanted = tuple(x for x in _mesh_axes(spec.get(axis)) if x not in used)
            if wanted and axes.parts[axis] % math.prod(mesh.shape[x] for x in wanted) == 0:
                used.update(wanted)
                assigned[axis] = wanted
                break
    return assigned


def _on_each_device(call: Call, options: dict[str, str | int], summed_over: tuple[str, ...]):
    if not summed_over:
        return functools.partial(custom_call, call=call, options=options)

    def partial_sums(lhs, rhs, *rest):
        part = dataclasses.replace(call, dtype=compute_dtype(lhs.dtype, rhs.dtype, call.dtype))
        return jax.lax.psum(custom_call(lhs, rhs, *rest, call=part, options=options), summed_over).astype(call.dtype)

    return partial_sums


def _rule(axes: _Axes) -> dict[str, Any]:
    """The arguments of def_partition that tell the partitioner which axes belong together. Those of one name may differ
    in extent, where one counts blocks; of compound names the partitioner would split an axis of the mesh, which jax
    cannot read."""
    whole = (f"whole{i}" for i in itertools.count())
    sides = [" ".join(name or next(whole) for name in names) for names in (*axes.operands, axes.out)]
    text = ", ".join(sides[:-1]) + " -> " + sides[-1]
    present = text.replace(",", "").split()
    return {
        "sharding_rule": text,
        "need_replication_factors": tuple(x for x in present if x.startswith("whole")),
        "reduction_factors": tuple(sorted(axes.summed & set(present))),
    }


def _partitioned(call: Call, options: dict[str, str | int], operands: Sequence[Any], out_shape: tuple[int, ...]):
    """The custom call as a function that the partitioner can divide. It does so when compiling, where the options in
    effect may be others than where the call was lowered."""
    axes = _named_axes(call, operands, out_shape)

    def shardings(mesh, args, out):
        arrays = [(names, x) for names, x in zip(axes.operands, args, strict=True)]
        arrays = [arrays[1], arrays[0], (axes.out, out), *arrays[2:]]  # weights first, which cost most to move
        assigned = _assignment(axes, mesh, arrays)
        specs = [
            NamedSharding(mesh, PartitionSpec(*[assigned.get(name) for name in names]))
            for names in (*axes.operands, axes.out)
        ]
        return tuple(specs[:-1]), specs[-1], tuple(x for axis in axes.summed for x in assigned.get(axis, ()))

    def partition(mesh, args, out):
        operands, result, summed_over = shardings(mesh, args, out)
        return mesh, _on_each_device(call, options, summed_over), result, operands

    def infer(mesh, args, out):
        return shardings(mesh, args, out)[1]

    @custom_partitioning
    def function(*args):
        return custom_call(*args, call=call, options=options)

    function.def_partition(partition, infer_sharding_from_operands=infer, **_rule(axes))

    def named(*args):
        return function(*args)

    # JAX puts a pointer into the program in place of the call, and a later call may get the same pointer. The name
    # tells their programs apart in JAX's persistent compilation cache.
    identity = repr((dataclasses.astuple(call), sorted(options.items())))
    named.__name__ = f"grouped_gemm_{hashlib.sha256(identity.encode()).hexdigest()[:16]}"
    return jax.jit(named)


def _lowering(ctx, *operands, call: Call):
    check_platform(ctx, primitive)
    options = attributes()
    function = functools.partial(custom_call, call=call, options=options)
    if _is_enabled() and jax_versions.divides_programs(ctx):
        function = _partitioned(call, options, ctx.avals_in, ctx.avals_out[0].shape)
    return mlir.lower_fun(function, multiple_results=False)(ctx, *operands)


mlir.register_lowering(primitive, _lowering)
