"""Arrays and quantized arrays as operands: what they may be, and their checks."""

import dataclasses
import functools
import operator
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from raggemm._functions.containers import Container, indexed
from raggemm._primitive.call import BYTES, FLOATS, INTEGER_ELEMENTS, MATRICES, QUANTIZED, SCALES, listed

# Version of the layout of PackedWeights; another layout gets another number.
PACKED_VERSION = 1


@functools.partial(jax.tree_util.register_dataclass, data_fields=("data", "scale", "zero_point"), meta_fields=())
@dataclasses.dataclass(frozen=True, repr=False)
class QuantizedTensor(Container):
    """An array of few bits an element, which stands for (data - zero_point) * scale.

    data is of int8, uint8, int4, uint4, int2, float8_e4m3fn, float8_e5m2 or float4_e2m1fn.

    scale is None, which is 1, or an array of float32, bfloat16, float16, float8_e8m0fnu or float8_e4m3fn, of shape
    - (): one for all;
    - [G]: one for each group, which is axis 0 of data with three axes or more, and the groups of rows that group sizes
      make of data [M,K];
    - data's rank: each extent divides data's, whose blocks of equal size share a value. Of data [G,K,N]: [G,1,N] is one
      for each column of each group, [1,1,N] for each column of all groups, [G,K/32,N] for 32 along K.

    A product multiplies elements by a scale that differs along K. Beside bfloat16 rows such an element counts as 0 if
    it is below 2^-126, unless raggemm.options(bf16_sums="fma") is in effect. Beside rows of any type it is infinite
    from 2^128 on. Scales of float8_e8m0fnu reach both ends: MXFP4 with codes 0 and 1, and with 253 and 254
    (docs/quantized.md).

    zero_point is None, which is 0, or an array of data's own dtype, an integer, of any shape that a scale may have.

    It holds whatever it is given, as every pytree must. Functions that take one check it: TypeError for a wrong dtype,
    ValueError for a wrong shape. They also take what has qvalue, scale and zero_point instead, as qwix' QArray.

    tensor[index] is the part of it along axis 0, such as the experts of data [G,K,N]: a QuantizedTensor of data[index]
    and of the scales and zero points that belong to it, those that all share as they are. index is an integer, which
    drops the axis, a slice, or an array of integers or bools with one axis; a traced integer is clamped, as of any JAX
    array. All else is a TypeError; IndexError for an integer that is out of range, and where several rows share a
    scale, but not all. len and iteration are along that axis too.

    flax.serialization saves and restores one, as the dict of its fields, where flax was imported before it was made.
    """

    data: Any
    scale: Any = None
    zero_point: Any = None

    def __getitem__(self, index: Any) -> "QuantizedTensor":
        data, factors = indexed(self.data, {"scale": self.scale, "zero_point": self.zero_point}, index)
        return QuantizedTensor(data, **factors)

    def __len__(self) -> int:
        return len(self.data)

    def __iter__(self) -> "Iterator[QuantizedTensor]":
        return (self[i] for i in range(len(self)))

    def __array__(self, *_: Any, **__: Any) -> np.ndarray:
        """Keeps NumPy from taking it for a sequence."""
        raise TypeError("a QuantizedTensor is no array; raggemm.dequantize makes one of it")

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


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=("data", "scale", "zero_point"),
    meta_fields=("columns", "transposed", "quantized", "version"),
)
@dataclasses.dataclass(frozen=True, repr=False)
class PackedWeights(Container):
    """Weights [G,K,N] as prepack makes them: in blocks of B columns, so that kernels read them from end to end.

        data [G,T,K,B]    of each group T = ceil(N/B) blocks, each K rows of B columns one after the other; zeros
                          behind column N. B is a power of two, 32 to 256.

    Every instruction set reads it. scale and zero_point are those of a QuantizedTensor [G,K,N]. The rest is static:
    columns is N, transposed and quantized say what unprepack gives back, version that of the layout.

    A pytree of plain arrays: it can be saved, by flax.serialization as a QuantizedTensor is, donated, and sharded along
    G, the first axis of data.
    """

    data: Any
    scale: Any = None
    zero_point: Any = None
    columns: int = 0
    transposed: bool = False
    quantized: bool = False
    version: int = PACKED_VERSION

    @property
    def shape(self) -> tuple[int, ...]:
        """[G,K,N]."""
        return (*self.data.shape[:-3], self.data.shape[-2], self.columns)

    @property
    def ndim(self) -> int:
        return self.data.ndim - 1

    @property
    def dtype(self) -> np.dtype:
        return self.data.dtype


def integer(name: str, x: Any) -> int:
    """A Python or NumPy integer; TypeError for all else."""
    try:
        return operator.index(x)
    except TypeError:
        hint = " that is known when tracing, as one of jax.jit's static_argnums or static_argnames is"
        traced = isinstance(x, jax.core.Tracer)
        raise TypeError(f"{name} is {x!r}, must be {f'a Python integer{hint}' if traced else 'an integer'}") from None


def count(name: str, x: Any, least: int) -> int:
    """An integer from `least` on that int32 holds."""
    n, most = integer(name, x), np.iinfo(np.int32).max
    if not least <= n <= most:
        raise ValueError(f"{name} is {n}, must be at {f'least {least}' if n < least else f'most {most}'}")
    return n


def flag(name: str, x: Any) -> bool:
    """Only what is one: texts and arrays would count as true, or not be told by their value."""
    if not isinstance(x, bool | np.bool_ | int):
        raise TypeError(f"{name} is {x!r}, must be True or False")
    return bool(x)


def choice(name: str, x: Any, allowed: Iterable[str | None]) -> Any:
    """x, where it is one of these."""
    if not isinstance(x, str | None) or x not in (allowed := tuple(allowed)):
        raise ValueError(f"{name} is {x!r}, must be one of {', '.join(map(repr, allowed))}")
    return x


def dtype_of(name: str, x: Any) -> np.dtype:
    """What names a dtype, of which None, float64 to NumPy, is none."""
    try:
        if x is not None:
            return np.dtype(x)
    except (TypeError, ValueError):
        pass
    raise TypeError(f"{name} is {x!r}, must be a dtype")


def elements_dtype(name: str, x: Any) -> np.dtype:
    """The dtype of a QuantizedTensor's data that it names."""
    dtype = dtype_of(name, x)
    check_type(name, dtype, QUANTIZED)
    return dtype


def is_quantized(x: Any) -> bool:
    """Whether it is a QuantizedTensor, or has the fields of qwix' QArray."""
    return isinstance(x, QuantizedTensor) or (hasattr(x, "qvalue") and hasattr(x, "scale"))


def check_is_plain(name: str, x: Any) -> None:
    """TypeError for what is made of arrays."""
    if is_quantized(x) or isinstance(x, PackedWeights):
        raise TypeError(f"{name}: is a {type(x).__name__}, must be an array")


def array(name: str, x: Any) -> jax.Array:
    check_is_plain(name, x)
    try:
        return jnp.asarray(x)
    except OverflowError as error:
        raise ValueError(f"{name}: {error}") from None
    except (TypeError, ValueError) as error:
        raise TypeError(f"{name}: is a {type(x).__name__}, must be an array") from error


def float_array(name: str, x: Any, allowed: Iterable[np.dtype] = FLOATS) -> jax.Array:
    x = array(name, x)
    check_type(name, x.dtype, allowed)
    return x


STAND_FOR_NUMBERS = "; elements that stand for numbers are a QuantizedTensor's"


def matrix_array(name: str, x: Any, allowed: Iterable[np.dtype] = MATRICES) -> jax.Array:
    """An array of one of the allowed types. Bytes are multiplied by bytes only, and the error says so."""
    x, allowed = array(name, x), tuple(allowed)
    if x.dtype not in allowed:
        pair = listed(BYTES)
        bytes_too = f", or {pair} beside {pair}" if set(BYTES) <= set(allowed) else ""
        hint = STAND_FOR_NUMBERS if x.dtype in QUANTIZED else ""
        floats = listed(dtype for dtype in allowed if dtype not in BYTES)
        raise TypeError(f"{name}: dtype is {x.dtype}, must be {floats}{bytes_too}{hint}")
    return x


def nibbles_hint(dtype: Any, extent: int, wanted: int) -> str:
    """Returns a hint if an axis of bytes has half of the elements that are wanted, else nothing."""
    if dtype not in BYTES or extent == 0 or 2 * extent != wanted:
        return ""
    return (
        f"; {dtype} is one element in each byte: if a byte holds two elements of 4 bits, make int4 or uint4 of them "
        "first, with jax.lax.bitcast_convert_type"
    )


class Factors(NamedTuple):
    """Those of an operand that is a QuantizedTensor, as its caller has them."""

    scale: jax.Array | None
    zero: jax.Array | None


def quantized_parts(name: str, x: Any, allowed: Iterable[np.dtype] = MATRICES) -> tuple[jax.Array, Factors | None]:
    """The elements and factors of a QuantizedTensor, or an array of one of the allowed types and None. Elements have no
    derivative, and no scale of float8_e8m0fnu has one, which has neither zero nor sign."""
    if not is_quantized(x):
        return matrix_array(name, x, allowed), None
    return _parts(checked(name, x))


def _parts(x: QuantizedTensor) -> tuple[jax.Array, Factors]:
    is_constant = x.scale is not None and x.scale.dtype == jnp.float8_e8m0fnu
    scale = jax.lax.stop_gradient(x.scale) if is_constant else x.scale
    return jax.lax.stop_gradient(x.data), Factors(scale, x.zero_point)


def weight_parts(
    name: str, x: Any, allowed: Iterable[np.dtype] = MATRICES
) -> tuple[jax.Array, Factors | None, int | None]:
    """As quantized_parts, of what may also be PackedWeights, and the columns of those: data is [G,T,K,B] then."""
    if not isinstance(x, PackedWeights):
        return *quantized_parts(name, x, allowed), None
    packed = checked_packed(name, x, tuple(dtype for dtype in allowed if dtype in FLOATS))
    if not packed.quantized:
        return packed.data, None, packed.columns
    return *_parts(QuantizedTensor(packed.data, packed.scale, packed.zero_point)), packed.columns


def checked_packed(name: str, x: Any, floats: Iterable[np.dtype] = FLOATS) -> PackedWeights:
    """PackedWeights of JAX arrays, of these floats if not quantized. Raises TypeError and ValueError where prepack
    makes no such."""
    if not isinstance(x, PackedWeights):
        raise TypeError(f"{name}: is {type(x).__name__}, must be PackedWeights")
    if x.version != PACKED_VERSION:
        raise ValueError(
            f"{name}: is packed by version {x.version} of the layout, this raggemm reads version {PACKED_VERSION}; "
            "unprepack it with the raggemm that packed it, then pack it with this one"
        )
    data = float_array(f"{name}.data", x.data, QUANTIZED if x.quantized else floats)
    width, columns = data.shape[-1] if data.ndim == 4 else 0, integer(f"{name}.columns", x.columns)
    if width not in (32, 64, 128, 256) or data.shape[1] != -(-columns // width):
        raise ValueError(f"{name}.data: shape is {data.shape}, must be [G,T,K,B] with T blocks for {columns} columns")
    scale, zero_point = x.scale, x.zero_point
    if scale is not None or zero_point is not None:
        scale, zero_point = _checked_factors(name, scale, zero_point, data.dtype, x.shape)
    return dataclasses.replace(x, data=data, scale=scale, zero_point=zero_point)


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
    return QuantizedTensor(data, *_checked_factors(name, scale, zero_point, data.dtype, data.shape, field))


def _checked_factors(
    name: str, scale: Any, zero_point: Any, dtype: np.dtype, shape: tuple[int, ...], field: str = "data"
) -> tuple[jax.Array | None, jax.Array | None]:
    if scale is not None:
        scale = float_array(f"{name}.scale", scale, SCALES)
        _check_shape(f"{name}.scale", scale.shape, shape, dtype)
    if zero_point is not None:
        check_type(f"{name}.{field}: with a zero_point", dtype, INTEGER_ELEMENTS)
        zero_point = float_array(f"{name}.zero_point", zero_point, (dtype,))
        _check_shape(f"{name}.zero_point", zero_point.shape, shape, dtype)
    return scale, zero_point


def _check_shape(name: str, shape: tuple[int, ...], data: tuple[int, ...], dtype: Any) -> None:
    """Raises ValueError unless scales or zero points of `shape` fit elements of shape `data` and of `dtype`."""
    if shape == () or (len(shape) == 1 < len(data) and (len(data) == 2 or shape == data[:1])):
        return
    if len(shape) != len(data):
        groups = "[G]" if len(data) == 2 else f"({', '.join(map(str, data[:1]))},)"
        raise ValueError(f"{name}: shape is {shape}, must be (), {groups} or have the {len(data)} axes of data {data}")
    for axis, (count, extent) in enumerate(zip(shape, data, strict=True)):
        if count != extent and (count == 0 or extent % count):
            hint = nibbles_hint(dtype, extent, count)
            said = f"{name}: axis {axis} of shape {shape} is {count}, must divide {extent} of data {data}"
            raise ValueError(f"{said}{hint}")


def check_type(name: str, dtype: Any, allowed: Iterable[np.dtype]) -> None:
    if dtype not in allowed:
        raise TypeError(f"{name}: dtype is {dtype}, must be {listed(allowed)}")
