"""Scales as TransformerEngine's kernels have them: padded to tiles and swizzled."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from raggemm._src.checks import float_array
from raggemm._src.quantization import E8M0
from raggemm.compat.transformer_engine._ragged import Rows, block_starts, blocks_of, ceiling
from raggemm.compat.transformer_engine._tensors import MODES, GroupedScaledTensor1x, layout_of, name_of, stored_block

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
    scale = float_array("tensor.scale_inv", tensor.scale_inv, (E8M0,))
    least = ceiling(layout.matrix[0] // block[0], tile[0]) * tile[0] * wide * (layout.groups if sizes is None else 1)
    if scale.ndim != 1 or scale.shape[0] < least:
        raise ValueError(f"tensor.scale_inv: shape is {scale.shape}, must be at least ({least},), padded to tiles")
    starts = block_starts(counts, tile[0]) * (tile[0] * wide)
    bits = jax.lax.bitcast_convert_type(scale, jnp.uint8)
    bits = bits.at[at.positions(starts, place, scale.shape[0])].get(mode="fill", fill_value=255)
    fields: dict[str, Any] = {f.name: getattr(tensor, f.name, None) for f in dataclasses.fields(GroupedScaledTensor1x)}
    scale = jax.lax.bitcast_convert_type(bits, E8M0).reshape(-1)
    return GroupedScaledTensor1x(**fields | {"scale_inv": scale, "pre_swizzled": False})
