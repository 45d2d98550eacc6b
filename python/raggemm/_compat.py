"""Everything that differs between the versions of jax that are supported, 0.8.1 and later."""

import jax
from jax import lax
from jax.sharding import PartitionSpec


def _varying_axes(x: jax.Array) -> frozenset[str]:
    """Axes of the enclosing shard_maps along which x differs between devices."""
    aval = jax.typeof(x)
    manual = getattr(aval, "manual_axis_type", None)  # since 0.10
    return frozenset(aval.vma if manual is None else manual.varying)


def _vary(x: jax.Array, axes: tuple[str, ...]) -> jax.Array:
    if hasattr(lax, "pcast"):  # since 0.9
        return lax.pcast(x, axes, to="varying")
    return lax.pvary(x, axes)  # type: ignore[attr-defined]  # gone in 0.10


def _gathered(x: jax.Array) -> jax.Array:
    """x without the sharding that an explicit mesh gave it."""
    if all(axis is None for axis in jax.typeof(x).sharding.spec):
        return x
    return jax.sharding.reshard(x, PartitionSpec(*[None] * x.ndim))


def aligned(arrays: list[jax.Array]) -> list[jax.Array]:
    """The same arrays as one call can take them: varying along the same axes of a shard_map, gathered where a mesh
    with explicit axes divides them.

    The transposes of what is inserted here sum the gradient of a replicated operand over the devices, and shard that
    of a sharded one.
    """
    arrays = [_gathered(x) for x in arrays]
    varying = [_varying_axes(x) for x in arrays]
    union = frozenset().union(*varying)
    return [
        x if union == axes else _vary(x, tuple(sorted(union - axes))) for x, axes in zip(arrays, varying, strict=True)
    ]
