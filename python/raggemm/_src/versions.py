"""Hides differences between versions of jax, from 0.8.1 on."""

from collections.abc import Iterable
from typing import Any

import jax
from jax import lax
from jax.sharding import PartitionSpec

# jax.jit(..., inline=INLINE) puts a function's operations into the jaxpr of its caller. Since 0.12, inline=True waits
# until the program is lowered.
INLINE: Any = jax.Inline.JAX_EARLY if hasattr(jax, "Inline") else True


def _varying_axes(x: jax.Array) -> frozenset[str]:
    aval = jax.typeof(x)
    manual = getattr(aval, "manual_axis_type", None)  # since 0.10
    return frozenset(aval.vma if manual is None else manual.varying)


def _vary(x: jax.Array, axes: tuple[str, ...]) -> jax.Array:
    lax.axis_size(axes)  # raises NameError outside of a shard_map over axes
    if hasattr(lax, "pcast"):  # since 0.8.2
        return lax.pcast(x, axes, to="varying")
    return lax.pvary(x, axes)  # type: ignore[attr-defined]  # removed in 0.10


def mark_varying(x: jax.Array, axes: Iterable[str]) -> jax.Array:
    missing = frozenset(axes) - _varying_axes(x)
    return _vary(x, tuple(sorted(missing))) if missing else x


def replicate_explicit_axes(x: jax.Array) -> jax.Array:
    """Returns x replicated over the explicit axes of its mesh. The gradient keeps the sharding of x."""
    if all(axis is None for axis in jax.typeof(x).sharding.spec):
        return x
    return jax.sharding.reshard(x, PartitionSpec(*[None] * x.ndim))


def promote_vma(arrays: list[jax.Array]) -> list[jax.Array]:
    """Marks all arrays as varying along the same axes of the enclosing shard_maps.

    So the gradient of a replicated array is summed over the devices.
    """
    axes = [_varying_axes(x) for x in arrays]
    union = frozenset().union(*axes)
    return [x if own == union else _vary(x, tuple(sorted(union - own))) for x, own in zip(arrays, axes, strict=True)]


def primitives_that_need_devices() -> set:
    try:
        from jax._src.dispatch import prim_requires_devices_during_lowering
    except ImportError as error:
        raise NotImplementedError(
            f"raggemm: jax {jax.__version__} does not tell the devices of a program, so calls cannot be divided"
        ) from error
    return prim_requires_devices_during_lowering


def partitions_program(ctx) -> bool:
    """Returns True if the compiler divides the program that is being lowered over the devices of one mesh.

    Returns False under shard_map, on one device, and for jax.export, which cannot store the partitioning rule.
    """
    context = ctx.module_context
    axes = context.axis_context
    if getattr(axes, "num_devices", 1) == 1 or getattr(axes, "device_assignment", None) is None:
        return False
    return getattr(axes, "abstract_mesh", None) is not None and not context.lowering_parameters.for_export


def reshard_like(x: jax.Array, aval: Any) -> jax.Array:
    spec = aval.sharding.spec
    return x if all(axis is None for axis in spec) else jax.sharding.reshard(x, spec)


def override_was_tested() -> bool:
    return (0, 8, 1) <= jax.__version_info__[:3] < (0, 13)


def jax_ragged_dot() -> tuple[Any, Any]:
    """Returns JAX's private primitive ragged_dot_general and its default lowering.

    Raises:
      RuntimeError: if this version of jax does not have them.
    """
    from jax._src.lax import lax as private  # private: only the override imports it

    try:
        return private.ragged_dot_general_p, private._ragged_dot_general_impl
    except AttributeError as error:
        raise RuntimeError(
            f"raggemm's override of ragged_dot needs private parts of jax that jax {jax.__version__} lacks: {error}"
        ) from error


def set_globally(context: Any, value: Any) -> None:
    setter = context if hasattr(context, "set_global") else context._obj  # 0.8.1 has no public setter
    setter.set_global(value)
