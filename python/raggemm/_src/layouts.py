"""Converts weights to and from PackedWeights, and from layouts of checkpoints.

Except in mxfp4_from_blocks, matrices [N,K] or [K,N] of a checkpoint may have leading axes.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from raggemm._src import checks
from raggemm._src.call import (
    COLUMN_BLOCKS,
    WORD_BLOCKS,
    WORD_COLUMNS,
    WORD_ROWS,
    from_blocks,
    from_word_values,
    to_column_blocks,
    to_word_order,
    to_word_values,
)
from raggemm._src.dtypes import E2M1, E8M0, FLOATS, INTEGER_ELEMENTS, SCALES, WORD_ELEMENTS, format_dtypes
from raggemm._src.tensors import PACKED_VERSION, PackedWeights, QuantizedTensor, as_bits, refine_blocks

# Columns of a block of PackedWeights. prepack chooses the widest block that adds at most _PADDING * N columns of zeros.
# If there is none, prepack chooses the smallest: _LEAST_WIDTH for floats, _LEAST_QUANTIZED_WIDTH for quantized
# elements. A streaming GEMV reads at most 256 columns of floats at a time, or 128 columns of quantized elements.
_WIDTHS, _LEAST_WIDTH, _LEAST_QUANTIZED_WIDTH = (256, 128, 64), 64, 128
_PADDING = 1 / 16


def _choose_width(columns: int, dtype: np.dtype) -> int:
    least = _LEAST_WIDTH if dtype in FLOATS else _LEAST_QUANTIZED_WIDTH
    fits = (x for x in _WIDTHS if x >= least and -columns % x <= _PADDING * columns)
    return next(fits, least) if columns else least


@functools.partial(jax.jit, static_argnames=("width", "transpose", "layout"))
def _pack(data: jax.Array, width: int, transpose: bool, layout: str) -> jax.Array:
    bits = as_bits(data)
    blocks = to_column_blocks(bits.swapaxes(1, 2) if transpose else bits, width)
    blocks = to_word_order(blocks) if layout == WORD_BLOCKS else blocks
    return blocks if bits.dtype == data.dtype else lax.bitcast_convert_type(blocks, data.dtype)


@functools.partial(jax.jit, static_argnames=("columns", "transpose", "layout"))
def _unpack(data: jax.Array, columns: int, transpose: bool, layout: str) -> jax.Array:
    bits = from_blocks(as_bits(data), columns, layout)
    bits = bits.swapaxes(1, 2) if transpose else bits
    return bits if bits.dtype == data.dtype else lax.bitcast_convert_type(bits, data.dtype)


def _pack_values(values: jax.Array | None, columns: int, transpose: bool, layout: str) -> jax.Array | None:
    if values is None or values.ndim != 3:
        return values
    values = values.swapaxes(1, 2) if transpose else values
    if layout != WORD_BLOCKS:
        return values
    if columns % WORD_COLUMNS and values.shape[2] not in (1, columns):
        raise ValueError(
            f"w: has {values.shape[2]} scales or zero points for {columns} columns, must have 1 or {columns} with "
            f"lhs_quantize=int8, unless the number of columns is a multiple of {WORD_COLUMNS}"
        )
    return to_word_values(values, columns)


def _unpack_values(values: jax.Array | None, packed: PackedWeights) -> jax.Array | None:
    if values is None or values.ndim != 3:
        return values
    values = from_word_values(values, packed.columns) if packed.layout == WORD_BLOCKS else values
    return values.swapaxes(1, 2) if packed.transposed else values


def _check_word_elements(data: jax.Array, is_quantized: bool, k: int) -> None:
    if not is_quantized or data.dtype not in WORD_ELEMENTS:
        kind = "a QuantizedTensor" if is_quantized else "an array"
        raise TypeError(
            f"w: is {kind} of {data.dtype}, must be a QuantizedTensor of {format_dtypes(WORD_ELEMENTS)} with "
            "lhs_quantize=int8"
        )
    if k % WORD_ROWS:
        raise ValueError(f"w: K is {k}, must be a multiple of {WORD_ROWS} with lhs_quantize=int8")


def prepack(w: Any, *, transpose: bool = False, lhs_quantize: Any = None) -> PackedWeights:
    """Packs the weights of G groups in the layout that kernels read fastest.

    Packing copies the weights, also under jit. So pack weights once, and donate w if nothing else needs it. prepack of
    an array is linear, and has derivatives.

    Args:
      w: [G,K,N], an array of float16, bfloat16, float32 or float64, or a QuantizedTensor. Its scale and zero_point are
        not packed, except with lhs_quantize.
      transpose: True if w is stored as [G,N,K]. The result is [G,K,N] either way.
      lhs_quantize: None, or int8: the result is only for products with lhs_quantize=jnp.int8. Their kernels read its
        layout, "WORD_BLOCKS", without rearranging elements. w must be a QuantizedTensor of int8, uint8, int4, uint4 or
        float4_e2m1fn, and K a multiple of 4. Several columns may share a scale only if all do, or if N is a multiple of
        32.

    Raises:
      TypeError, ValueError: for other dtypes or shapes.
    """
    data, params = checks.split_quantized("w", w, FLOATS)
    transpose = checks.check_bool("transpose", transpose)
    if data.ndim != 3:
        raise ValueError(f"w: shape is {data.shape}, must be [G,{'N,K' if transpose else 'K,N'}]")
    k, columns = data.shape[1:][::-1] if transpose else data.shape[1:]
    layout, width = COLUMN_BLOCKS, _choose_width(columns, data.dtype)
    if lhs_quantize is not None:
        checks.as_dtype("lhs_quantize", lhs_quantize, (np.dtype(np.int8),))
        _check_word_elements(data, params is not None, k)
        layout, width = WORD_BLOCKS, WORD_COLUMNS
    return PackedWeights(
        _pack(data, width, transpose, layout),
        None if params is None else _pack_values(params.scale, columns, transpose, layout),
        None if params is None else _pack_values(params.zero, columns, transpose, layout),
        columns=columns,
        transposed=transpose,
        quantized=params is not None,
        version=PACKED_VERSION,
        layout=layout,
    )


def unprepack(packed: PackedWeights) -> Any:
    """Returns the array or QuantizedTensor that prepack was given, with the same bits.

    Raises:
      ValueError: if `packed` has another version of the layout, or arrays that prepack cannot have made.
    """
    packed = checks.as_packed_weights("packed", packed)
    data = _unpack(packed.data, packed.columns, packed.transposed, packed.layout)
    if not packed.quantized:
        return data
    return QuantizedTensor(data, *(_unpack_values(x, packed) for x in (packed.scale, packed.zero_point)))


_UINT8, _INT8, _INT32, _FP8 = (np.dtype(x) for x in (np.uint8, np.int8, np.int32, jnp.float8_e4m3fn))
_PER_INT32 = 8
_AWQ_ORDER = np.array([0, 4, 1, 5, 2, 6, 3, 7], np.int32)


def mxfp4_from_blocks(blocks: Any, scales: Any) -> QuantizedTensor:
    """Converts the experts of a gpt-oss checkpoint to a QuantizedTensor [E,N,K] of float4_e2m1fn.

    There is one float8_e8m0fnu scale per 32 elements along K.

    Args:
      blocks: uint8 [E,N,K/32,16], two elements per byte, the first one in the low bits.
      scales: uint8 [E,N,K/32], exponents with a bias of 127; 255 is NaN. QuantizedTensor describes the products with
        the exponents 0, 1, 253 and 254.

    Raises:
      TypeError, ValueError: for other dtypes or shapes.
    """
    blocks, scales = (checks.as_float_array(n, x, (_UINT8,)) for n, x in (("blocks", blocks), ("scales", scales)))
    if blocks.ndim != 4 or blocks.shape[3] != 16:
        raise ValueError(f"blocks: shape is {blocks.shape}, must be [E,N,K/32,16]")
    checks.check_shape("scales", scales, blocks.shape[:3], why=", the first three axes of blocks")
    experts, columns, count, _ = blocks.shape
    data = lax.bitcast_convert_type(blocks, E2M1).reshape(experts, columns, 32 * count)
    return QuantizedTensor(data, lax.bitcast_convert_type(scales, E8M0))


def fp8_from_blocks(weight: Any, weight_scale_inv: Any, *, block: tuple[int, int] = (128, 128)) -> QuantizedTensor:
    """Converts a matrix of a DeepSeek-V3 checkpoint to a QuantizedTensor of float8_e4m3fn with one scale per block.

    Args:
      weight: float8_e4m3fn [...,N,K].
      weight_scale_inv: float32 or bfloat16 [...,ceil(N/rows),ceil(K/columns)], one scale per block. In spite of the
        name, elements are multiplied by it. The scale of `quantize` is also taken, which has smaller blocks if the last
        one of an axis is partial.
      block: (rows, columns) of a block, weight_block_size in config.json. If they do not divide N and K, the last block
        is shorter, and the result repeats scales for blocks of gcd(rows, N) or gcd(columns, K) elements.

    Raises:
      TypeError, ValueError: for other dtypes or shapes.
    """
    weight = checks.as_float_array("weight", weight, (_FP8,))
    scale = checks.as_float_array("weight_scale_inv", weight_scale_inv, SCALES)
    if not isinstance(block, tuple | list) or len(block) != 2:
        raise TypeError(f"block is {block!r}, must be (rows, columns)")
    rows, columns = (checks.check_integer(f"block[{axis}]", size) for axis, size in enumerate(block))
    if weight.ndim < 2 or min(rows, columns) < 1:
        raise ValueError(f"weight: shape is {weight.shape}, must be [...,N,K] in blocks of {rows} x {columns}")
    sizes = (*[1] * (weight.ndim - 2), rows, columns)
    coarse = tuple(-(-extent // size) for extent, size in zip(weight.shape, sizes, strict=True))
    fine = jax.eval_shape(lambda x: refine_blocks(x, weight.shape, sizes), jax.ShapeDtypeStruct(coarse, scale.dtype))
    scale = checks.check_shape("weight_scale_inv", scale, *dict.fromkeys((coarse, fine.shape)), why=", one per block")
    return QuantizedTensor(weight, refine_blocks(scale, weight.shape, sizes) if scale.shape == coarse else scale)


def _unpack_int32(name: str, x: Any, flip: int = 0, dtype: Any = jnp.uint4) -> jax.Array:
    """Returns the elements of each int32 of x, the lowest bits first, along a new last axis.

    flip: bits that are inverted first.
    """
    x = checks.as_float_array(name, x, (_INT32,))
    if x.ndim < 2:
        raise ValueError(f"{name}: shape is {x.shape}, must have 2 axes or more")
    return lax.bitcast_convert_type(x ^ np.uint32(flip).view(np.int32) if flip else x, dtype)


def _join_rows(elements: jax.Array) -> jax.Array:
    """Reshapes [...,R,C,n], the n elements of int32 [...,R,C] that hold rows, to [...,R*n,C]."""
    *leading, rows, columns, count = elements.shape
    return elements.swapaxes(-1, -2).reshape(*leading, rows * count, columns)


def _unpack_columns(name: str, x: Any, order: np.ndarray) -> jax.Array:
    """Unpacks int32 [...,R,N/8] to uint4 [...,R,N].

    order[i]: position of the i-th column in each int32. Position 0 is in the lowest bits.
    """
    elements = _unpack_int32(name, x)[..., order]
    return elements.reshape(*elements.shape[:-2], elements.shape[-2] * _PER_INT32)


def _make_tensor(data: jax.Array, scales: Any, zeros: jax.Array | None) -> QuantizedTensor:
    scales = checks.as_float_array("scales", scales, SCALES)
    if scales.ndim != data.ndim or scales.shape[:-2] + scales.shape[-1:] != data.shape[:-2] + data.shape[-1:]:
        raise ValueError(f"scales: shape is {scales.shape}, must be [...,K/size,N] for qweight of {data.shape}")
    if not scales.shape[-2] or data.shape[-2] % scales.shape[-2]:
        raise ValueError(f"scales: has {scales.shape[-2]} blocks, which must divide {data.shape[-2]}, K of qweight")
    if zeros is not None and zeros.shape != scales.shape:
        raise ValueError(f"qzeros: has zero points for scales of {zeros.shape}, but scales has shape {scales.shape}")
    return QuantizedTensor(data, scales, zeros)


def int4_from_awq(qweight: Any, qzeros: Any, scales: Any) -> QuantizedTensor:
    """Converts a matrix of an AutoAWQ checkpoint, 4 bits, version "gemm", to a QuantizedTensor [...,K,N] of uint4.

    Args:
      qweight: int32 [...,K,N/8]. Each int32 holds eight columns. From the lowest bits up these are the columns 0, 2, 4,
        6, 1, 3, 5 and 7.
      qzeros: int32 [...,K/size,N/8], packed like qweight: one zero point per column and block of `size` rows.
      scales: float16 or bfloat16 [...,K/size,N].

    Raises:
      TypeError, ValueError: for other dtypes or shapes.
    """
    data, zeros = (_unpack_columns(name, x, _AWQ_ORDER) for name, x in (("qweight", qweight), ("qzeros", qzeros)))
    return _make_tensor(data, scales, zeros)


# For each number of bits: the dtype of elements, and the bits that make the unsigned elements of an int32 signed.
_PACKED_INTEGERS: dict[int, tuple[Any, int]] = {4: (jnp.int4, 0x88888888), 8: (jnp.int8, 0x80808080)}


def _check_bits(bits: Any) -> int:
    if checks.check_integer("bits", bits) not in _PACKED_INTEGERS:
        raise ValueError(f"bits is {bits}, must be 4 or 8")
    return int(bits)


def _sort_by_block(name: str, data: jax.Array, g_idx: Any, blocks: int, axis: int) -> jax.Array:
    """Sorts elements along K, axis -2 or -1 of data, by their blocks g_idx [...,K]. Keeps the dtype.

    name: the name of g_idx for errors. blocks: number of blocks, which must have the same size.
    """
    g_idx, k = checks.as_integer_array(name, g_idx), data.shape[axis]
    checks.check_shape(name, g_idx, (*data.shape[:-2], k), why=", one block for each element along K")
    wanted = np.arange(k) * blocks // max(k, 1)
    if not isinstance(g_idx, jax.core.Tracer) and (np.sort(np.asarray(g_idx), -1) != wanted).any():
        raise ValueError(f"{name}: must have each of the blocks 0 to {blocks - 1} equally often")
    order = jnp.expand_dims(jnp.argsort(g_idx, axis=-1), -3 - axis)
    return jnp.take_along_axis(data.astype(jnp.int16), order, axis).astype(data.dtype)


def int4_from_gptq(
    qweight: Any, qzeros: Any, scales: Any, *, zeros_less_one: bool = True, bits: int = 4, g_idx: Any = None
) -> QuantizedTensor:
    """Converts a matrix of a GPTQ checkpoint to a QuantizedTensor [...,K,N] of uint4, or of uint8 with bits=8.

    Args:
      qweight: int32 [...,K*bits/32,N]. Each int32 holds 32/bits rows along K, the first one in the lowest bits.
      qzeros: int32 [...,K/size,N*bits/32], zero points of blocks of `size` rows. Each int32 holds 32/bits columns, the
        first one in the lowest bits. None, or an array without elements, if the weights are symmetric: the result is
        then of int4 or int8, without zero points.
      scales: float16 or bfloat16 [...,K/size,N].
      zeros_less_one: True if qzeros has the zero points minus 1, modulo 2^bits, as in the format "gptq". False for the
        format "gptq_v2".
      bits: 4 or 8.
      g_idx: integers [...,K], the block of each row, for act order ("desc_act"). The result has the rows sorted by
        block: row i is the stored row order[i], with order = jnp.argsort(g_idx). So multiply x[:, order] instead of x.
        None if blocks are consecutive rows. Blocks of different sizes are an error, but are not found in a traced
        g_idx.

    Raises:
      TypeError, ValueError: for other dtypes, shapes or g_idx.
    """
    signed, flip = _PACKED_INTEGERS[_check_bits(bits)]
    dtype = jnp.uint4 if bits == 4 else jnp.uint8
    less_one = checks.check_bool("zeros_less_one", zeros_less_one)
    if qzeros is None or checks.as_array("qzeros", qzeros).size == 0:
        data, zeros = _join_rows(_unpack_int32("qweight", qweight, flip, signed)), None
    else:
        data = _join_rows(_unpack_int32("qweight", qweight, dtype=dtype))
        zeros = _unpack_int32("qzeros", qzeros, dtype=dtype)
        zeros = zeros.reshape(*zeros.shape[:-2], zeros.shape[-2] * zeros.shape[-1])
        zeros = ((zeros.astype(jnp.uint8) + 1) & (2**bits - 1)).astype(dtype) if less_one else zeros
    out = _make_tensor(data, scales, zeros)
    if g_idx is None:
        return out
    return QuantizedTensor(_sort_by_block("g_idx", data, g_idx, out.scale.shape[-2], -2), out.scale, zeros)


def _unpack_compressed(weight_packed: Any, zero_point: Any, bits: int, shape: Any) -> tuple[jax.Array, Any]:
    """Unpacks weight_packed and weight_zero_point (None for 0) to signed elements [...,N,K] and [...,N,blocks]."""
    dtype, flip = _PACKED_INTEGERS[_check_bits(bits)]
    elements = _unpack_int32("weight", weight_packed, flip, dtype)
    *leading, rows, words, count = elements.shape
    try:
        n, k = (rows, words * count) if shape is None else (checks.check_integer("weight_shape", x) for x in shape)
    except (TypeError, ValueError):
        raise TypeError(f"weight_shape is {shape!r}, must be (N, K)") from None
    if (rows, words) != (n, -(-k // count)):
        raise ValueError(
            f"weight: shape is {(*leading, rows, words)}, must be [...,N,K/{count}] for {bits} bits and "
            f"weight_shape {(n, k)}"
        )
    data = elements.reshape(*leading, rows, words * count)[..., :k]
    if zero_point is None:
        return data, None
    zeros = _join_rows(_unpack_int32("weight_zero_point", zero_point, flip, dtype))
    if (found := zeros.shape[-2] // count) != (wanted := -(-n // count)):
        raise ValueError(f"weight_zero_point: has {found} rows of int32, must have {wanted} for N = {n}")
    return data, zeros[..., :n, :]


def from_compressed_tensors(
    weight: Any,
    weight_scale: Any,
    weight_zero_point: Any = None,
    *,
    bits: int = 4,
    weight_shape: Any = None,
    weight_g_idx: Any = None,
) -> QuantizedTensor:
    """Converts a matrix of a compressed-tensors checkpoint to a QuantizedTensor [...,N,K].

    The elements are int4 or int8 if they are packed, else those of `weight`.

    Args:
      weight: the tensor weight_packed of the format "pack-quantized", int32 [...,N,ceil(K*bits/32)]: each int32 holds
        32/bits elements along K plus 2^(bits-1), the first one in the lowest bits. Or the tensor weight of the formats
        "int-quantized" and "float-quantized", int8 or float8_e4m3fn [...,N,K].
      weight_scale: float32, bfloat16 or float16. The shape is [...,N,K/size] for the strategy "group" and [...,N,1] for
        "channel". For "tensor" it is [...,1] or [...]. For "block" use fp8_from_blocks.
      weight_zero_point: None if the weights are symmetric. Else one value for each scale: int32
        [...,ceil(N*bits/32),K/size] along N, packed like weight, or int8 with the shape of weight_scale.
      bits: 4 or 8, num_bits of a packed weight.
      weight_shape: (N, K), the tensor weight_shape of one matrix. It is needed only if K is no multiple of 32/bits.
      weight_g_idx: integers [...,K] for integer weights with the actorder "group". The result is sorted along K, like
        that of int4_from_gptq with g_idx.

    Raises:
      TypeError, ValueError: for other dtypes or shapes.
    """
    data = checks.as_float_array("weight", weight, (_INT32, _INT8, _FP8))
    zeros = weight_zero_point
    if data.dtype == _INT32:
        data, zeros = _unpack_compressed(data, zeros, bits, weight_shape)
    elif zeros is not None:
        zeros = checks.as_float_array("weight_zero_point", zeros, (_INT8,))
    scale = checks.as_float_array("weight_scale", weight_scale, SCALES)
    per_matrix = (data.shape[:-2], (*data.shape[:-2], 1))
    scale, zeros = (
        x.reshape(*data.shape[:-2], 1, 1) if x is not None and x.shape in per_matrix else x for x in (scale, zeros)
    )
    blocks = scale.shape[-1] if scale.ndim else 0
    wanted = ((*data.shape[:-1], blocks), (*data.shape[:-2], 1, 1))
    if data.ndim < 2 or scale.shape not in wanted or not blocks or data.shape[-1] % blocks:
        raise ValueError(
            f"weight_scale: shape is {scale.shape}, must be [...,N,K/size], [...,N,1] or [...,1] for a weight "
            f"with elements of shape {data.shape}"
        )
    if zeros is not None:
        checks.check_shape("weight_zero_point", zeros, scale.shape, why=" if unpacked, one value for each scale")
    if weight_g_idx is not None:
        checks.check_dtype("weight: with weight_g_idx", data.dtype, INTEGER_ELEMENTS)
        data = _sort_by_block("weight_g_idx", data, weight_g_idx, blocks, -1)
    return QuantizedTensor(data, scale, zeros)
