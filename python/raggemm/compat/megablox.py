"""megablox: gmm, tgmm and make_group_metadata of jax.experimental.pallas.ops.tpu.megablox, as of jax 0.10.2.

Semantics are those of that package's gmm.py, and of its ops.py, whose gmm adds the gradients. Deliberate differences:

- Rows of no processed group are zero, or existing_out's; there they are what the memory held.
- m need not be a multiple of the tile. tiling has no effect: a tuple, a LutFn, which is not called, and None, which is
  a ValueError there, give the same bits.
- lhs and rhs may also be float16 and float64, group_sizes also int64 and uint32, group_offset also of shape (1,), and
  both functions have every derivative.
- The gradient of gmm's existing_out is zero on the overwritten rows; there it is the whole cotangent.

What raggemm.gmm and raggemm.tgmm refuse is as there: without a group_offset the first group is group 0, even where
fewer groups are computed than group_sizes has.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from raggemm._src import api, checks

__all__ = ["gmm", "make_group_metadata", "tgmm"]


def _groups(x: Any) -> tuple[int, ...]:
    """The first axis of an array, or of a list of numbers; () of what is none, which is refused later."""
    shape = np.shape(x) if isinstance(x, tuple | list) else getattr(x, "shape", ())
    return shape[:1] if isinstance(shape, tuple) else ()


def first_group(group_offset: Any, rhs: Any, group_sizes: Any) -> Any:
    """group_offset, or 0 where it is left out and rhs [groups,...] has fewer groups than group_sizes."""
    return 0 if group_offset is None and _groups(rhs) < _groups(group_sizes) else group_offset


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
    """raggemm.gmm, whose docstring has the arguments; without a group_offset rhs[0] is for group 0."""
    group_offset = first_group(group_offset, rhs, group_sizes)
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
    """raggemm.tgmm, whose docstring has the arguments; without a group_offset group 0 is the first."""
    if group_offset is None and num_actual_groups is not None:
        group_offset = 0
    return api.tgmm(
        lhs, rhs, group_sizes, preferred_element_type, tiling, group_offset, num_actual_groups, existing_out, interpret
    )


def _number(name: str, x: Any) -> jax.Array:
    return checks.check_shape(name, checks.as_integer_array(name, x), (), (1,))


def _repeated(counts: jax.Array, length: int) -> jax.Array:
    """int32 [length]: counts[0] zeros, counts[1] ones, and so on, cut off or padded with the last index."""
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
    """The tiles that megablox' kernels visit, in order, element for element as megablox computes them.

    raggemm does not need it; it is here for programs that schedule by it. A tile is tm rows of lhs. It is visited once
    by each group with rows in it; a tile without rows of any group is listed once too, behind the others.

    Args:
      group_sizes: [num_groups], integer, the rows of each group.
      m: rows of lhs.
      tm: rows of a tile. ValueError unless it divides m.
      start_group: integer, the first group of this shard. Its visits come first.
      num_nonzero_groups: how many groups this shard has.
      visit_empty_groups: whether an empty group gets one visit, so that tgmm can write its zeros.

    Returns:
      (group_offsets, group_ids, m_tile_ids), num_tiles: the first row of each group and behind them the sum,
      [num_groups + 1]; the group and the tile of each visit, [m/tm + num_groups - 1], padded with the last ones; the
      number of visits of this shard, ().
    """
    group_sizes = checks.as_integer_array("group_sizes", group_sizes)
    if group_sizes.ndim != 1:
        raise ValueError(f"group_sizes: shape is {group_sizes.shape}, must have 1 axes")
    m, tm, visits = (
        checks.check_count("m", m, 0),
        checks.check_integer("tm", tm),
        checks.check_bool("visit_empty_groups", visit_empty_groups),
    )
    first = _number("start_group", start_group).astype(int)
    behind = first + _number("num_nonzero_groups", num_nonzero_groups).astype(int)
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
    tiles_of_group = (ends + tm - 1) // tm - starts // tm
    visits_of_group = jnp.where(is_empty, int(visits), tiles_of_group).astype(jnp.int32)
    group_ids = _repeated(visits_of_group, length)

    # The group that has a tile's first row visits it, and so does every other one that starts in it.
    is_further_visit = jnp.where(is_empty, visits, starts % tm != 0)
    visits_of_tile = jnp.ones(tiles, jnp.int32).at[starts // tm].add(is_further_visit.astype(jnp.int32), mode="drop")
    m_tile_ids = _repeated(visits_of_tile, length)

    visits_before = (group_ids.astype(int) < first).sum()
    group = jnp.arange(num_groups)
    is_local = (group >= first) & (group < behind)
    num_tiles = jnp.where(is_local, visits_of_group, 0).sum()
    return (group_offsets, jnp.roll(group_ids, -visits_before), jnp.roll(m_tile_ids, -visits_before)), num_tiles
