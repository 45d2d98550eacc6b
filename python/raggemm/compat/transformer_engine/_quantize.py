"""Quantizes arrays and operands of products in groups, and converts swizzled scales to raggemm's layout."""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from raggemm._src import checks
from raggemm._src.call import PACKED
from raggemm._src.dtypes import FLOATS
from raggemm._src.operands import Operand
from raggemm._src.quantization import E8M0, QuantSpec, magnitude_bits, quantize_blocks, round_to_elements
from raggemm._src.routing import gather_rows
from raggemm.compat.transformer_engine._products import amax_scale
from raggemm.compat.transformer_engine._ragged import (
    GroupedRows,
    block_counts,
    block_of_each_row,
    block_starts,
    cdiv,
    pack_transposed,
    unpack_transposed,
)
from raggemm.compat.transformer_engine._tensors import (
    F32,
    MODES,
    GroupedNoScaleTensor,
    GroupedQuantizer,
    GroupedScaledTensor1x,
    Layout,
    QuantizerSet,
    ScaledOperand,
    ScaledTensor2x,
    check_amax,
    check_flatten_axis,
    enum_name,
    is_given,
    parse_layout,
    stored_block,
)

_Q_LAYOUTS = ("ROWWISE", "COLWISE", "ROWWISE_COLWISE")


def has_quantizers(x: Any, name: str = "quantizer_set") -> bool:
    if x is not None and not any(hasattr(x, field) for field in QuantizerSet._fields):
        raise TypeError(f"{name}: is a {type(x).__name__}, must have {', '.join(QuantizerSet._fields)}")
    return any(getattr(x, field, None) is not None for field in QuantizerSet._fields)


def check_quantizer(name: str, quantizer: Any, groups: int) -> GroupedQuantizer | None:
    """Checks a quantizer. Returns it as a GroupedQuantizer.

    For DELAYED_TENSOR_SCALING the result has one scale per group. Returns None for None and NO_SCALING.
    """
    if quantizer is None:
        return None
    missing = [a for a in ("q_dtype", "scaling_mode") if not hasattr(quantizer, a)]
    if missing:
        raise TypeError(f"{name}: {type(quantizer).__name__} lacks the attributes {', '.join(missing)}")
    mode = enum_name(f"{name}.scaling_mode", quantizer.scaling_mode, MODES)
    if mode == "NO_SCALING":
        return None
    dtype = np.dtype(quantizer.q_dtype)
    checks.check_dtype(f"{name}.q_dtype for {mode}", dtype, MODES[mode].elements)
    if mode != "DELAYED_TENSOR_SCALING":
        return GroupedQuantizer(dtype, mode)
    parts = getattr(quantizer, "quantizers", None)
    scales = [q.scale for q in parts] if parts else [getattr(quantizer, "scale", None)]
    if any(x is None for x in scales):
        raise ValueError(f"{name}.scale: is None, must be given for DELAYED_TENSOR_SCALING")
    scale = jnp.concatenate([checks.as_float_array(f"{name}.scale", x).reshape(-1) for x in scales]).astype(F32)
    if scale.shape not in ((groups,), (1,)):
        raise ValueError(f"{name}.scale: shape is {scale.shape}, must be ({groups},), one for each group")
    return GroupedQuantizer(dtype, mode, scale=jnp.broadcast_to(scale, (groups,)))


@functools.partial(jax.tree_util.register_dataclass, data_fields=("x", "sizes"), meta_fields=("layout",))
@dataclasses.dataclass(frozen=True)
class _GroupMatrices:
    """An array to be quantized in groups.

    to_float32 reshapes x to [G,rows,columns], or to [rows,columns] if groups divide the rows."""

    x: jax.Array
    sizes: Any  # sizes of the groups that divide the rows, or None
    layout: Layout

    @property
    def rows(self) -> GroupedRows | None:
        return None if self.sizes is None else GroupedRows.from_sizes(self.sizes, self.layout.matrix[0])

    def to_float32(self) -> "_GroupMatrices":
        x = jax.lax.stop_gradient(self.x.astype(jnp.float32))
        if self.rows is None:
            x = x.reshape(self.layout.groups, *self.layout.matrix)
        else:
            x = jnp.where((self.rows.group < self.layout.groups)[:, None], x.reshape(self.layout.matrix), 0)
        return dataclasses.replace(self, x=x)

    def amax(self) -> jax.Array:
        """Returns the largest magnitude of each group, (G,). Empty groups give 0. NaN counts as larger than numbers."""
        bits = magnitude_bits(self.x)
        if self.rows is None:
            bits = jnp.max(bits, (1, 2), initial=0)
        else:
            bits = jax.ops.segment_max(jnp.max(bits, 1, initial=0), self.rows.group, self.layout.groups)
        return jax.lax.bitcast_convert_type(jnp.maximum(bits, 0), jnp.float32)

    def scale_groups(self, values: jax.Array) -> jax.Array:
        if self.rows is None:
            return self.x * values[:, None, None]
        return self.x * jnp.append(values, 1)[self.rows.group][:, None]

    def quantize_blocks(self, dtype: Any, scale_dtype: Any, block: tuple[int, int]) -> tuple[jax.Array, jax.Array]:
        """Returns elements and scales of x, with one scale per block. Pads partial blocks with zeros."""
        (rows, columns), counts, at = self.layout.matrix, self.layout.scale_shape(block), None
        x = jnp.pad(self.x, ((0, 0),) * (self.x.ndim - 1) + ((0, -columns % block[1]),))
        if self.rows is None:
            x = jnp.pad(x, ((0, 0), (0, -rows % block[0]), (0, 0)))
        elif block[0] > 1:  # Moves each group's rows to the start of a new block.
            at = block_of_each_row(self.rows, self.sizes, block[0]) * block[0] + self.rows.offset % block[0]
            x = jnp.zeros((counts[0] * block[0], x.shape[1]), x.dtype).at[at].set(x, mode="drop")
        q = quantize_blocks(x, QuantSpec(dtype, scale_dtype, False, counts, None))
        data = q.data[..., :rows, :columns] if at is None else gather_rows(q.data[:, :columns], at)
        return data, q.scale


def _tensor_scale(amax: jax.Array, dtype: np.dtype) -> jax.Array:
    """Returns (largest number of dtype) / amax, or 1 if amax is 0 or not finite.

    The result is at most 2^126, so that its reciprocal is not subnormal.
    """
    largest = float(jnp.finfo(dtype).max)
    return jnp.where(jnp.isfinite(amax) & (amax > 0), jnp.minimum(largest / amax, 2.0**126), 1)


@functools.partial(jax.jit, static_argnums=3)
def _quantize(groups: _GroupMatrices, q: GroupedQuantizer, amax: jax.Array | None, is_colwise: bool) -> ScaledOperand:
    dtype, groups = groups.x.dtype, groups.to_float32()
    mode = MODES[q.scaling_mode]
    block = stored_block(mode, is_colwise, False)
    amax = groups.amax() if amax is None else jnp.broadcast_to(amax, (groups.layout.groups,))
    if block is None:
        scale = _tensor_scale(amax, q.q_dtype) if q.scale is None else q.scale
        data, scale = (
            round_to_elements(groups.scale_groups(scale), groups.x, QuantSpec(q.q_dtype, F32, False, (), None)),
            1 / scale,
        )
    else:
        if mode.has_amax_scale:
            groups = dataclasses.replace(groups, x=groups.scale_groups(1 / amax_scale(amax)))
        data, scale = groups.quantize_blocks(q.q_dtype, mode.scale, block)
    return ScaledOperand(mode, groups.layout, block, dtype, data.reshape(-1), scale.reshape(-1), amax, groups.sizes)


def quantize_along(name: str, x: Any, quantizer_name: str, quantizer: Any, axes: Sequence[int]) -> Any:
    """Quantizes an operand of a product along its contracted axes. The result is transposed if columns are ragged.

    Returns x unchanged if x is already quantized, or if there is no quantizer.
    """
    if isinstance(x, ScaledOperand) or quantizer is None:
        return x
    operand = Operand.parse(name, None, x, axes)
    if len(operand.dims) == 2:
        raise ValueError(f"{quantizer_name}: {name} has first_dims and last_dims, only one can be quantized")
    data, sizes = operand.data, next(iter(operand.dims.values()), None)
    lead = int(sizes is None and operand.rank - len(operand.axes) > 1)
    is_colwise = operand.axes[0] == lead
    split = operand.axes[-1] + 1 if is_colwise else operand.axes[0]
    ragged = None if sizes is None else 0 if operand.last_dims is None else 1
    layout = Layout.from_shape(data.shape, lead, split, ragged, sizes)
    quantizer = check_quantizer(quantizer_name, quantizer, layout.groups)
    if quantizer is None:
        return x
    checks.check_dtype(name, data.dtype, FLOATS)
    if sizes is not None and ragged == 1:
        rows, columns = layout.matrix
        is_packed = operand.layout == PACKED
        data = (
            unpack_transposed(data.reshape(-1), sizes, (columns, rows)) if is_packed else data.reshape(rows, columns).T
        )
        layout, is_colwise = layout.transpose(), not is_colwise
    return _quantize(_GroupMatrices(data, sizes, layout), quantizer, None, is_colwise)


@functools.partial(jax.jit, static_argnums=3)
def _quantize_to_tensor(
    groups: _GroupMatrices, q: GroupedQuantizer, amax: jax.Array | None, is_colwise: bool
) -> GroupedScaledTensor1x:
    x = _quantize(groups, q, amax, is_colwise)
    layout, data, scale = x.layout, x.data, x.scale
    assert scale is not None
    if is_colwise and x.mode.colwise_layout == "T":
        if x.sizes is None:
            data = jnp.swapaxes(data.reshape(layout.groups, *layout.matrix), 1, 2)
            scale = scale if x.block is None else jnp.swapaxes(scale.reshape(layout.scale_shape(x.block)), 1, 2)
        else:
            data = pack_transposed(data.reshape(layout.matrix), x.sizes)
            if x.block is not None:
                scale = pack_transposed(scale.reshape(layout.scale_shape(x.block)), block_counts(x.sizes, x.block[0]))
        layout = layout.transpose()
    return GroupedScaledTensor1x(
        data=data.reshape(-1),
        scale_inv=scale.reshape(-1),
        amax=x.amax,
        first_dims=x.sizes,
        last_dims=None,
        scaling_mode=q.scaling_mode,
        dq_dtype=x.dtype,
        is_colwise=is_colwise,
        data_layout="T" if layout.transposed else "N",
        flatten_axis=layout.split,
        original_shape=layout.shape,
    )


def grouped_quantize(
    x: Any, quantizer: Any, group_sizes: Any = None, flatten_axis: int = -1, *, amax: Any = None
) -> GroupedNoScaleTensor | GroupedScaledTensor1x | ScaledTensor2x:
    """Quantizes each group of x.

    DELAYED_TENSOR_SCALING and CURRENT_TENSOR_SCALING give x * scale, with scale_inv = 1 / scale in float32. Delayed
    scaling has the scale of the quantizer. Current scaling has fp8_max / amax, or 1 if amax is 0 or not finite.
    MXFP8_1D_SCALING is raggemm.quantize in blocks of 32 with scales of float8_e8m0fnu. The NVFP4 modes are
    raggemm.quantize_nvfp4 of each group, in blocks of 16 or 16x16. A group's last block may be partial. Elements are
    rounded to nearest, ties to even, and saturate. For NaN and infinity see raggemm.quantize. Rows of no group are 0.

    Rowwise data has layout "N". Colwise data has "N" for MXFP8_1D_SCALING, else "T". There is no derivative. No state
    is kept: for delayed scaling, compute the next scale from amax of the result.

    Args:
      x: [M,...] with group_sizes. Without group_sizes: [G,...] if flatten_axis is 2 or more, one matrix if flatten_axis
        is 1. float16, bfloat16, float32 or float64. float64 is rounded to float32 first.
      quantizer: a GroupedQuantizer or a quantizer of TransformerEngine. None or NO_SCALING does not quantize.
      group_sizes: integer [G], the sizes of the groups along the axes before flatten_axis.
      flatten_axis: the first axis of the columns. Blocks lie along a row, or along a column if colwise.
      amax: (G,), (1,) or (). Replaces the largest magnitudes of the groups, for CURRENT_TENSOR_SCALING and NVFP4.
        Larger elements saturate.

    Returns:
      A GroupedScaledTensor1x, or for q_layout ROWWISE_COLWISE a ScaledTensor2x, or a GroupedNoScaleTensor if x is not
      quantized. The field amax, (G,), is the argument amax. Without the argument, and for delayed scaling, it is the
      largest magnitude of each group. For an empty group, this is 0.
    """
    x = checks.as_float_array("x", x, FLOATS)
    split = check_flatten_axis("flatten_axis", flatten_axis, x.shape)
    sizes = checks.as_group_sizes(group_sizes) if is_given(group_sizes) else None
    layout = Layout.from_shape(x.shape, int(sizes is None and split > 1), split, None if sizes is None else 0, sizes)
    q = check_quantizer("quantizer", quantizer, layout.groups)
    if q is None:
        return GroupedNoScaleTensor(x, amax, sizes, None, x.shape)
    amax = None if amax is None or q.scale is not None else check_amax("amax", amax, layout.groups)
    q_layout = enum_name("quantizer.q_layout", getattr(quantizer, "q_layout", None), _Q_LAYOUTS)
    groups = _GroupMatrices(x, sizes, layout)
    tensors = [_quantize_to_tensor(groups, q, amax, name == "COLWISE") for name in q_layout.split("_")]
    return ScaledTensor2x(*tensors) if len(tensors) == 2 else tensors[0]


_TILE = (128, 4)  # rows and columns of a tile of swizzled scales


def _swizzled_position(row: jax.Array, column: jax.Array, columns: Any) -> jax.Array:
    tile = row // _TILE[0] * (columns // _TILE[1]) + column // _TILE[1]
    return tile * 512 + row % 32 * 16 + row % _TILE[0] // 32 * 4 + column % _TILE[1]


def unswizzled(tensor: Any) -> GroupedScaledTensor1x:
    """Converts a tensor of TransformerEngine with swizzled scales to raggemm's layout of scale_inv.

    Args:
      tensor: a GroupedScaledTensor1x of MXFP8_1D_SCALING with scales in the layout of TransformerEngine's kernels. Each
        group's scales are padded to tiles of 128x4. Tiles are row-major, and scale (r, c) of a tile is at
        (r % 32) * 16 + (r // 32) * 4 + c. With is_colwise this holds for the transposed scales, and group sizes must be
        multiples of 32. Only rows may be ragged. pre_swizzled is ignored.

    Returns:
      A GroupedScaledTensor1x. Scales of no group, and scales beyond the end of tensor.scale_inv, are NaN.

    Raises:
      ValueError: if tensor is of another kind, or if tensor.scale_inv is too short. It must hold all rows as one padded
        group, or G padded matrices if rows are not ragged.
    """
    layout, sizes = parse_layout("tensor", tensor)
    mode = enum_name("tensor.scaling_mode", tensor.scaling_mode, MODES)
    if mode != "MXFP8_1D_SCALING" or layout.transposed or layout.ragged == 1:
        raise ValueError(
            f"tensor: is {mode} with data_layout {tensor.data_layout}{' and last_dims' if layout.ragged == 1 else ''}, "
            "must be MXFP8_1D_SCALING with data_layout N, and without last_dims"
        )
    block = stored_block(MODES[mode], tensor.is_colwise, False) or (1, 1)
    *lead, rows, columns = layout.scale_shape(block)
    counts = jnp.full(lead, rows, jnp.int32) if sizes is None else block_counts(sizes, block[0])
    scale_rows = GroupedRows.from_sizes(counts, rows * layout.groups if sizes is None else rows)
    tile = _TILE[::-1] if tensor.is_colwise else _TILE
    padded_columns = cdiv(columns, tile[1]) * tile[1]
    row, column = scale_rows.offset[:, None], jnp.arange(columns, dtype=jnp.int32)[None]
    if tensor.is_colwise:
        position = _swizzled_position(column, row, (block_counts(scale_rows.size, tile[0]) * tile[0])[:, None])
    else:
        position = _swizzled_position(row, column, padded_columns)
    scale = checks.as_float_array("tensor.scale_inv", tensor.scale_inv, (E8M0,))
    padded_rows = cdiv(layout.matrix[0] // block[0], tile[0]) * tile[0]
    least = padded_rows * padded_columns * (layout.groups if sizes is None else 1)
    if scale.ndim != 1 or scale.shape[0] < least:
        raise ValueError(f"tensor.scale_inv: shape is {scale.shape}, must be at least ({least},), padded to tiles")
    starts = block_starts(counts, tile[0]) * (tile[0] * padded_columns)
    bits = jax.lax.bitcast_convert_type(scale, jnp.uint8)
    bits = bits.at[scale_rows.positions(starts, position, scale.shape[0])].get(mode="fill", fill_value=255)
    fields: dict[str, Any] = {f.name: getattr(tensor, f.name, None) for f in dataclasses.fields(GroupedScaledTensor1x)}
    scale = jax.lax.bitcast_convert_type(bits, E8M0).reshape(-1)
    return GroupedScaledTensor1x(**fields | {"scale_inv": scale, "pre_swizzled": False})
