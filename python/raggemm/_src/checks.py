"""Checks of single arguments. Errors name the argument, its value and the allowed values."""

import dataclasses
import operator
import warnings
from collections.abc import Iterable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from raggemm._src.call import BLOCKED, STRIDED, WORD_BLOCKS, WORD_COLUMNS, WORD_ROWS
from raggemm._src.dtypes import (
    BYTES,
    FLOATS,
    INTEGER_ELEMENTS,
    INTEGERS,
    MATRICES,
    QUANTIZED,
    SCALES,
    WORD_ELEMENTS,
    format_dtypes,
)
from raggemm._src.tensors import PACKED_VERSION, PackedWeights, QuantizedTensor


def check_integer(name: str, x: Any) -> int:
    try:
        return operator.index(x)
    except TypeError:
        hint = " that is known when tracing, such as an argument in static_argnums or static_argnames of jax.jit"
        traced = isinstance(x, jax.core.Tracer)
        raise TypeError(f"{name} is {x!r}, must be {f'a Python integer{hint}' if traced else 'an integer'}") from None


def check_count(name: str, x: Any, least: int) -> int:
    """Returns x as an int. Rejects numbers outside of [least, 2^31 - 1]."""
    n, most = check_integer(name, x), np.iinfo(np.int32).max
    if not least <= n <= most:
        raise ValueError(f"{name} is {n}, must be at {f'least {least}' if n < least else f'most {most}'}")
    return n


def check_bool(name: str, x: Any) -> bool:
    if not isinstance(x, bool | np.bool_ | int):
        raise TypeError(f"{name} is {x!r}, must be True or False")
    return bool(x)


def check_choice(name: str, x: Any, allowed: Iterable[str | None]) -> Any:
    if not isinstance(x, str | None) or x not in (allowed := tuple(allowed)):
        raise ValueError(f"{name} is {x!r}, must be one of {', '.join(map(repr, allowed))}")
    return x


def as_dtype(name: str, x: Any, allowed: Iterable[np.dtype] | None = None) -> np.dtype:
    """Returns the dtype that x names. Rejects None, which is float64 to NumPy."""
    try:
        dtype = None if x is None else np.dtype(x)
    except (TypeError, ValueError):
        dtype = None
    if dtype is None:
        raise TypeError(f"{name} is {x!r}, must be a dtype")
    return dtype if allowed is None else check_dtype(name, dtype, allowed)


def is_quantized(x: Any) -> bool:
    return isinstance(x, QuantizedTensor) or (hasattr(x, "qvalue") and hasattr(x, "scale"))


def check_is_array(name: str, x: Any) -> None:
    if is_quantized(x) or isinstance(x, PackedWeights):
        raise TypeError(f"{name}: is a {type(x).__name__}, must be an array")


def as_array(name: str, x: Any) -> jax.Array:
    """Converts x to a JAX array. Rejects QuantizedTensor and PackedWeights."""
    check_is_array(name, x)
    try:
        return jnp.asarray(x)
    except OverflowError as error:
        raise ValueError(f"{name}: {error}") from None
    except (TypeError, ValueError) as error:
        raise TypeError(f"{name}: is a {type(x).__name__}, must be an array") from error


def as_float_array(name: str, x: Any, allowed: Iterable[np.dtype] = FLOATS) -> jax.Array:
    x = as_array(name, x)
    check_dtype(name, x.dtype, allowed)
    return x


QUANTIZED_TENSOR_HINT = "; pass quantized elements as a QuantizedTensor"


def as_matrix(name: str, x: Any, allowed: Iterable[np.dtype] = MATRICES) -> jax.Array:
    x, allowed = as_array(name, x), tuple(allowed)
    if x.dtype not in allowed:
        pair = format_dtypes(BYTES)
        bytes_too = f", or {pair} for both operands" if set(BYTES) <= set(allowed) else ""
        hint = QUANTIZED_TENSOR_HINT if x.dtype in QUANTIZED else ""
        floats = format_dtypes(dtype for dtype in allowed if dtype not in BYTES)
        raise TypeError(f"{name}: dtype is {x.dtype}, must be {floats}{bytes_too}{hint}")
    return x


def check_rank(name: str, x: Any, axes: str) -> Any:
    if len(x.shape) != len(axes.split(",")):
        raise ValueError(f"{name}: shape is {x.shape}, must be [{axes}]")
    return x


def check_shape(name: str, x: Any, *wanted: tuple[int, ...], why: str = "", error: type[Exception] = ValueError) -> Any:
    if x.shape not in wanted:
        raise error(f"{name}: shape is {x.shape}, must be {' or '.join(map(str, wanted))}{why}")
    return x


def as_group_offset(x: Any, error: type[Exception] = ValueError) -> jax.Array:
    return check_shape("group_offset", as_integer_array("group_offset", x), (), (1,), error=error)


def as_group_sizes(x: Any, name: str = "group_sizes") -> jax.Array:
    return check_rank(name, as_integer_array(name, x), "G")


def packed_int4_hint(dtype: Any, extent: int, wanted: int) -> str:
    """Returns a hint for an error message if an array seems to hold two 4-bit elements per byte, else ""."""
    if dtype not in BYTES or extent == 0 or 2 * extent != wanted:
        return ""
    return (
        f"; {dtype} has one element in each byte: if a byte holds two elements of 4 bits, convert the array to int4 or "
        "uint4 first, with jax.lax.bitcast_convert_type"
    )


class QuantParams(NamedTuple):
    """Scale and zero point of a quantized operand, in the shapes that a QuantizedTensor allows."""

    scale: jax.Array | None
    zero: jax.Array | None


def split_quantized(name: str, x: Any, allowed: Iterable[np.dtype] = MATRICES) -> tuple[jax.Array, QuantParams | None]:
    """Returns the elements and the QuantParams of x, or x and None if x is an array.

    Quantized elements get no derivative. Neither do float8_e8m0fnu scales: this type has no zero and no sign.
    """
    if not is_quantized(x):
        return as_matrix(name, x, allowed), None
    return _split_tensor(as_quantized_tensor(name, x))


def _split_tensor(x: QuantizedTensor) -> tuple[jax.Array, QuantParams]:
    is_constant = x.scale is not None and x.scale.dtype == jnp.float8_e8m0fnu
    scale = jax.lax.stop_gradient(x.scale) if is_constant else x.scale
    return jax.lax.stop_gradient(x.data), QuantParams(scale, x.zero_point)


class Weights(NamedTuple):
    """The parts of weights. The elements of PackedWeights are [G,T,K,B]."""

    data: jax.Array
    params: QuantParams | None  # None: not quantized
    columns: int | None = None  # number of columns N of PackedWeights; None: not packed
    layout: str = STRIDED


def split_weights(name: str, x: Any, allowed: Iterable[np.dtype] = MATRICES) -> Weights:
    """Splits weights like split_quantized. Also takes PackedWeights."""
    if not isinstance(x, PackedWeights):
        return Weights(*split_quantized(name, x, allowed))
    packed = as_packed_weights(name, x, tuple(dtype for dtype in allowed if dtype in FLOATS))
    if not packed.quantized:
        return Weights(packed.data, None, packed.columns, packed.layout)
    tensor = QuantizedTensor(packed.data, packed.scale, packed.zero_point)
    return Weights(*_split_tensor(tensor), packed.columns, packed.layout)


def check_takes_layout(name: str, layout: str, rounds_rows: bool, option: str = "lhs_quantize") -> None:
    """Raises ValueError for weights in WORD_BLOCKS unless the call quantizes rows. option: the argument for that."""
    if layout == WORD_BLOCKS and not rounds_rows:
        raise ValueError(
            f"{name}: is prepacked with lhs_quantize=int8, for products with {option}=int8; give {option}=jnp.int8, or "
            "unprepack the weights"
        )


def as_packed_weights(name: str, x: Any, floats: Iterable[np.dtype] = FLOATS) -> PackedWeights:
    """Checks PackedWeights. floats: allowed dtypes of data that is not quantized."""
    if not isinstance(x, PackedWeights):
        raise TypeError(f"{name}: is {type(x).__name__}, must be PackedWeights")
    if x.version != PACKED_VERSION:
        raise ValueError(
            f"{name}: is packed by version {x.version} of the layout, this raggemm reads version {PACKED_VERSION}; "
            "unprepack it with the raggemm that packed it, then pack it with this one"
        )
    in_words = check_choice(f"{name}.layout", x.layout, BLOCKED) == WORD_BLOCKS
    data = as_float_array(f"{name}.data", x.data, WORD_ELEMENTS if in_words else QUANTIZED if x.quantized else floats)
    width, columns = data.shape[-1] if data.ndim == 4 else 0, check_integer(f"{name}.columns", x.columns)
    widths = (WORD_COLUMNS,) if in_words else (32, 64, 128, 256)
    if width not in widths or data.shape[1] != -(-columns // width) or (in_words and data.shape[2] % WORD_ROWS):
        axes = f"[G,T,{WORD_ROWS}*n,{WORD_COLUMNS}]" if in_words else "[G,T,K,B]"
        raise ValueError(f"{name}.data: shape is {data.shape}, must be {axes} with T blocks for {columns} columns")
    scale, zero_point = x.scale, x.zero_point
    if scale is not None or zero_point is not None:
        shape = (data.shape[0], data.shape[2], data.shape[1] * WORD_COLUMNS) if in_words else x.shape
        scale, zero_point = _check_scales(name, scale, zero_point, data.dtype, shape)
    return dataclasses.replace(x, data=data, scale=scale, zero_point=zero_point)


def as_quantized_tensor(name: str, tensor: Any) -> QuantizedTensor:
    """Returns a checked QuantizedTensor. Also takes objects with the fields of qwix's QArray."""
    if not is_quantized(tensor):
        raise TypeError(f"{name}: is {type(tensor).__name__}, must be a QuantizedTensor")
    field = "data" if isinstance(tensor, QuantizedTensor) else "qvalue"
    if getattr(tensor, "qtype", None) == "nf4":  # the only qtype of qwix whose elements are not numbers
        raise TypeError(f"{name}: qtype is nf4, whose elements are codebook indices; dequantize it before the call")
    data = as_float_array(f"{name}.{field}", getattr(tensor, field), QUANTIZED)
    scale, zero_point = tensor.scale, getattr(tensor, "zero_point", None)
    return QuantizedTensor(data, *_check_scales(name, scale, zero_point, data.dtype, data.shape, field))


def _check_scales(
    name: str, scale: Any, zero_point: Any, dtype: np.dtype, shape: tuple[int, ...], field: str = "data"
) -> tuple[jax.Array | None, jax.Array | None]:
    if scale is not None:
        scale = as_float_array(f"{name}.scale", scale, SCALES)
        _check_param_shape(f"{name}.scale", scale.shape, shape, dtype)
    if zero_point is not None:
        check_dtype(f"{name}.{field}: with a zero_point", dtype, INTEGER_ELEMENTS)
        zero_point = as_float_array(f"{name}.zero_point", zero_point, (dtype,))
        _check_param_shape(f"{name}.zero_point", zero_point.shape, shape, dtype)
    return scale, zero_point


def _check_param_shape(name: str, shape: tuple[int, ...], data: tuple[int, ...], dtype: Any) -> None:
    if shape == () or (len(shape) == 1 < len(data) and (len(data) == 2 or shape == data[:1])):
        return
    if len(shape) != len(data):
        groups = "[G]" if len(data) == 2 else f"({', '.join(map(str, data[:1]))},)"
        raise ValueError(f"{name}: shape is {shape}, must be (), {groups} or have the {len(data)} axes of data {data}")
    for axis, (count, extent) in enumerate(zip(shape, data, strict=True)):
        if count != extent and (count == 0 or extent % count):
            hint = packed_int4_hint(dtype, extent, count)
            message = f"{name}: axis {axis} of shape {shape} is {count}, must divide {extent} of data {data}"
            raise ValueError(f"{message}{hint}")


def check_dtype(name: str, dtype: Any, allowed: Iterable[np.dtype]) -> Any:
    if dtype not in allowed:
        is_bytes_of_powers = dtype == np.uint8 and allowed is SCALES
        hint = "; bytes of float8_e8m0fnu need .view(ml_dtypes.float8_e8m0fnu)" if is_bytes_of_powers else ""
        raise TypeError(f"{name}: dtype is {dtype}, must be {format_dtypes(allowed)}{hint}")
    return dtype


def result_dtype(preferred: Any, default: Any = None, allowed: Iterable[np.dtype] | None = None) -> np.dtype:
    """Returns `preferred`, or `default` without it, as a dtype that JAX supports.

    Without jax_enable_x64, float64 becomes float32. This causes a warning, unless `preferred` is None or `float`.
    """
    named = default if preferred is None else as_dtype("preferred_element_type", preferred)
    dtype = jax.dtypes.canonicalize_dtype(named)
    if dtype == np.float32 and preferred is not None and preferred is not float and named == np.float64:
        warnings.warn(
            "preferred_element_type: dtype float64 is not available, the result is float32; see jax_enable_x64",
            stacklevel=2,
        )
    return dtype if allowed is None else check_dtype("preferred_element_type", dtype, allowed)


def as_integer_array(name: str, x: Any) -> jax.Array:
    """Returns x as a JAX array of integers. Rejects int64 values that would not fit into JAX's integers."""
    if not isinstance(x, jax.Array):
        check_is_array(name, x)
        x = np.asarray(x)
    if x.dtype not in INTEGERS:
        raise TypeError(f"{name}: dtype is {x.dtype}, must be {format_dtypes(INTEGERS)}")
    if isinstance(x, np.ndarray) and x.dtype == np.int64:
        limits = jnp.iinfo(jax.dtypes.canonicalize_dtype(np.int64))
        wrong = np.flatnonzero((x < limits.min) | (x > limits.max))
        if wrong.size:
            raise ValueError(
                f"{name}: value {x.flat[wrong[0]]} at index {wrong[0]} exceeds {limits.max}; see jax_enable_x64"
            )
    return jnp.asarray(x)


def reshard(out: jax.Array, out_sharding: Any) -> jax.Array:
    if out_sharding is None:
        return out
    if not isinstance(out_sharding, jax.sharding.Sharding | jax.sharding.PartitionSpec):
        raise TypeError(f"out_sharding is {out_sharding!r}, must be a NamedSharding or a PartitionSpec")
    return jax.sharding.reshard(out, out_sharding)
