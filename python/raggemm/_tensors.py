"""Arrays and quantized arrays as operands: what they may be, and their checks."""

import dataclasses
import functools
from collections.abc import Iterable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from raggemm._primitive.call import FLOATS, INTEGER_ELEMENTS, MATRICES, QUANTIZED, SCALES, listed


@functools.partial(jax.tree_util.register_dataclass, data_fields=("data", "scale", "zero_point"), meta_fields=())
@dataclasses.dataclass(frozen=True)
class QuantizedTensor:
    """An array of few bits an element, which stands for (data - zero_point) * scale.

    data is of int8, uint8, int4, uint4, int2, float8_e4m3fn, float8_e5m2 or float4_e2m1fn.

    scale is None, which is 1, or an array of float32, bfloat16, float16, float8_e8m0fnu or float8_e4m3fn, of shape
    - (): one for all;
    - [G]: one for each group, which is axis 0 of data with three axes or more, and the groups of rows that group sizes
      make of data [M,K];
    - data's rank: each extent divides data's, whose blocks of equal size share a value. Of data [G,K,N]: [G,1,N] is one
      for each column of each group, [1,1,N] for each column of all groups, [G,K/32,N] for 32 along K.

    zero_point is None, which is 0, or an array of data's own dtype, an integer, of any shape that a scale may have.

    It holds whatever it is given, as every pytree must. Functions that take one check it: TypeError for a wrong dtype,
    ValueError for a wrong shape. They also take what has qvalue, scale and zero_point instead, as qwix' QArray.
    """

    data: Any
    scale: Any = None
    zero_point: Any = None

    @property
    def shape(self) -> tuple[int, ...]:
        return self.data.shape

    @property
    def ndim(self) -> int:
        return self.data.ndim

    @property
    def dtype(self) -> np.dtype:
        """The one of data."""
        return self.data.dtype


def is_quantized(x: Any) -> bool:
    """Whether it is a QuantizedTensor, or has the fields of qwix' QArray."""
    return isinstance(x, QuantizedTensor) or (hasattr(x, "qvalue") and hasattr(x, "scale"))


def array(name: str, x: Any) -> jax.Array:
    if is_quantized(x):
        raise TypeError(f"{name}: is a {type(x).__name__}, must be an array")
    return jnp.asarray(x)


def float_array(name: str, x: Any, allowed: Iterable[np.dtype] = FLOATS) -> jax.Array:
    x = array(name, x)
    check_type(name, x.dtype, allowed)
    return x


def matrix_array(name: str, x: Any) -> jax.Array:
    return float_array(name, x, MATRICES)


class Factors(NamedTuple):
    """Those of an operand that is a QuantizedTensor, as its caller has them."""

    scale: jax.Array | None
    zero: jax.Array | None


def quantized_parts(name: str, x: Any) -> tuple[jax.Array, Factors | None]:
    """The elements and factors of a QuantizedTensor, or an array and None. Elements have no derivative, and no scale
    of float8_e8m0fnu has one, which has neither zero nor sign."""
    if not is_quantized(x):
        return matrix_array(name, x), None
    x = checked(name, x)
    is_constant = x.scale is not None and x.scale.dtype == jnp.float8_e8m0fnu
    scale = jax.lax.stop_gradient(x.scale) if is_constant else x.scale
    return jax.lax.stop_gradient(x.data), Factors(scale, x.zero_point)


def checked(name: str, tensor: Any) -> QuantizedTensor:
    """A QuantizedTensor, or what has the fields of qwix' QArray, as a QuantizedTensor of JAX arrays. Raises TypeError
    and ValueError as QuantizedTensor says, with `name`."""
    if not is_quantized(tensor):
        raise TypeError(f"{name}: is {type(tensor).__name__}, must be a QuantizedTensor")
    field = "data" if isinstance(tensor, QuantizedTensor) else "qvalue"
    if getattr(tensor, "qtype", None) == "nf4":  # the one logical type of qwix whose elements are not numbers
        raise TypeError(f"{name}: qtype is nf4, whose elements are places in a table; dequantize it before the call")
    data = float_array(f"{name}.{field}", getattr(tensor, field), QUANTIZED)
    scale, zero_point = tensor.scale, getattr(tensor, "zero_point", None)
    if scale is not None:
        scale = float_array(f"{name}.scale", scale, SCALES)
        _check_shape(f"{name}.scale", scale.shape, data.shape)
    if zero_point is not None:
        check_type(f"{name}.{field}: with a zero_point", data.dtype, INTEGER_ELEMENTS)
        zero_point = float_array(f"{name}.zero_point", zero_point, (data.dtype,))
        _check_shape(f"{name}.zero_point", zero_point.shape, data.shape)
    return QuantizedTensor(data, scale, zero_point)


def _check_shape(name: str, shape: tuple[int, ...], data: tuple[int, ...]) -> None:
    if shape == () or (len(shape) == 1 < len(data) and (len(data) == 2 or shape == data[:1])):
        return
    if len(shape) != len(data):
        groups = "[G]" if len(data) == 2 else f"({', '.join(map(str, data[:1]))},)"
        raise ValueError(f"{name}: shape is {shape}, must be (), {groups} or have the {len(data)} axes of data {data}")
    for axis, (count, extent) in enumerate(zip(shape, data, strict=True)):
        if count != extent and (count == 0 or extent % count):
            raise ValueError(f"{name}: axis {axis} of shape {shape} is {count}, must divide {extent} of data {data}")


def check_type(name: str, dtype: Any, allowed: Iterable[np.dtype]) -> None:
    if dtype not in allowed:
        raise TypeError(f"{name}: dtype is {dtype}, must be {listed(allowed)}")
