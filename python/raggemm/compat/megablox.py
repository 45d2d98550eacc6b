"""megablox: gmm, tgmm and make_group_metadata of jax.experimental.pallas.ops.tpu.megablox, as of jax 0.10.2.

The semantics are those of gmm.py in that package, with the gradients of gmm in ops.py. Deliberate differences:

- Rows outside the processed groups are zero, or rows of existing_out. In megablox they are uninitialized memory.
- m need not be a multiple of the tile. A LutFn is not called.
- lhs and rhs may also be float16 and float64. group_sizes may also be int64 and uint32, and group_offset may have the
  shape (1,). Both functions have every derivative.
- The gradient of existing_out is zero on overwritten rows. In megablox it is the whole cotangent of gmm.

As in megablox, and unlike in raggemm.gmm and raggemm.tgmm, group_offset defaults to 0 even if fewer groups are computed
than group_sizes has.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from raggemm._src import api, checks

__all__ = ["gmm", "make_group_metadata", "tgmm"]


def _leading_extent(x: Any) -> tuple[int, ...]:
    """Returns (extent of axis 0,), or () if x has no axis or no shape."""
    shape = np.shape(x) if isinstance(x, tuple | list) else getattr(x, "shape", ())
    return shape[:1] if isinstance(shape, tuple) else ()


def resolve_group_offset(group_offset: Any, rhs: Any, group_sizes: Any) -> Any:
    """Returns group_offset, or 0 if it is None and rhs [groups,...] has fewer groups than group_sizes."""
    return 0 if group_offset is None and _leading_extent(rhs) < _leading_extent(group_sizes) else group_offset


def gmm(
    lhs: Any,
    rhs: Any,
    group_sizes: Any,
    preferred_element_type: Any = jnp.float32,
    tiling: Any = (128, 128, 128),
    group_offset: Any = None,
    existing_out: Any = None,
    transpose_rhs: bool = False,
    interpret: bool = False,
) -> jax.Array:
    """Computes raggemm.gmm with 0 as the default of group_offset. See raggemm.gmm for the arguments."""
    group_offset = resolve_group_offset(group_offset, rhs, group_sizes)
    return api.gmm(
        lhs, rhs, group_sizes, preferred_element_type, tiling, group_offset, existing_out, transpose_rhs, interpret
    )


def tgmm(
    lhs: Any,
    rhs: Any,
    group_sizes: Any,
    preferred_element_type: Any = jnp.float32,
    tiling: Any = (128, 128, 128),
    group_offset: Any = None,
    num_actual_groups: int | None = None,
    existing_out: Any = None,
    interpret: bool = False,
) -> jax.Array:
    """Computes raggemm.tgmm with 0 as the default of group_offset. See raggemm.tgmm for the arguments."""
    if group_offset is None and num_actual_groups is not None:
        group_offset = 0
    return api.tgmm(
        lhs, rhs, group_sizes, preferred_element_type, tiling, group_offset, num_actual_groups, existing_out, interpret
    )


def _scalar(name: str, x: Any) -> jax.Array:
    return checks.check_shape(name, checks.as_integer_array(name, x), (), (1,))


def _repeat_indices(counts: jax.Array, length: int) -> jax.Array:
    """Returns counts[0] zeros, counts[1] ones, and so on, truncated or padded with the last index: int32 [length]."""
    if not counts.shape[0]:
        return jnp.zeros(0, jnp.int32)
    first = jnp.cumsum(counts) - counts
    return jnp.searchsorted(first, jnp.arange(length, dtype=first.dtype), side="right").astype(jnp.int32) - 1


def make_group_metadata(
    *,
    group_sizes: Any,
    m: int,
    tm: int,
    start_group: Any,
    num_nonzero_groups: int,
    visit_empty_groups: bool = True,
) -> tuple[tuple[jax.Array, jax.Array, jax.Array], jax.Array]:
    """Computes the order in which the kernels of megablox visit tiles, exactly as megablox does.

    A tile is tm rows of lhs. Each group with rows in a tile visits the tile once. A tile without rows of any group is
    listed once, after the visits of the last group.

    Args:
      group_sizes: [num_groups], integer, the rows of each group.
      m: rows of lhs.
      tm: rows of a tile. Must divide m (else ValueError).
      start_group: integer, the first group of this shard. group_ids and m_tile_ids begin with its visits.
      num_nonzero_groups: number of groups of this shard.
      visit_empty_groups: True gives an empty group one visit, so that tgmm can write its zeros.

    Returns:
      (group_offsets, group_ids, m_tile_ids), num_tiles. group_offsets, [num_groups + 1], has the first row of each
      group, then the sum of all sizes. group_ids and m_tile_ids, [m/tm + num_groups - 1], have the group and the tile
      of each visit, padded with the last element. num_tiles, (), is the number of visits of this shard.
    """
    group_sizes = checks.as_integer_array("group_sizes", group_sizes)
    if group_sizes.ndim != 1:
        raise ValueError(f"group_sizes: shape is {group_sizes.shape}, must have 1 axis")
    m, tm = checks.check_count("m", m, 0), checks.check_integer("tm", tm)
    visit_empty_groups = checks.check_bool("visit_empty_groups", visit_empty_groups)
    first = _scalar("start_group", start_group).astype(int)
    end = first + _scalar("num_nonzero_groups", num_nonzero_groups).astype(int)
    if tm < 1 or m % tm:
        raise ValueError(f"tm is {tm}, but m = {m} must be divisible by it")
    num_groups, tiles = group_sizes.shape[0], m // tm
    length = tiles + num_groups - 1

    if jnp.issubdtype(group_sizes.dtype, jnp.unsignedinteger):
        group_sizes = group_sizes.astype(int)
    ends = jnp.cumsum(group_sizes)
    group_offsets = jnp.concatenate([jnp.zeros(1, ends.dtype), ends])
    starts = group_offsets[:-1]
    is_empty = group_sizes == 0
    tiles_per_group = (ends + tm - 1) // tm - starts // tm
    visits_per_group = jnp.where(is_empty, int(visit_empty_groups), tiles_per_group).astype(jnp.int32)
    group_ids = _repeat_indices(visits_per_group, length)

    # Number of visits of each tile: one, plus one for each group that starts after the tile's first row. If
    # visit_empty_groups is set, also plus one for each empty group that starts in the tile.
    is_extra_visit = jnp.where(is_empty, visit_empty_groups, starts % tm != 0)
    visits_per_tile = jnp.ones(tiles, jnp.int32).at[starts // tm].add(is_extra_visit.astype(jnp.int32), mode="drop")
    m_tile_ids = _repeat_indices(visits_per_tile, length)

    visits_before = (group_ids.astype(int) < first).sum()
    group = jnp.arange(num_groups)
    is_local = (group >= first) & (group < end)
    num_tiles = jnp.where(is_local, visits_per_group, 0).sum()
    return (group_offsets, jnp.roll(group_ids, -visits_before), jnp.roll(m_tile_ids, -visits_before)), num_tiles
