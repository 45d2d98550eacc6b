"""Numbers blocks of rows that never span two groups, and packs the transposed matrices of groups."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from raggemm._src import routing
from raggemm._src.quantization import E8M0


def cdiv(x: int, size: int) -> int:
    return -(-x // size)


def max_blocks(rows: int, groups: int, size: int) -> int:
    """Returns the largest possible number of blocks of `size` rows if `groups` groups share `rows` rows."""
    return min(rows, (rows + (size - 1) * groups) // size)


def gather_rows(x: jax.Array, rows: jax.Array) -> jax.Array:
    """Gathers x[rows], and zeros for indices from len(x) on.

    float8_e8m0fnu has no 0, so 2^-127 takes its place. JAX would use NaN. This fails with jax.debug_nans.
    """
    if x.dtype != E8M0:
        return routing.gather_rows(x, rows)
    return jax.lax.bitcast_convert_type(routing.gather_rows(jax.lax.bitcast_convert_type(x, jnp.uint8), rows), E8M0)


class GroupedRows(NamedTuple):
    """For each row of a matrix: its group, its index in the group, and the group's size."""

    group: jax.Array  # group of each row; the number of groups for rows of no group
    offset: jax.Array
    size: jax.Array  # 0 for rows of no group

    @classmethod
    def from_sizes(cls, sizes: jax.Array, rows: int) -> "GroupedRows":
        sizes = sizes.astype(jnp.int32)
        ends = jnp.cumsum(sizes)
        row = jnp.arange(rows, dtype=jnp.int32)
        group = jnp.searchsorted(ends, row, side="right")
        return cls(group, row - jnp.append(ends - sizes, 0)[group], jnp.append(sizes, 0)[group])

    def positions(self, starts: jax.Array, offsets: jax.Array, end: int) -> jax.Array:
        """Returns positions of each row in another array: starts[group] + offsets. Rows of no group get `end`.

        starts: position of each group in the other array. offsets: one or more per row, from the start of its group.
        end: size of the other array.
        """
        groups = starts.shape[0]
        starts = jnp.append(starts, 0)[self.group].reshape(-1, *(1,) * (offsets.ndim - 1))
        return jnp.where((self.group < groups).reshape(starts.shape), starts + offsets, end)


def block_starts(sizes: jax.Array, size: int) -> jax.Array:
    counts = block_counts(sizes, size)
    return jnp.cumsum(counts) - counts


def block_counts(sizes: jax.Array, size: int) -> jax.Array:
    return -(-sizes.astype(jnp.int32) // size)


def block_of_each_row(rows: GroupedRows, sizes: jax.Array, size: int) -> jax.Array:
    out_of_bounds = max_blocks(rows.group.shape[0], sizes.shape[0], size)
    return rows.positions(block_starts(sizes, size), rows.offset // size, out_of_bounds)


def _packed_positions(sizes: jax.Array, rows: int, width: int) -> jax.Array:
    """Returns the position of each element of a matrix [rows, width] in the result of pack_transposed."""
    if rows * width > np.iinfo(np.int32).max:
        raise ValueError(f"groups of [{rows},{width}] cannot be transposed: at most {np.iinfo(np.int32).max} elements")
    grouped = GroupedRows.from_sizes(sizes, rows)
    offsets = grouped.offset[:, None] + jnp.arange(width, dtype=jnp.int32)[None] * grouped.size[:, None]
    return grouped.positions(block_starts(sizes, 1) * width, offsets, rows * width)


def pack_transposed(x: jax.Array, sizes: jax.Array) -> jax.Array:
    """Concatenates the transposed matrices of the groups of x [rows, width] in a flat array, padded with zeros."""
    positions = _packed_positions(sizes, *x.shape)
    return jnp.zeros(x.size, x.dtype).at[positions].set(x, mode="drop")


def unpack_transposed(flat: jax.Array, sizes: jax.Array, shape: tuple[int, int]) -> jax.Array:
    """Returns the array of shape (rows, width) that pack_transposed has packed.

    Rows of no group get the zeros of gather_rows.
    """
    return gather_rows(flat, _packed_positions(sizes, *shape))
