"""Products of tensors with scales. Dequantizes tensors first if grouped_gemm does not support their blocks."""

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from raggemm._src import checks
from raggemm._src.arguments import default_precision
from raggemm._src.call import PACKED
from raggemm._src.grouped_gemm import compute_product
from raggemm._src.operands import ArgNames, parse_operands
from raggemm._src.quantization import E5M2, compute_scale, multiply_by_scale
from raggemm._src.tensors import GroupedTensor, QuantizedTensor
from raggemm.compat.transformer_engine._ragged import (
    GroupedRows,
    block_counts,
    block_of_each_row,
    cdiv,
    gather_rows,
    max_blocks,
    unpack_transposed,
)
from raggemm.compat.transformer_engine._tensors import F32, Layout, ScaledOperand, parse_scaled, ragged_dims

Axes = tuple[Sequence[int], Sequence[int]]


def parse_operand(name: str, x: Any) -> Any:
    if isinstance(x, GroupedTensor | ScaledOperand | jax.Array | np.ndarray):
        return x
    if hasattr(x, "scale_inv"):
        return parse_scaled(name, x)
    missing = [a for a in ("data", "first_dims", "last_dims", "original_shape") if not hasattr(x, a)]
    if missing:
        raise TypeError(f"{name}: {type(x).__name__} is no array and lacks the attributes {', '.join(missing)}")
    data, shape = jnp.asarray(x.data), tuple(x.original_shape)
    if data.size != np.prod(shape, dtype=np.int64):
        raise ValueError(f"{name}: data has shape {data.shape}, must have as many elements as original_shape {shape}")
    return _tensor(data.reshape(shape), *ragged_dims(name, x))


def _tensor(data: Any, axis: int | None, sizes: jax.Array | None) -> GroupedTensor:
    if axis == 1:
        return GroupedTensor(data, last_dims=sizes, layout=PACKED)
    return GroupedTensor(data, first_dims=sizes)


def _is_ragged(x: Any) -> bool:
    if isinstance(x, ScaledOperand):
        return x.sizes is not None
    return isinstance(x, GroupedTensor) and not (x.first_dims is None and x.last_dims is None)


def amax_scale(amax: jax.Array) -> jax.Array:
    """Returns the second-level scale of each NVFP4 group. amax: the largest magnitude of each group."""
    return compute_scale(jnp.where(jnp.isfinite(amax), amax, 0), 6 * 448, F32)


def _group_scales(x: Any) -> jax.Array | None:
    """Returns the group scales of x, (G,), or () without groups. They become part of grouped_gemm's alpha.

    The group scales of NVFP4 are its second-level scales. Returns None if x has no scales, or only scales of blocks.
    """
    if not isinstance(x, ScaledOperand):
        return None
    scale = x.scale if x.block is None else None
    if x.mode.has_amax_scale and x.amax is not None:
        scale = amax_scale(x.amax)
    has_no_groups = x.layout.ragged is None and not x.layout.lead
    return scale.reshape(()) if scale is not None and has_no_groups else scale


def _supports_blocks(layout: Layout, block: tuple[int, int]) -> bool:
    """Returns True if grouped_gemm supports these blocks. The docstring of the package has the conditions."""
    if layout.ragged == 1 or (layout.ragged == 0 and block[0] > 1) or len(layout.shape) != layout.lead + 2:
        return False
    return all(extent % size == 0 for extent, size in zip(layout.matrix, block, strict=True))


@jax.jit
def _dequantize(x: ScaledOperand) -> jax.Array:
    """Multiplies elements by the scales of their blocks, in bfloat16.

    The result is [G,rows,columns], or [rows,columns] if the rows of x are ragged. If the columns of x are ragged, the
    result is transposed: [columns,rows].
    """
    layout, block, data, scale = x.layout, x.block, x.data, x.scale
    assert block is not None and scale is not None
    rows, columns = layout.matrix
    if x.sizes is None:
        data = data.reshape(layout.groups, rows, columns)
        scale = jnp.repeat(scale.reshape(layout.scale_shape(block)), block[0], 1)[:, :rows]
    else:
        if layout.ragged == 1:
            counts = max_blocks(columns, layout.groups, block[1]), cdiv(rows, block[0])
            scale = unpack_transposed(scale, block_counts(x.sizes, block[1]), counts)
            data, block = unpack_transposed(data, x.sizes, (columns, rows)), block[::-1]
            columns = rows
        else:
            data, scale = data.reshape(rows, columns), scale.reshape(layout.scale_shape(block))
        scale = gather_rows(scale, block_of_each_row(GroupedRows.from_sizes(x.sizes, data.shape[0]), x.sizes, block[0]))
    scale = jnp.repeat(scale, block[1], -1)[..., :columns]
    return multiply_by_scale(data.astype(jnp.float32), scale).astype(jnp.bfloat16)


def _to_grouped_operand(x: Any, allows_scales: bool) -> tuple[Any, Callable[[int], int]]:
    """Converts x to an operand of raggemm.grouped_gemm, without the scales that _group_scales returns.

    allows_scales: False dequantizes blocks, for modes in which grouped_gemm supports no scales.

    Returns:
      (operand, function that maps an axis of x to the same axis of the operand).
    """
    if not isinstance(x, ScaledOperand):
        return x, lambda axis: axis
    layout, block = x.layout, x.block
    if block is not None and not (allows_scales and _supports_blocks(layout, block)):
        layout = layout.transpose() if layout.ragged == 1 else layout
        data = _dequantize(x).reshape(layout.shape)
    elif x.scale is None:
        data = x.data.reshape(layout.shape)
    else:
        scale = None if block is None else x.scale.reshape(layout.scale_shape(block))
        data = QuantizedTensor(x.data.reshape(layout.shape), scale)
    return _tensor(data, layout.ragged, x.sizes), layout.stored_axis


def parse_axes(contracting_dims: Any) -> tuple[tuple[int, ...], ...]:
    """Returns the axes of lhs and rhs as tuples, or () for invalid axes, which raggemm.grouped_gemm rejects."""
    try:
        axes = tuple(map(tuple, contracting_dims))
    except TypeError:
        return ()
    is_pair = len(axes) == 2 and all(hasattr(axis, "__index__") for axis in itertools.chain(*axes))
    return axes if is_pair else ()


def _alpha(scales: list[jax.Array], groups: int | None, offset: Any) -> jax.Array | None:
    """Returns the argument alpha of grouped_gemm: the product of both operands' group scales, or None without any.

    groups, offset: number of groups that the call processes, and index of the first of them. None: all groups.
    """

    def select_groups(scale: jax.Array) -> jax.Array:
        if groups is None or offset is None or scale.ndim == 0 or scale.shape[0] <= groups:
            return scale
        return jax.lax.dynamic_slice_in_dim(
            scale, checks.as_integer_array("group_offset", offset).reshape(-1)[0], groups
        )

    return functools.reduce(jnp.multiply, map(select_groups, scales)) if scales else None


def multiply(
    names: ArgNames, lhs: Any, rhs: Any, contracting_dims: Axes, *, precision: Any, dtype: Any, **options: Any
) -> jax.Array:
    """Computes lhs x rhs for each group by raggemm.grouped_gemm. Either operand may have scales.

    names: names of lhs and rhs for error messages. dtype: preferred_element_type. options: arguments of grouped_gemm.
    """
    is_ragged_n = _is_ragged(rhs) and not _is_ragged(lhs)
    (left, map_left), (right, map_right) = (_to_grouped_operand(x, not is_ragged_n) for x in (lhs, rhs))
    if all(isinstance(x, ScaledOperand) and x.data.dtype == E5M2 for x in (lhs, rhs)):
        raise ValueError(f"{names.lhs}, {names.rhs}: both have dtype float8_e5m2, one must be float8_e4m3fn")
    scales = [scale for x in (lhs, rhs) if (scale := _group_scales(x)) is not None]
    default = lhs.dtype if isinstance(lhs, ScaledOperand) else None
    axes = tuple(
        tuple(map(map_axis, axes))
        for map_axis, axes in zip((map_left, map_right), parse_axes(contracting_dims), strict=False)
    )
    lhs, rhs = parse_operands(names, left, right, axes or contracting_dims)
    default = lhs.data.dtype if default is None else default
    groups = rhs.data.shape[0] if lhs.dims and not rhs.dims else options.get("num_actual_groups")
    options["alpha"] = _alpha(scales, groups, options.get("group_offset"))
    options["preferred_element_type"] = default if dtype is None else dtype
    return compute_product(names, lhs, rhs, precision=default_precision(precision), **options)
