"""What dataclasses of arrays have in common: a short repr, a form in which flax saves them; and one along axis 0."""

import dataclasses
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from raggemm._primitive.call import FLOATS, QUANTIZED, elements_of_a_byte


def _text(x: Any) -> str:
    """dtype[shape] of an array or what stands for one, the repr of all else that a pytree may hold."""
    shape, dtype = getattr(x, "shape", None), getattr(x, "dtype", None)
    if isinstance(x, Container) or dtype is None or not isinstance(shape, tuple):
        return repr(x)
    return f"{'float0' if dtype == jax.dtypes.float0 else dtype}[{','.join(map(str, shape))}]"


class Container:
    """Base of dataclasses: shows shapes and no numbers, and is saved by flax.serialization as a dict of its fields."""

    def __repr__(self) -> str:
        parts = (f"{name}={_text(x)}" for name, x in _fields(self).items() if x is not None)
        return f"{type(self).__name__}({', '.join(parts)})"

    def __post_init__(self) -> None:
        """Registers the class with flax.serialization, once a program has imported that: it knows types by a table
        alone, and importing it here would take seconds of every program."""
        flax = sys.modules.get("flax.serialization")
        # Without to_bytes it is being imported, by another thread.
        if flax is not None and hasattr(flax, "to_bytes") and not flax.is_serializable(type(self)):
            flax.register_serialization_state(type(self), _state, _restored, override=True)


def _fields(x: Any) -> dict[str, Any]:
    return {field.name: getattr(x, field.name) for field in dataclasses.fields(x)}


def _state(x: Any) -> dict[str, Any]:
    to_state = sys.modules["flax.serialization"].to_state_dict
    return {name: to_state(part) for name, part in _fields(x).items()}


def _restored(target: Any, state: dict[str, Any]) -> Any:
    """What was saved, its static fields too; nested ones as the target's are."""
    own = _fields(target)
    if set(own) != set(state):
        raise ValueError(f"{type(target).__name__} has the fields {list(own)}, what was saved {list(state)}")
    from_state = sys.modules["flax.serialization"].from_state_dict
    return dataclasses.replace(target, **{name: from_state(own[name], x, name) for name, x in state.items()})


def _is_array(index: Any) -> bool:
    """Of integers, or of bools along one axis."""
    if not isinstance(index, np.ndarray | jax.Array) or index.ndim > 1:
        return False
    return jnp.issubdtype(index.dtype, jnp.integer) or (index.dtype == bool and index.ndim == 1)


def _checked(index: Any, extent: int) -> Any:
    """What an array takes along its axis 0, too."""
    if isinstance(index, int | np.integer) and not isinstance(index, bool):
        if not -extent <= index < extent:
            raise IndexError(f"index is {index}, must be in [{-extent}, {extent}), the extent of axis 0")
    elif not isinstance(index, slice) and not _is_array(index):
        raise TypeError(
            f"index is {index!r}, must be an integer, a slice, or an array of integers or bools with at most one axis: "
            "only axis 0 is indexed"
        )
    return index


def as_bits(x: jax.Array) -> jax.Array:
    """Elements of quantized formats as integers, for whatever moves floats of eight bits may change a NaN."""
    if x.dtype in FLOATS or x.dtype not in QUANTIZED:
        return x
    return lax.bitcast_convert_type(x, {1: jnp.uint8, 2: jnp.uint4, 4: jnp.uint2}[elements_of_a_byte(x.dtype)])


def _taken(x: Any, index: Any) -> Any:
    return (jnp.asarray(x) if isinstance(index, jax.Array) else x)[index]


def _elements(data: Any, index: Any) -> Any:
    """Have no derivative, which would be lost here."""
    if isinstance(data, np.ndarray) and not isinstance(index, jax.Array):
        return data[index]
    bits = as_bits(jnp.asarray(data))[index]
    return bits if bits.dtype == data.dtype else lax.bitcast_convert_type(bits, data.dtype)


def indexed(data: Any, factors: dict[str, Any], index: Any) -> tuple[Any, dict[str, Any]]:
    """data[index] along axis 0, and the factors, in any shape that a QuantizedTensor's scale may have, that belong to
    it."""
    shape = jnp.shape(data)
    if not shape:
        raise IndexError("data has no axis to index")
    index = _checked(index, shape[0])
    drops = not isinstance(index, slice) and np.ndim(index) == 0

    def of_factor(name: str, factor: Any) -> Any:
        own = () if factor is None else jnp.shape(factor)
        if own == ():
            return factor
        if own[0] == shape[0] and (len(own) == len(shape) or len(own) == 1 < len(shape) - 1):
            return _taken(factor, index)
        if own[0] == 1 and len(own) == len(shape):
            return _taken(factor, 0) if drops else factor
        raise IndexError(f"{name}: shape is {own} with data {shape}, of which no index along axis 0 takes a part")

    return _elements(data, index), {name: of_factor(name, x) for name, x in factors.items()}
