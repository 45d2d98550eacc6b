"""Weights in other layouts: column blocks, in which kernels read them fastest, and those of checkpoints.

    prepack, unprepack  to and from PackedWeights
    mxfp4_from_blocks   gpt-oss
    fp8_from_blocks     DeepSeek-V3
    int4_from_awq       AutoAWQ, of version "gemm"
    int4_from_gptq      AutoGPTQ and GPTQModel, without act order

A checkpoint's matrix [N,K], or [K,N], may have more axes before these two: all experts in one array.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from raggemm._src import checks
from raggemm._src.call import from_column_blocks, to_column_blocks
from raggemm._src.dtypes import FLOATS, SCALES
from raggemm._src.quantization import E2M1, E8M0
from raggemm._src.tensors import PACKED_VERSION, PackedWeights, QuantizedTensor, as_bits

# Columns of a block, the widest first: the strip of a sweep is up to 256 columns of floats, and up to 128 of quantized
# elements. A wider one is taken where it is padded by at most this share.
_WIDTHS, _LEAST_WIDTH, _LEAST_QUANTIZED_WIDTH = (256, 128, 64), 64, 128
_PADDING = 1 / 16


def _choose_width(columns: int, dtype: np.dtype) -> int:
    least = _LEAST_WIDTH if dtype in FLOATS else _LEAST_QUANTIZED_WIDTH
    fits = (x for x in _WIDTHS if x >= least and -columns % x <= _PADDING * columns)
    return next(fits, least) if columns else least


@functools.partial(jax.jit, static_argnames=("width", "transpose"))
def _pack(data: jax.Array, width: int, transpose: bool) -> jax.Array:
    bits = as_bits(data)
    blocks = to_column_blocks(bits.swapaxes(1, 2) if transpose else bits, width)
    return blocks if bits.dtype == data.dtype else lax.bitcast_convert_type(blocks, data.dtype)


@functools.partial(jax.jit, static_argnames=("columns", "transpose"))
def _unpack(data: jax.Array, columns: int, transpose: bool) -> jax.Array:
    bits = from_column_blocks(as_bits(data), columns)
    bits = bits.swapaxes(1, 2) if transpose else bits
    return bits if bits.dtype == data.dtype else lax.bitcast_convert_type(bits, data.dtype)


def _swap_axes(factor: jax.Array | None, transpose: bool) -> jax.Array | None:
    return factor.swapaxes(1, 2) if transpose and factor is not None and factor.ndim == 3 else factor


def prepack(w: Any, *, transpose: bool = False) -> PackedWeights:
    """The weights of G groups in the layout of PackedWeights.

    Args:
      w: [G,K,N], an array of float16, bfloat16, float32 or float64, or a QuantizedTensor, whose data is packed, and
        whose scale and zero_point stay as they are, but that they are transposed with it.
      transpose: w is stored [G,N,K]. Where it is used it is [G,K,N] all the same.

    Returns:
      PackedWeights of shape [G,K,N]. TypeError for another dtype, ValueError for another shape.

    It copies the weights, under jit too: pack them once, and donate w where nothing else needs it. It has derivatives,
    as a linear function of an array.
    """
    data, factors = checks.split_quantized("w", w, FLOATS)
    transpose = checks.check_bool("transpose", transpose)
    if data.ndim != 3:
        raise ValueError(f"w: shape is {data.shape}, must be [G,{'N,K' if transpose else 'K,N'}]")
    columns = data.shape[1 if transpose else 2]
    return PackedWeights(
        _pack(data, _choose_width(columns, data.dtype), transpose),
        None if factors is None else _swap_axes(factors.scale, transpose),
        None if factors is None else _swap_axes(factors.zero, transpose),
        columns=columns,
        transposed=transpose,
        quantized=factors is not None,
        version=PACKED_VERSION,
    )


def unprepack(packed: PackedWeights) -> Any:
    """Returns the weights that prepack was given, with the same bits: an array, or a QuantizedTensor.

    ValueError as for each use of packed weights, if they are of another version or their arrays are not what prepack
    makes.
    """
    packed = checks.as_packed_weights("packed", packed)
    data = _unpack(packed.data, packed.columns, packed.transposed)
    if not packed.quantized:
        return data
    return QuantizedTensor(
        data, _swap_axes(packed.scale, packed.transposed), _swap_axes(packed.zero_point, packed.transposed)
    )


_BYTES, _WORDS, _FP8 = (np.dtype(x) for x in (np.uint8, np.int32, jnp.float8_e4m3fn))
_PER_WORD = 8  # elements of 4 bits, the first one in the lowest bits
_AWQ_ORDER = np.array([0, 4, 1, 5, 2, 6, 3, 7], np.int32)


def mxfp4_from_blocks(blocks: Any, scales: Any) -> QuantizedTensor:
    """The experts of a checkpoint of gpt-oss: [E,N,K] of float4_e2m1fn with a float8_e8m0fnu for each 32 along K.

    Args:
      blocks: uint8 [E,N,K/32,16], two elements a byte, the first one in the low bits.
      scales: uint8 [E,N,K/32], exponents with a bias of 127; 255 is NaN. QuantizedTensor says what products make of
        codes 0, 1, 253 and 254.

    Returns:
      A QuantizedTensor of the same bits. TypeError and ValueError where the arrays are others.
    """
    blocks, scales = (checks.as_float_array(n, x, (_BYTES,)) for n, x in (("blocks", blocks), ("scales", scales)))
    if blocks.ndim != 4 or blocks.shape[3] != 16:
        raise ValueError(f"blocks: shape is {blocks.shape}, must be [E,N,K/32,16]")
    checks.check_shape("scales", scales, blocks.shape[:3], why=", the first three axes of blocks")
    experts, columns, count, _ = blocks.shape
    data = lax.bitcast_convert_type(blocks, E2M1).reshape(experts, columns, 32 * count)
    return QuantizedTensor(data, lax.bitcast_convert_type(scales, E8M0))


def fp8_from_blocks(weight: Any, weight_scale_inv: Any, *, block: tuple[int, int] = (128, 128)) -> QuantizedTensor:
    """A matrix of a checkpoint of DeepSeek-V3: float8_e4m3fn with a scale for each block.

    Args:
      weight: float8_e4m3fn [...,N,K].
      weight_scale_inv: float32 or bfloat16 [...,N/128,K/128], which multiplies, whatever its name says.
      block: rows and columns of a block (weight_block_size), which divide N and K: those of a QuantizedTensor are of
        one size.

    Returns:
      A QuantizedTensor of the same arrays. TypeError and ValueError where they are others.
    """
    weight = checks.as_float_array("weight", weight, (_FP8,))
    scale = checks.as_float_array("weight_scale_inv", weight_scale_inv, SCALES)
    if not isinstance(block, tuple | list) or len(block) != 2:
        raise TypeError(f"block is {block!r}, must be (rows, columns)")
    rows, columns = (checks.check_integer(f"block[{axis}]", size) for axis, size in enumerate(block))
    if weight.ndim < 2 or min(rows, columns) < 1 or weight.shape[-2] % rows or weight.shape[-1] % columns:
        raise ValueError(f"weight: shape is {weight.shape}, must be [...,N,K] of whole blocks of {rows} x {columns}")
    wanted = (*weight.shape[:-2], weight.shape[-2] // rows, weight.shape[-1] // columns)
    return QuantizedTensor(weight, checks.check_shape("weight_scale_inv", scale, wanted, why=", one for each block"))


def _unpack_words(name: str, x: Any) -> jax.Array:
    """int32 as the elements of each, along a new last axis."""
    x = checks.as_float_array(name, x, (_WORDS,))
    if x.ndim < 2:
        raise ValueError(f"{name}: shape is {x.shape}, must have 2 axes or more")
    return lax.bitcast_convert_type(x, jnp.uint4)


def _unpack_columns(name: str, x: Any, places: np.ndarray) -> jax.Array:
    """int32 [...,R,N/8] as uint4 [...,R,N]; places: in a word, of its eight columns."""
    elements = _unpack_words(name, x)[..., places]
    return elements.reshape(*elements.shape[:-2], elements.shape[-2] * _PER_WORD)


def _make_tensor(data: jax.Array, scales: Any, zeros: jax.Array) -> QuantizedTensor:
    scales = checks.as_float_array("scales", scales, SCALES)
    if scales.ndim != data.ndim or scales.shape[:-2] + scales.shape[-1:] != data.shape[:-2] + data.shape[-1:]:
        raise ValueError(f"scales: shape is {scales.shape}, must be [...,K/size,N] with qweight of {data.shape}")
    if not scales.shape[-2] or data.shape[-2] % scales.shape[-2]:
        raise ValueError(f"scales: has {scales.shape[-2]} blocks, which must divide {data.shape[-2]}, K of qweight")
    if zeros.shape != scales.shape:
        raise ValueError(f"qzeros: has zero points for {zeros.shape}, must be for scales, {scales.shape}")
    return QuantizedTensor(data, scales, zeros)


def int4_from_awq(qweight: Any, qzeros: Any, scales: Any) -> QuantizedTensor:
    """A matrix of a checkpoint of AutoAWQ, 4 bits, version "gemm": [...,K,N] of uint4.

    Args:
      qweight: int32 [...,K,N/8], eight columns a word, in the order 0, 2, 4, 6, 1, 3, 5, 7 from the low bits on.
      qzeros: int32 [...,K/size,N/8], zero points, packed alike.
      scales: float16 or bfloat16 [...,K/size,N].

    Returns:
      A QuantizedTensor of these elements, zero points and scales. TypeError and ValueError where the arrays are others.
    """
    data, zeros = (_unpack_columns(name, x, _AWQ_ORDER) for name, x in (("qweight", qweight), ("qzeros", qzeros)))
    return _make_tensor(data, scales, zeros)


def int4_from_gptq(qweight: Any, qzeros: Any, scales: Any, *, zeros_less_one: bool = True) -> QuantizedTensor:
    """A matrix of a checkpoint of GPTQ, 4 bits: [...,K,N] of uint4.

    Steps of K belong to blocks in ascending order: with act order ("desc_act"), when a g_idx says otherwise, it is
    another matrix.

    Args:
      qweight: int32 [...,K/8,N], eight steps of K a word, the first one in the lowest bits.
      qzeros: int32 [...,K/size,N/8], zero points, eight columns a word.
      scales: float16 or bfloat16 [...,K/size,N].
      zeros_less_one: whether a stored zero point is one less, modulo 16, as in the first format ("gptq"); not so in
        "gptq_v2".

    Returns:
      A QuantizedTensor of these elements, zero points and scales. TypeError and ValueError where the arrays are others.
    """
    words = _unpack_words("qweight", qweight)
    *experts, rows, columns, _ = words.shape
    data = words.swapaxes(-1, -2).reshape(*experts, rows * _PER_WORD, columns)
    zeros = _unpack_columns("qzeros", qzeros, np.arange(_PER_WORD, dtype=np.int32))
    if checks.check_bool("zeros_less_one", zeros_less_one):
        zeros = ((zeros.astype(jnp.uint8) + 1) & 15).astype(jnp.uint4)
    return _make_tensor(data, scales, zeros)
