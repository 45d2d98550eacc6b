"""Checks all arguments of a product except lhs and rhs."""

import math
from collections.abc import Iterable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from raggemm._src import checks
from raggemm._src.activations import Activation
from raggemm._src.call import PACKED, STRIDED, Mode
from raggemm._src.dtypes import CODES, E2M1, FLOATS, QUANTIZED, addend_dtypes, compute_dtype, format_dtypes
from raggemm._src.operands import EQUAL_COUNTS, ArgNames, Operand, check_dtypes, check_layout, check_quantized_dtypes
from raggemm._src.tensors import PackedWeights, QuantizedTensor


class Options(NamedTuple):
    c: Any = None
    bias: Any = None
    alpha: Any = None
    beta: Any = None
    group_offset: Any = None
    num_actual_groups: int | None = None
    out_size: int | None = None
    out_layout: str = STRIDED
    preferred_element_type: Any = None
    precision: Any = None
    activation: str | Activation | None = None
    gate: Any = None
    row_index: Any = None
    lhs_block: int | None = None  # the field of Call, as check_lhs_quantize returns it


def count_processed_groups(mode: Mode, lhs: Operand, rhs: Operand, options: Options) -> int:
    counts = {name: sizes.shape[0] for name, sizes in (lhs.dims | rhs.dims).items()}
    counts |= {f"the group axis of {x.name}": x.data.shape[0] for x in (lhs, rhs) if x.has_group_axis}
    (first, total), *others = counts.items()
    local = total
    for name, count in others:
        if mode is not Mode.RAGGED_M and count != total:
            raise ValueError(f"{name} has {count} groups, but {first} has {total}")
        if count > total:
            raise ValueError(f"{name} has {count} groups, more than the {total} of {first}")
        local = count
    message = f"{list(counts)[-1]} has {local} groups"
    if options.num_actual_groups is not None:
        local = checks.check_integer("num_actual_groups", options.num_actual_groups)
        message = f"num_actual_groups is {local}"
        if mode is not Mode.RAGGED_K:
            raise ValueError("num_actual_groups is for ragged K; other modes have a group axis")
        if not 0 <= local <= total:
            raise ValueError(f"{message}, must be in [0, {total}], because {first} has {total} groups")
    if local < total and options.group_offset is None:
        raise ValueError(f"{message}, but {first} has {total}: {EQUAL_COUNTS}")
    return local


def check_out_extent(mode: Mode, local: int, out_size: int | None, out_layout: str) -> int | None:
    """Checks out_size and out_layout. Returns Call.out_extent.

    local: number of processed groups.
    """
    check_layout("out_layout", out_layout)
    if mode is not Mode.ALL_RAGGED:
        if out_size is not None:
            raise ValueError("out_size is for all ragged; in other modes the operands determine the shape of out")
        return local if mode is Mode.RAGGED_K else None
    if out_size is None or out_layout != PACKED:
        raise ValueError(f'all ragged needs out_size and out_layout="PACKED", got {out_size} and {out_layout!r}')
    out_size = checks.check_integer("out_size", out_size)
    if out_size < 0:
        raise ValueError(f"out_size is {out_size}, must be at least 0")
    return out_size


def check_out_dtype(arg_names: ArgNames, preferred: Any, lhs: Operand, rhs: Operand) -> Any:
    if lhs.quant_params is None and rhs.quant_params is None:
        dtype = checks.result_dtype(jnp.result_type(lhs.data, rhs.data) if preferred is None else preferred)
        check_dtypes(arg_names, lhs.data.dtype, rhs.data.dtype, dtype)
        return dtype
    check_quantized_dtypes(arg_names, lhs.data.dtype, rhs.data.dtype)
    floats = [x.data for x in (lhs, rhs) if x.data.dtype in FLOATS]
    default = jnp.result_type(*floats) if floats else np.dtype(np.float32)
    return checks.result_dtype(preferred, default, FLOATS)


def canonical_quant_params(mode: Mode, side: str, x: Operand, groups: int) -> dict[str, jax.Array]:
    """Returns the given scale and zero point of lhs or rhs, by operand name, such as "rhs_scale".

    OptionalOperand describes the canonical shape of values per block.
    """
    given: dict[str, jax.Array] = {}
    if x.quant_params is None:
        return given
    for field, slot, values in (("scale", "scale", x.quant_params.scale), ("zero_point", "zero", x.quant_params.zero)):
        if values is None:
            continue
        name = f"{x.name}.{field}"
        if mode in (Mode.RAGGED_N, Mode.ALL_RAGGED):
            raise ValueError(f"{name} is for ragged M, ragged K and uniform")
        if values.ndim == 1 and values.shape != (groups,):
            raise ValueError(f"{name}: shape is {values.shape}, must be ({groups},), one for each processed group")
        if values.ndim > 1:
            if x.layout == PACKED and x.last_dims is not None:
                raise ValueError(f"{name}: shape is {values.shape}, must be () or (G,) with layout PACKED")
            if x.rank != 2 + x.has_group_axis:
                raise ValueError(f"{name}: shape is {values.shape}, must be () or (G,) with data of {x.data.shape}")
            ragged = 0 if x.last_dims is None else -1
            # A group may begin inside a block, so each index along the ragged axis gets its own value.
            if x.dims and values.shape[ragged] not in (1, x.data.shape[ragged]):
                values = jnp.repeat(values, x.data.shape[ragged] // values.shape[ragged], ragged)
            values = values.reshape(1, *(() if x.has_group_axis else (1,)), *values.shape)
        given[f"{side}_{slot}"] = values
    return given


DEFAULT_LHS_BLOCK = 32
_MAX_STRETCH = 2**16  # largest number of products that are summed in int32 before scales multiply the sum
_ROWS = tuple(dtype for dtype, sums in FLOATS.items() if sums == np.float32)


def check_lhs_quantize(
    lhs_quantize: Any, lhs_block: Any, allowed: Iterable[np.dtype] = QUANTIZED
) -> tuple[np.dtype | None, int | None]:
    """Checks the arguments lhs_quantize and lhs_block.

    Returns:
      (dtype or None, number of elements of a row that share a scale). The number is 0 for whole rows, and None if the
      dtype is not int8.
    """
    block = None if lhs_block is None else checks.check_integer("lhs_block", lhs_block)
    if lhs_quantize is None:
        if block != DEFAULT_LHS_BLOCK:
            raise ValueError(f"lhs_block is {block}, but lhs_quantize is not given")
        return None, None
    dtype = checks.as_dtype("lhs_quantize", lhs_quantize, allowed)
    if dtype != np.int8:
        if block not in (None, DEFAULT_LHS_BLOCK):
            raise ValueError(f"lhs_block is {block}, must be None with lhs_quantize of {dtype}: blocks are for int8")
        return dtype, None
    if block is not None and (block % 32 or not 0 < block <= np.iinfo(np.int32).max):
        raise ValueError(f"lhs_block is {block}, must be a multiple of 32, or None for whole rows")
    return dtype, block or 0


def is_code_matrix(x: Any) -> bool:
    """Returns True if x is a QuantizedTensor or PackedWeights of elements that int8 codes of rows are multiplied by."""
    if isinstance(x, PackedWeights):
        return bool(x.quantized) and getattr(x.data, "dtype", None) in CODES
    data = getattr(x, "data" if isinstance(x, QuantizedTensor) else "qvalue", None)
    return checks.is_quantized(x) and getattr(data, "dtype", None) in CODES


def check_code_dtype(name: str, dtype: np.dtype, is_quantized: bool, option: str) -> None:
    """Checks the dtype of a matrix that int8 codes of rows are multiplied by. option: the argument that asks for it."""
    if not is_quantized or dtype not in CODES:
        kind = "a QuantizedTensor" if is_quantized else "an array"
        wanted = f"a QuantizedTensor or PackedWeights of {format_dtypes(CODES)}"
        raise TypeError(f"{name}: is {kind} of {dtype}, must be {wanted} with {option}=int8")


def check_code_columns(name: str, shape: tuple[int, ...], dtype: np.dtype) -> None:
    """Checks that rows of float4_e2m1fn fill whole bytes. Wider types for them exist, but are no integer codes."""
    if dtype == E2M1 and shape[-1] % 2:
        raise ValueError(f"{name}: the last axis of {dtype} {shape} is {shape[-1]}, must be even with lhs_quantize")


def check_code_blocks(name: str, params: checks.QuantParams, axis: int, k: int, lhs_block: int) -> None:
    """Checks that blocks of a matrix along K fit the blocks of lhs.

    axis: index of K in scales and zero points with a value per block. lhs_block: as in Call.
    """
    if jax.export.is_symbolic_dim(k) or k == 0:
        return
    lhs_block = 0 if lhs_block >= k else lhs_block
    stretch = lhs_block or k
    for field, values in (("scale", params.scale), ("zero_point", params.zero)):
        if values is None or values.ndim < 2 or values.shape[axis] == 1:
            continue
        size = k // values.shape[axis]
        if size % 16:
            raise ValueError(
                f"{name}.{field}: has blocks of {size} elements along K, must be of a multiple of 16 with lhs_quantize"
            )
        if lhs_block and size % lhs_block and lhs_block % size:
            raise ValueError(
                f"lhs_block is {lhs_block}, must divide the {size} elements of a block of {name}.{field}, or be a "
                "multiple of them"
            )
        stretch = min(stretch, size)
    if stretch > _MAX_STRETCH:
        raise ValueError(
            f"lhs_block: {stretch} elements along K share a scale of lhs and a scale of {name}, must be at most "
            f"{_MAX_STRETCH}"
        )


def takes_rounded_rows(lhs: jax.Array, dtype: np.dtype, rhs: Any, k_axis: int, out: Any) -> bool:
    """Returns True if a product can quantize whole rows of lhs to `dtype` inside the call.

    For front ends that otherwise quantize lhs before the call. rhs: a checked matrix [G,K,N] or [G,N,K]. out: dtype of
    the result.
    """
    if dtype != np.int8 or lhs.dtype not in _ROWS or out is None:
        return False
    data, params, columns, _ = checks.split_weights("rhs", rhs)
    if params is None or data.dtype not in CODES or checks.as_dtype("preferred_element_type", out) not in _ROWS:
        return False
    try:
        check_code_columns("rhs", data.shape, data.dtype)
        check_code_blocks("rhs", params, k_axis, data.shape[k_axis if columns is None else 2], 0)
    except ValueError:
        return False
    return True


def check_rounded_rows(names: ArgNames, mode: Mode, lhs: Operand, rhs: Operand, out: np.dtype, lhs_block: int) -> None:
    """Checks the operands of a product that quantizes the rows of lhs inside the call."""
    option = names.lhs_quantize
    if mode not in (Mode.RAGGED_M, Mode.UNIFORM):
        raise ValueError(f"{option} is for ragged M and uniform")
    if lhs.quant_params is not None:
        raise TypeError(f"{lhs.name}: is quantized already, must be an array of floats with {option}")
    checks.check_dtype(f"{lhs.name}: with {option}", lhs.data.dtype, _ROWS)
    if lhs.contracts_first:
        raise ValueError(f"{lhs.name}: contracting_dims are {lhs.axes}, must be the last axes with {option}")
    check_code_dtype(rhs.name, rhs.data.dtype, rhs.quant_params is not None, option)
    check_code_columns(rhs.name, rhs.data.shape, rhs.data.dtype)
    checks.check_dtype(f"preferred_element_type: with {option}", out, _ROWS)
    assert rhs.quant_params is not None
    if len(rhs.axes) == 1:
        k = lhs.contracted_shape[0] if len(lhs.axes) == 1 else math.prod(lhs.contracted_shape)
        check_code_blocks(rhs.name, rhs.quant_params, rhs.axes[0], k, lhs_block)


def check_group_offset(x: Any, mode: Mode) -> jax.Array | None:
    offset = checks.as_group_offset(x)
    if mode in (Mode.RAGGED_M, Mode.RAGGED_K) or isinstance(x, jax.core.Tracer):  # the custom call checks the offset
        return offset
    if (value := np.asarray(x).item()) != 0:
        raise ValueError(f"group_offset is {value}, must be 0 except for ragged M and ragged K")
    return None


def check_row_index(row_index: Any, mode: Mode, lhs: Operand) -> jax.Array:
    index = checks.as_integer_array("row_index", row_index)
    if mode is not Mode.RAGGED_M or lhs.contracts_first:
        raise ValueError(f"row_index is for ragged M, with first_dims of {lhs.name}")
    if lhs.quant_params is not None or lhs.data.dtype not in FLOATS:
        raise TypeError(f"row_index is for rows of floats, but {lhs.name} has {lhs.data.dtype}")
    return checks.check_rank("row_index", index, "M")


def check_c(name: str, c: Any, shape: tuple[int, ...], dtype: Any) -> jax.Array:
    c = checks.as_array(name, c)
    if c.dtype != dtype:
        raise TypeError(f"{name}: dtype is {c.dtype}, must be out's {dtype}")
    if c.shape != shape:
        raise ValueError(f"{name}: shape is {c.shape}, must be out's {shape}")
    return c


def check_bias(name: str, bias: Any, mode: Mode, groups: int, free_shape: tuple[int, ...], compute: Any) -> jax.Array:
    if mode in (Mode.RAGGED_N, Mode.ALL_RAGGED):
        raise ValueError(f"{name} is for ragged M, ragged K and uniform, which have one N for all groups")
    bias = checks.as_array(name, bias)
    allowed = tuple(dtype for dtype in addend_dtypes(compute) if dtype != jnp.float64 or compute == jnp.float64)
    if bias.dtype not in allowed:
        raise TypeError(f"{name}: dtype is {bias.dtype}, must be {format_dtypes(allowed)} with sums in {compute}")
    shape = (groups, math.prod(free_shape))
    if bias.shape not in (shape, (groups, *free_shape)):
        raise ValueError(f"{name}: shape is {bias.shape}, must be {shape}, one row for each processed group")
    return bias.reshape(shape)


def check_alpha_or_beta(name: str, x: Any, groups: int, compute: Any) -> jax.Array:
    x = checks.as_array(name, x)
    is_number = x.ndim == 0 and x.weak_type and x.dtype.kind in ("i" if compute == jnp.int32 else "if")
    if not is_number:
        checks.check_dtype(name, x.dtype, addend_dtypes(compute))
    return checks.check_shape(name, x, (), (groups,), why=", one value for each processed group").astype(compute)


def check_activation(
    activation: Activation | None, gate: Any, shape: tuple[int, ...], compute: Any
) -> jax.Array | None:
    if activation is None:
        if gate is not None:
            raise ValueError("gate is given without activation")
        return None
    if compute != jnp.float32:
        raise TypeError(f"activation: {activation.name!r} is for sums in float32, these are in {compute}")
    if gate is None:
        if activation.needs_gate:
            raise ValueError(f"activation: {activation.name!r} needs gate")
        return None
    gate = checks.as_float_array("gate", gate, tuple(dtype for dtype, sums in FLOATS.items() if sums == np.float32))
    if gate.shape != shape:
        raise ValueError(f"gate: shape is {gate.shape}, must be out's {shape}")
    return gate


def existing_out_options(c: Any, dtype: Any, beta: int, name: str = "existing_out") -> dict[str, Any]:
    """Converts megablox's existing_out to the arguments c and beta of grouped_gemm, or to {} if c is None.

    beta: 0 if products overwrite c in processed groups, 1 if they are added to c.
    """
    if c is None:
        return {}
    c, dtype = checks.as_array(name, c), jax.dtypes.canonicalize_dtype(checks.as_dtype("preferred_element_type", dtype))
    if c.dtype != dtype:
        raise ValueError(f"{name}: dtype is {c.dtype}, must be preferred_element_type {dtype}")
    return {"c": c, "beta": beta}


class _Preset(NamedTuple):
    operands: set[str]
    sums: str
    attribute: str = ""  # value of the custom call's attribute `precision`


_PRESETS = {
    lax.DotAlgorithmPreset.F16_F16_F32: _Preset({"float16"}, "float32"),
    lax.DotAlgorithmPreset.BF16_BF16_F32: _Preset({"bfloat16"}, "float32"),
    lax.DotAlgorithmPreset.BF16_BF16_F32_X3: _Preset({"float32"}, "float32", "BF16_X3"),
    lax.DotAlgorithmPreset.BF16_BF16_F32_X6: _Preset({"float32"}, "float32", "BF16_X6"),
    lax.DotAlgorithmPreset.F32_F32_F32: _Preset({str(x) for x, s in FLOATS.items() if s == np.float32}, "float32"),
    lax.DotAlgorithmPreset.F64_F64_F64: _Preset(set(map(str, FLOATS)), "float64"),
}


def default_precision(precision: Any) -> Any:
    return jax.config.jax_default_matmul_precision if precision is None else precision  # type: ignore[attr-defined]


def precision_attribute(precision: Any, lhs: Any, rhs: Any, out: Any) -> str:
    """Returns the custom call's attribute `precision`: "BF16_X3", "BF16_X6", or "" for the default arithmetic.

    The default arithmetic satisfies any jax.lax.Precision. Raises NotImplementedError for a DotAlgorithmPreset that is
    not supported for these dtypes.
    """
    if isinstance(precision, str) and precision in lax.DotAlgorithmPreset.__members__:
        precision = lax.DotAlgorithmPreset[precision]
    if isinstance(precision, lax.DotAlgorithm):
        raise NotImplementedError(f"precision: {precision} is not supported, only presets are")
    if isinstance(precision, lax.DotAlgorithmPreset):
        if precision is lax.DotAlgorithmPreset.DEFAULT:
            return ""
        preset = _PRESETS.get(precision)
        if preset and {lhs.name, rhs.name} <= preset.operands and compute_dtype(lhs, rhs, out).name == preset.sums:
            return preset.attribute
        raise NotImplementedError(
            f"precision: {precision.name} is not supported for {lhs}, {rhs} and a result of {out}"
        )
    pair = precision if isinstance(precision, tuple | list) else (precision, precision)
    if len(pair) != 2:
        raise ValueError(f"precision: {precision} has {len(pair)} parts, must have one for lhs and one for rhs")
    try:
        for one in pair:
            if one is not None:
                lax.Precision(one)
    except (TypeError, ValueError):
        raise ValueError(f"precision is {precision!r}, must be a precision of jax.lax") from None
    return ""
