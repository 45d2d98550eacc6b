"""The partitioning rule, which lets the compiler divide a call under plain jit over devices.

Each device computes a part of the result, or of the sums, along an axis that groups do not divide:

    problems (of a vmap), replicas, groups if nothing is ragged, free axes     no communication
    contracted axes, replicas that ragged K sums over                          partial results are summed over devices

A mesh axis divides only one of these axes: the first possible one in _PRIORITY. All devices gather these axes:

- axes that groups divide, the groups of a ragged call, axes of PACKED matrices, columns of PackedWeights
- axes that the devices do not divide evenly, or only inside a block or a byte
- the contracted axis of a call that quantizes whole rows of lhs
- summed axes of calls with c or bias, which must be added once, or with an activation, which needs the whole sum

Scales and zero points are divided like their matrix.
"""

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
from jax.experimental.custom_partitioning import custom_partitioning
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from raggemm._src import versions
from raggemm._src.call import (
    BLOCKED,
    OPTIONAL,
    PACKED,
    WORD_BLOCKS,
    WORD_ROWS,
    Call,
    Mode,
    OperandRole,
    OptionalOperand,
    Storage,
)
from raggemm._src.dtypes import compute_dtype, elements_per_byte
from raggemm._src.primitive import grouped_gemm_p

_PRIORITY = ("problem", "replica", "group", "n", "m", "k")


def enable_partitioning(enabled: bool = True) -> None:
    """Lets jax.jit divide calls over the devices of a mesh. Otherwise each device gathers sharded operands.

    With weights [G,K,N] sharded along N, the forward pass needs no communication. With weights sharded along K, partial
    results are summed over devices, so the last bits depend on the number of devices. Each switch clears all caches of
    jax.

    Partitioning is off by default because it uses a private registry of jax. All arrays of a program must have the same
    mesh, with devices (not an AbstractMesh).

    Raises:
      NotImplementedError: if this version of jax has no such registry.
    """
    if not isinstance(enabled, bool):
        raise TypeError(f"enabled is {enabled!r}, must be True or False")
    registry = versions.primitives_that_need_devices()
    if enabled == (grouped_gemm_p in registry):
        return
    registry.symmetric_difference_update({grouped_gemm_p})
    jax.clear_caches()  # jax caches whether a jaxpr has a primitive of `registry`


def is_enabled() -> bool:
    try:
        return grouped_gemm_p in versions.primitives_that_need_devices()
    except NotImplementedError:
        return False


def _name_matrix_axes(storage: Storage, axes: tuple[str, str]) -> tuple[list[str], set[str]]:
    """Names the axes of lhs, rhs or out from the third one on. Also returns the names that must not be divided.

    axes: names of the rows and the columns, such as ("m", "k").
    """
    if storage.first is not None and storage.last is not None:
        return [""], set()
    if storage.layout in BLOCKED:
        return ["", axes[0], ""], {axes[1]}
    packed = storage.last is not None and storage.layout == PACKED
    ragged = {axes[0]} if storage.first is not None else {axes[1]} if storage.last is not None else set()
    return list(axes), set(axes) if packed else ragged


class _Axes(NamedTuple):
    """Names of the axes of all operands and of out. An axis with the name "" must not be divided."""

    operands: list[list[str]]
    out: list[str]
    summed: set[str]  # summed axes that can be divided: "k", and "replica" in ragged K
    # For each name, the largest number of equal parts that splits no element, block or byte. The number of devices that
    # share the axis must divide it.
    parts: dict[str, int]


def _name_axes(call: Call, operands: Sequence[Any], out_shape: tuple[int, ...]) -> _Axes:
    summed = {"k", "replica"} if call.mode is Mode.RAGGED_K else {"k"}
    whole = set() if call.mode is Mode.UNIFORM else {"group"}  # names of the axes that are not divided
    optional = [operand for operand in OPTIONAL if operand.name in call.operands]
    if call.activation or any(operand.role is OperandRole.ADDEND for operand in optional):
        whole |= summed
    matrices = []
    for name, left, right in (("lhs", "m", "k"), ("rhs", "k", "n"), ("out", "m", "n")):
        storage = call.storages[name]
        axes, ragged = _name_matrix_axes(storage, (right, left) if storage.trans else (left, right))
        whole |= ragged
        second = "group" if storage.per_group else "" if storage.shared else "replica"
        matrices.append(["problem", second, *axes])
    lhs, rhs, out = matrices
    dims = [["problem", "replica", "group"]] * (len(operands) - 2 - len(optional))
    shapes = [x.shape for x in operands]

    def optional_axes(operand: OptionalOperand, shape: tuple[int, ...]) -> list[str]:
        if len(shape) == 4 and operand.role is OperandRole.QUANT_PARAM:
            axes = lhs if operand.side == "lhs" else rhs
            return axes if len(axes) == 4 else [*axes[:2], axes[3], ""]  # columns of PackedWeights are not divided
        return list(operand.axes) or out

    names = [lhs, rhs, *dims, *map(optional_axes, optional, shapes[len(shapes) - len(optional) :]), out]
    shapes.append(out_shape)
    parts: dict[str, int] = {}
    for axis, extent in itertools.chain.from_iterable(map(zip, names, shapes)):
        if extent != 1:
            parts[axis] = math.gcd(parts.get(axis, 0), extent)
    for axes, x in zip((lhs, rhs), operands, strict=False):
        parts[axes[-1]] = math.gcd(parts.get(axes[-1], 0), x.shape[-1] // elements_per_byte(x.dtype))
    if call.rhs.layout == WORD_BLOCKS:
        # Values per block are in the order of column blocks, so their rows cannot be divided.
        params = [
            x for operand, x in zip(optional, shapes[-1 - len(optional) : -1], strict=True) if operand.side == "rhs"
        ]
        whole |= {"k"} if any(len(x) == 4 and x[2] > 1 for x in params) else set()
        parts["k"] = math.gcd(parts.get("k", 0), operands[0].shape[lhs.index("k")] // WORD_ROWS)
    if call.lhs_block is not None:
        k, block = operands[0].shape[lhs.index("k")], call.lhs_block
        parts["k"] = math.gcd(parts.get("k", 0), k // block) if block and k % block == 0 else 1
    whole |= {axis for axis, count in parts.items() if count == 1}

    def divisible(axes, shape):
        return ["" if extent == 1 or axis in whole else axis for axis, extent in zip(axes, shape, strict=True)]

    *named, result = (divisible(*x) for x in zip(names, shapes, strict=True))
    return _Axes(named, result, summed - whole, parts)


def _assign_mesh_axes(axes: _Axes, mesh: Mesh, arrays: list[tuple[list[str], Any]]) -> dict[str, tuple[str, ...]]:
    """Chooses the mesh axes that divide each named axis of the call. Returns a dict from axis names to mesh axes.

    Each axis follows the first array that shards it evenly over mesh axes that are still free. arrays: for each array
    the names of its axes, and its shape and sharding.
    """
    used: set[str] = set()
    assigned: dict[str, tuple[str, ...]] = {}
    for axis in _PRIORITY:
        for names, array in arrays:
            spec = dict(zip(names, getattr(array.sharding, "spec", ()), strict=False))
            entry = spec.get(axis) or ()
            wanted = tuple(x for x in (entry if isinstance(entry, tuple) else (entry,)) if x not in used)
            if wanted and axes.parts[axis] % math.prod(mesh.shape[x] for x in wanted) == 0:
                used.update(wanted)
                assigned[axis] = wanted
                break
    return assigned


def _per_device_function(call: Call, function: Callable[..., jax.Array], summed_over: tuple[str, ...]):
    if not summed_over:
        return functools.partial(function, call=call)

    def partial_sums(lhs, rhs, *rest):
        part = dataclasses.replace(call, dtype=compute_dtype(lhs.dtype, rhs.dtype, call.dtype))
        return jax.lax.psum(function(lhs, rhs, *rest, call=part), summed_over).astype(call.dtype)

    return partial_sums


def _sharding_rule(axes: _Axes) -> dict[str, Any]:
    """Returns the arguments of def_partition: which axes correspond, are not divided, or are summed.

    Axes with the same name correspond. Their extents differ if one counts elements and the other blocks. No name is
    compound, such as "(a b)": the partitioner could then split a mesh axis into two. jax cannot represent this.
    """
    whole = (f"whole{i}" for i in itertools.count())
    sides = [" ".join(name or next(whole) for name in names) for names in (*axes.operands, axes.out)]
    text = ", ".join(sides[:-1]) + " -> " + sides[-1]
    present = text.replace(",", "").split()
    return {
        "sharding_rule": text,
        "need_replication_factors": tuple(x for x in present if x.startswith("whole")),
        "reduction_factors": tuple(sorted(axes.summed & set(present))),
    }


def make_partitionable(
    call: Call, function: Callable[..., jax.Array], operands: Sequence[Any], out_shape: tuple[int, ...]
):
    """Returns the custom call as a function that the partitioner can divide.

    function: computes the custom call from flat operands and the keyword `call`. The partitioner runs at compile time.
    `with raggemm.options` may be over by then, so `function` must have saved the options.
    """
    axes = _name_axes(call, operands, out_shape)

    def shardings(mesh, args, out):
        arrays = [(names, x) for names, x in zip(axes.operands, args, strict=True)]
        # The sharding of rhs takes precedence, because weights cost most to move.
        arrays = [arrays[1], arrays[0], (axes.out, out), *arrays[2:]]
        assigned = _assign_mesh_axes(axes, mesh, arrays)
        specs = [
            NamedSharding(mesh, PartitionSpec(*[assigned.get(name) for name in names]))
            for names in (*axes.operands, axes.out)
        ]
        return tuple(specs[:-1]), specs[-1], tuple(x for axis in axes.summed for x in assigned.get(axis, ()))

    def partition(mesh, args, out):
        operands, result, summed_over = shardings(mesh, args, out)
        return mesh, _per_device_function(call, function, summed_over), result, operands

    def infer(mesh, args, out):
        return shardings(mesh, args, out)[1]

    @custom_partitioning
    def divisible(*args):
        return function(*args, call=call)

    divisible.def_partition(partition, infer_sharding_from_operands=infer, **_sharding_rule(axes))
    return divisible
