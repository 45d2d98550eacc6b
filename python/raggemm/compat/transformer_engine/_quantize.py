"""grouped_quantize, the same for operands of products, whose data is never transposed, and unswizzled."""

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
from raggemm.compat.transformer_engine._products import amax_factor
from raggemm.compat.transformer_engine._ragged import (
    Rows,
    block_of_rows,
    block_starts,
    blocks_of,
    ceiling,
    packed,
    unpacked,
)
from raggemm.compat.transformer_engine._tensors import (
    F32,
    MODES,
    GroupedNoScaleTensor,
    GroupedQuantizer,
    GroupedScaledTensor1x,
    Layout,
    QuantizerSet,
    Scaled,
    ScaledTensor2x,
    amax_of,
    flattened,
    is_set,
    layout_of,
    name_of,
    stored_block,
)

_Q_LAYOUTS = ("ROWWISE", "COLWISE", "ROWWISE_COLWISE")


def has_quantizers(x: Any, name: str = "quantizer_set") -> bool:
    """Returns True if a set has a quantizer. TypeError for an object without the fields of a set."""
    if x is not None and not any(hasattr(x, field) for field in QuantizerSet._fields):
        raise TypeError(f"{name}: is a {type(x).__name__}, must have {', '.join(QuantizerSet._fields)}")
    return any(getattr(x, field, None) is not None for field in QuantizerSet._fields)


def checked_quantizer(name: str, quantizer: Any, groups: int) -> GroupedQuantizer | None:
    """A quantizer, or anything with its attributes, with the name of its mode and one scale for each group, and no
    q_layout of its own. None where nothing is to be quantized."""
    if quantizer is None:
        return None
    missing = [a for a in ("q_dtype", "scaling_mode") if not hasattr(quantizer, a)]
    if missing:
        raise TypeError(f"{name}: {type(quantizer).__name__} has no attribute {', '.join(missing)}")
    mode = name_of(f"{name}.scaling_mode", quantizer.scaling_mode, MODES)
    if mode == "NO_SCALING":
        return None
    dtype = np.dtype(quantizer.q_dtype)
    checks.check_dtype(f"{name}.q_dtype: of {mode}", dtype, MODES[mode].elements)
    if mode != "DELAYED_TENSOR_SCALING":
        return GroupedQuantizer(dtype, mode)
    parts = getattr(quantizer, "quantizers", None)
    given = [q.scale for q in parts] if parts else [getattr(quantizer, "scale", None)]
    if any(x is None for x in given):
        raise ValueError(f"{name}.scale: is None, which DELAYED_TENSOR_SCALING needs")
    scale = jnp.concatenate([checks.as_float_array(f"{name}.scale", x).reshape(-1) for x in given]).astype(F32)
    if scale.shape not in ((groups,), (1,)):
        raise ValueError(f"{name}.scale: shape is {scale.shape}, must be ({groups},), one for each group")
    return GroupedQuantizer(dtype, mode, scale=jnp.broadcast_to(scale, (groups,)))


@functools.partial(jax.tree_util.register_dataclass, data_fields=("x", "sizes"), meta_fields=("layout",))
@dataclasses.dataclass(frozen=True)
class _Groups:
    """The matrices of an array: [G,rows,columns], or [rows,columns] whose rows the groups divide."""

    x: jax.Array
    sizes: Any
    layout: Layout

    @property
    def rows(self) -> Rows | None:
        return None if self.sizes is None else Rows.of(self.sizes, self.layout.matrix[0])

    def matrices(self) -> "_Groups":
        """In float32, and 0 in rows of no group."""
        x = jax.lax.stop_gradient(self.x.astype(jnp.float32))
        if self.rows is None:
            x = x.reshape(self.layout.groups, *self.layout.matrix)
        else:
            x = jnp.where((self.rows.group < self.layout.groups)[:, None], x.reshape(self.layout.matrix), 0)
        return dataclasses.replace(self, x=x)

    def amax(self) -> jax.Array:
        """(G,), 0 of a group without elements; a NaN is the largest."""
        bits = magnitude_bits(self.x)
        if self.rows is None:
            bits = jnp.max(bits, (1, 2), initial=0)
        else:
            bits = jax.ops.segment_max(jnp.max(bits, 1, initial=0), self.rows.group, self.layout.groups)
        return jax.lax.bitcast_convert_type(jnp.maximum(bits, 0), jnp.float32)

    def times(self, values: jax.Array) -> jax.Array:
        """Each group times its value, of (G,)."""
        if self.rows is None:
            return self.x * values[:, None, None]
        return self.x * jnp.append(values, 1)[self.rows.group][:, None]

    def in_blocks(self, dtype: Any, scale_dtype: Any, block: tuple[int, int]) -> tuple[jax.Array, jax.Array]:
        """The elements, and the scales of blocks, the last ones of which are filled up with zeros."""
        (rows, columns), counts, at = self.layout.matrix, self.layout.scales(block), None
        x = jnp.pad(self.x, ((0, 0),) * (self.x.ndim - 1) + ((0, -columns % block[1]),))
        if self.rows is None:
            x = jnp.pad(x, ((0, 0), (0, -rows % block[0]), (0, 0)))
        elif block[0] > 1:  # each group begins with a block of its own
            at = block_of_rows(self.rows, self.sizes, block[0]) * block[0] + self.rows.place % block[0]
            x = jnp.zeros((counts[0] * block[0], x.shape[1]), x.dtype).at[at].set(x, mode="drop")
        q = quantize_blocks(x, QuantSpec(dtype, scale_dtype, False, counts, None))
        data = q.data[..., :rows, :columns] if at is None else gather_rows(q.data[:, :columns], at)
        return data, q.scale


def _tensor_scale(amax: jax.Array, dtype: np.dtype) -> jax.Array:
    """fp8_max / amax, at most 2^126, whose reciprocal is still normal; 1 where amax is 0 or not finite."""
    largest = float(jnp.finfo(dtype).max)
    return jnp.where(jnp.isfinite(amax) & (amax > 0), jnp.minimum(largest / amax, 2.0**126), 1)


@functools.partial(jax.jit, static_argnums=3)
def _quantized(groups: _Groups, q: GroupedQuantizer, amax: jax.Array | None, is_colwise: bool) -> Scaled:
    dtype, groups = groups.x.dtype, groups.matrices()
    mode = MODES[q.scaling_mode]
    block = stored_block(mode, is_colwise, False)
    amax = groups.amax() if amax is None else jnp.broadcast_to(amax, (groups.layout.groups,))
    if block is None:
        scale = _tensor_scale(amax, q.q_dtype) if q.scale is None else q.scale
        data, scale = (
            round_to_elements(groups.times(scale), groups.x, QuantSpec(q.q_dtype, F32, False, (), None)),
            1 / scale,
        )
    else:
        if mode.has_amax_factor:
            groups = dataclasses.replace(groups, x=groups.times(1 / amax_factor(amax)))
        data, scale = groups.in_blocks(q.q_dtype, mode.scale, block)
    return Scaled(mode, groups.layout, block, dtype, data.reshape(-1), scale.reshape(-1), amax, groups.sizes)


def along(name: str, x: Any, quantizer_name: str, quantizer: Any, axes: Sequence[int]) -> Any:
    """An operand of a product, quantized along its contracted axes; x itself where it is quantized or there is no
    quantizer."""
    if isinstance(x, Scaled) or quantizer is None:
        return x
    given = Operand.parse(name, None, x, axes)
    if len(given.dims) == 2:
        raise ValueError(f"{quantizer_name}: {name} has first_dims and last_dims, one may be set to be quantized")
    data, sizes = given.data, next(iter(given.dims.values()), None)
    lead = int(sizes is None and given.rank - len(given.axes) > 1)
    is_colwise = given.axes[0] == lead
    split = given.axes[-1] + 1 if is_colwise else given.axes[0]
    ragged = None if sizes is None else 0 if given.last_dims is None else 1
    layout = Layout.of(data.shape, lead, split, ragged, sizes)
    quantizer = checked_quantizer(quantizer_name, quantizer, layout.groups)
    if quantizer is None:
        return x
    checks.check_dtype(name, data.dtype, FLOATS)
    if sizes is not None and ragged == 1:
        rows, columns = layout.matrix
        is_packed = given.layout == PACKED
        data = unpacked(data.reshape(-1), sizes, (columns, rows)) if is_packed else data.reshape(rows, columns).T
        layout, is_colwise = layout.turned(), not is_colwise
    return _quantized(_Groups(data, sizes, layout), quantizer, None, is_colwise)


@functools.partial(jax.jit, static_argnums=3)
def _tensor(groups: _Groups, q: GroupedQuantizer, amax: jax.Array | None, is_colwise: bool) -> GroupedScaledTensor1x:
    """In the layout of its mode."""
    x = _quantized(groups, q, amax, is_colwise)
    layout, data, scale = x.layout, x.data, x.scale
    assert scale is not None
    if is_colwise and x.mode.colwise_layout == "T":
        if x.sizes is None:
            data = jnp.swapaxes(data.reshape(layout.groups, *layout.matrix), 1, 2)
            scale = scale if x.block is None else jnp.swapaxes(scale.reshape(layout.scales(x.block)), 1, 2)
        else:
            data = packed(data.reshape(layout.matrix), x.sizes)
            if x.block is not None:
                scale = packed(scale.reshape(layout.scales(x.block)), blocks_of(x.sizes, x.block[0]))
        layout = layout.turned()
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
    """x with scales for each group, as TransformerEngine's.

    DELAYED_TENSOR_SCALING and CURRENT_TENSOR_SCALING give x * scale, with scale_inv = 1 / scale in float32. The scale
    is the quantizer's, or fp8_max / amax, and 1 where that of a group is 0 or not finite. MXFP8_1D_SCALING is
    raggemm.quantize with scales of float8_e8m0fnu in blocks of 32, the NVFP4 modes are raggemm.quantize_nvfp4 for each
    group, in blocks of 16 or 16x16. The last block of a group may be partial. Elements are rounded to nearest, ties to
    even, and saturate; a NaN or an infinity becomes what raggemm.quantize says. Rows of no group are 0.

    Data is that of GroupedScaledTensor1x: rowwise "N"; colwise "N" of MXFP8_1D_SCALING and else "T". No derivative
    passes through. No state is kept: with delayed scaling make the next quantizer's scale of the result's amax.

    Args:
      x: [M,...] with group_sizes, else [G,...] with a flatten_axis of 2 or more, or one matrix with 1; of float16,
        bfloat16, float32 or float64, which is rounded to float32 first.
      quantizer: a GroupedQuantizer or one of TransformerEngine's. None, or NO_SCALING: x is not quantized.
      group_sizes: integer [G], the sizes of the groups along the axes before flatten_axis.
      flatten_axis: the first axis of the columns; blocks lie along them, or along the rows if colwise.
      amax: (G,), (1,) or (), to be taken for the largest magnitudes of groups: what is beyond it saturates. Of
        CURRENT_TENSOR_SCALING and NVFP4. By name alone, for TransformerEngine has it no more.

    Returns:
      A GroupedScaledTensor1x, or a ScaledTensor2x of two with q_layout ROWWISE_COLWISE. amax is (G,), the
      given one or the largest magnitude of each group by its number, 0 of an empty one.
    """
    x = checks.as_float_array("x", x, FLOATS)
    split = flattened("flatten_axis", flatten_axis, x.shape)
    sizes = checks.as_group_sizes(group_sizes) if is_set(group_sizes) else None
    layout = Layout.of(x.shape, int(sizes is None and split > 1), split, None if sizes is None else 0, sizes)
    q = checked_quantizer("quantizer", quantizer, layout.groups)
    if q is None:
        return GroupedNoScaleTensor(x, amax, sizes, None, x.shape)
    amax = None if amax is None or q.scale is not None else amax_of("amax", amax, layout.groups)
    q_layout = name_of("quantizer.q_layout", getattr(quantizer, "q_layout", None), _Q_LAYOUTS)
    made = [_tensor(_Groups(x, sizes, layout), q, amax, name == "COLWISE") for name in q_layout.split("_")]
    return ScaledTensor2x(*made) if len(made) == 2 else made[0]


_TILE = (128, 4)


def _place(row: jax.Array, column: jax.Array, columns: Any) -> jax.Array:
    """In a matrix of scales of so many columns: tiles are row-major, and 32 rows of a tile 16 bytes apart."""
    tile = row // _TILE[0] * (columns // _TILE[1]) + column // _TILE[1]
    return tile * 512 + row % 32 * 16 + row % _TILE[0] // 32 * 4 + column % _TILE[1]


def unswizzled(tensor: Any) -> GroupedScaledTensor1x:
    """A GroupedScaledTensor1x of TransformerEngine's with scale_inv as raggemm has it.

    Args:
      tensor: of MXFP8_1D_SCALING, whose scales are those of its kernels, whatever pre_swizzled says: the matrix of
        each group is padded to tiles of 128x4, tiles are row-major, and scale (r, c) of one is at
        (r % 32) * 16 + (r // 32) * 4 + c; if is_colwise, of the transposed matrix. Groups divide the rows, or nothing.
        Where blocks lie along the rows, sizes are multiples of 32 there.

    Returns:
      A GroupedScaledTensor1x. ValueError where it cannot be one; scales that scale_inv does not have are NaN.
    """
    layout, sizes = layout_of("tensor", tensor)
    mode = name_of("tensor.scaling_mode", tensor.scaling_mode, MODES)
    if mode != "MXFP8_1D_SCALING" or layout.transposed or layout.ragged == 1:
        raise ValueError(
            f"tensor: is {mode} with data_layout {tensor.data_layout}{' and last_dims' if layout.ragged == 1 else ''}, "
            "must be MXFP8_1D_SCALING with data_layout N, and without last_dims"
        )
    block = stored_block(MODES[mode], tensor.is_colwise, False) or (1, 1)
    *lead, rows, columns = layout.scales(block)
    counts = jnp.full(lead, rows, jnp.int32) if sizes is None else blocks_of(sizes, block[0])
    at = Rows.of(counts, rows * layout.groups if sizes is None else rows)
    tile = _TILE[::-1] if tensor.is_colwise else _TILE
    wide = ceiling(columns, tile[1]) * tile[1]
    place, column = at.place[:, None], jnp.arange(columns, dtype=jnp.int32)[None]
    if tensor.is_colwise:
        place = _place(column, place, (blocks_of(at.size, tile[0]) * tile[0])[:, None])
    else:
        place = _place(place, column, wide)
    scale = checks.as_float_array("tensor.scale_inv", tensor.scale_inv, (E8M0,))
    least = ceiling(layout.matrix[0] // block[0], tile[0]) * tile[0] * wide * (layout.groups if sizes is None else 1)
    if scale.ndim != 1 or scale.shape[0] < least:
        raise ValueError(f"tensor.scale_inv: shape is {scale.shape}, must be at least ({least},), padded to tiles")
    starts = block_starts(counts, tile[0]) * (tile[0] * wide)
    bits = jax.lax.bitcast_convert_type(scale, jnp.uint8)
    bits = bits.at[at.positions(starts, place, scale.shape[0])].get(mode="fill", fill_value=255)
    fields: dict[str, Any] = {f.name: getattr(tensor, f.name, None) for f in dataclasses.fields(GroupedScaledTensor1x)}
    scale = jax.lax.bitcast_convert_type(bits, E8M0).reshape(-1)
    return GroupedScaledTensor1x(**fields | {"scale_inv": scale, "pre_swizzled": False})
