"""Everything that differs between the versions of jax that are supported, 0.8.1 and later."""

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
    if hasattr(lax, "pcast"):  # since 0.9
        return lax.pcast(x, axes, to="varying")
    return lax.pvary(x, axes)


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


def sharded_as(x: jax.Array, aval: Any) -> jax.Array:
    """x, which is replicated, sharded as the type of another array is on a mesh with explicit axes."""
    spec = aval.sharding.spec
    return x if all(axis is None for axis in spec) else jax.sharding.reshard(x, spec)


def ragged_dot_of_jax() -> tuple[Any, Any]:
    """JAX' primitive ragged_dot_general, and the function of its arguments and parameters that is its default
    lowering. Both are private, and RuntimeError is raised for versions that this was not tried with."""
    first, after = (0, 8, 1), (0, 11)
    if not first <= jax.__version_info__[:3] < after:
        raise RuntimeError(
            f"raggemm's override of ragged_dot is for jax 0.8.1 and later, before 0.11; this is jax {jax.__version__}"
        )
    from jax._src.lax import lax as private  # not above, for only the override may fail with it

    return private.ragged_dot_general_p, private._ragged_dot_general_impl


def set_globally(context: Any, value: Any) -> None:
    """The value of a context of jax.make_user_context in all threads."""
    setter = context if hasattr(context, "set_global") else context._obj  # 0.8.1 keeps it to itself
    setter.set_global(value)
