"""Everything that differs between the versions of jax that are supported, 0.8.1 and later."""

from collections.abc import Iterable
from typing import Any

import jax
from jax import lax
from jax.sharding import PartitionSpec


def _varying_axes(x: jax.Array) -> frozenset[str]:
    """Axes of the enclosing shard_maps along which x differs between devices."""
    aval = jax.typeof(x)
    manual = getattr(aval, "manual_axis_type", None)  # since 0.10
    return frozenset(aval.vma if manual is None else manual.varying)


def _vary(x: jax.Array, axes: tuple[str, ...]) -> jax.Array:
    lax.axis_size(axes)  # NameError outside their shard_map, where jax before 0.10 takes any name
    if hasattr(lax, "pcast"):  # since 0.9
        return lax.pcast(x, axes, to="varying")
    return lax.pvary(x, axes)  # type: ignore[attr-defined]  # gone in 0.10


def mark_varying(x: jax.Array, axes: Iterable[str]) -> jax.Array:
    """x, which to the enclosing shard_map may differ between devices along `axes`, if it did not before."""
    missing = frozenset(axes) - _varying_axes(x)
    return _vary(x, tuple(sorted(missing))) if missing else x


def replicate_explicit_axes(x: jax.Array) -> jax.Array:
    """x without the sharding that an explicit mesh gave it, which its gradient then has again."""
    if all(axis is None for axis in jax.typeof(x).sharding.spec):
        return x
    return jax.sharding.reshard(x, PartitionSpec(*[None] * x.ndim))


def promote_vma(arrays: list[jax.Array]) -> list[jax.Array]:
    """The same arrays as one call can take them: varying along the same axes of a shard_map. The transpose of what is
    inserted here sums the gradient of a replicated operand over the devices."""
    axes = [_varying_axes(x) for x in arrays]
    union = frozenset().union(*axes)
    return [x if own == union else _vary(x, tuple(sorted(union - own))) for x, own in zip(arrays, axes, strict=True)]


def primitives_that_need_devices() -> set:
    """jax' registry of the primitives that are told the devices of a program when they are lowered; private."""
    try:
        from jax._src.dispatch import prim_requires_devices_during_lowering
    except ImportError as error:
        raise NotImplementedError(
            f"raggemm: jax {jax.__version__} does not tell the devices of a program, so that calls cannot be divided"
        ) from error
    return prim_requires_devices_during_lowering


def partitions_program(ctx) -> bool:
    """Returns True if the compiler divides programs that are lowered in this context over the devices of one mesh.

    False under shard_map, on one device, and for jax.export, which cannot keep the rule.
    """
    context = ctx.module_context
    axes = context.axis_context
    if getattr(axes, "num_devices", 1) == 1 or getattr(axes, "device_assignment", None) is None:
        return False
    return getattr(axes, "abstract_mesh", None) is not None and not context.lowering_parameters.for_export


def reshard_like(x: jax.Array, aval: Any) -> jax.Array:
    """x, which is replicated, sharded as the type of another array is on a mesh with explicit axes."""
    spec = aval.sharding.spec
    return x if all(axis is None for axis in spec) else jax.sharding.reshard(x, spec)


def override_was_tested() -> bool:
    """Returns True if the override's tests have passed with this version of jax or another of its minor version."""
    return (0, 8, 1) <= jax.__version_info__[:3] < (0, 13)


def jax_ragged_dot() -> tuple[Any, Any]:
    """JAX' primitive ragged_dot_general, and the function of its arguments and parameters that is its default
    lowering. Both are private; RuntimeError where this jax has them not."""
    from jax._src.lax import lax as private  # not above, for only the override may fail with it

    try:
        return private.ragged_dot_general_p, private._ragged_dot_general_impl
    except AttributeError as error:
        raise RuntimeError(
            f"raggemm's override of ragged_dot needs private parts of jax that jax {jax.__version__} has not: {error}"
        ) from error


def set_globally(context: Any, value: Any) -> None:
    """The value of a context of jax.make_user_context in all threads."""
    setter = context if hasattr(context, "set_global") else context._obj  # 0.8.1 keeps it to itself
    setter.set_global(value)
