"""Everything that differs between the versions of jax that are supported, 0.8.1 and later."""

import jax
from jax import lax


def _varying_axes(x: jax.Array) -> frozenset[str]:
    """Axes of the enclosing shard_maps along which x differs between devices."""
    aval = jax.typeof(x)
    manual = getattr(aval, "manual_axis_type", None)  # since 0.10
    return frozenset(aval.vma if manual is None else manual.varying)


def _vary(x: jax.Array, axes: tuple[str, ...]) -> jax.Array:
    if hasattr(lax, "pcast"):  # since 0.9
        return lax.pcast(x, axes, to="varying")
    return lax.pvary(x, axes)


def align_varying(arrays: list[jax.Array]) -> list[jax.Array]:
    """The same arrays, all varying along the same axes, as a primitive under shard_map needs them.

    The transpose of what is inserted here sums the gradient of a replicated operand over the devices.
    """
    varying = [_varying_axes(x) for x in arrays]
    union = frozenset().union(*varying)
    return [
        x if union == axes else _vary(x, tuple(sorted(union - axes))) for x, axes in zip(arrays, varying, strict=True)
    ]
