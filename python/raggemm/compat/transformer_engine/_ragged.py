"""Groups that divide the rows of a matrix [rows, width]: blocks of rows that begin anew in each, and packing."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from raggemm._src.quantization import E8M0
from raggemm._src.routing import gather_rows


def ceiling(x: int, size: int) -> int:
    """How many blocks of this size x rows need, of which the last may be partial."""
    return -(-x // size)


def most_blocks(rows: int, groups: int, size: int) -> int:
    """How many blocks there are at most: when all groups but one have a single row."""
    return min(rows, (rows + (size - 1) * groups) // size)


def filled(x: jax.Array, rows: jax.Array) -> jax.Array:
    """Gathers x[rows]. A row from len(x) on is 0. float8_e8m0fnu has no 0: there the row is the least power of two, for
    JAX would make NaN of 0, and jax.debug_nans raises for a NaN that nothing reads."""
    if x.dtype != E8M0:
        return gather_rows(x, rows)
    return jax.lax.bitcast_convert_type(gather_rows(jax.lax.bitcast_convert_type(x, jnp.uint8), rows), E8M0)


class Rows(NamedTuple):
    """The group of each row, its place there, and the group's size. Rows of no group have the last number."""

    group: jax.Array
    place: jax.Array
    size: jax.Array

    @classmethod
    def of(cls, sizes: jax.Array, rows: int) -> "Rows":
        sizes = sizes.astype(jnp.int32)
        ends = jnp.cumsum(sizes)
        row = jnp.arange(rows, dtype=jnp.int32)
        group = jnp.searchsorted(ends, row, side="right")
        return cls(group, row - jnp.append(ends - sizes, 0)[group], jnp.append(sizes, 0)[group])

    def positions(self, starts: jax.Array, places: jax.Array, end: int) -> jax.Array:
        """`places` behind where their groups start; `end`, which is outside, for rows of no group."""
        groups = starts.shape[0]
        starts = jnp.append(starts, 0)[self.group].reshape(-1, *(1,) * (places.ndim - 1))
        return jnp.where((self.group < groups).reshape(starts.shape), starts + places, end)


def block_starts(sizes: jax.Array, size: int) -> jax.Array:
    """The first block of each group, where those of a group follow those of the one before it."""
    counts = blocks_of(sizes, size)
    return jnp.cumsum(counts) - counts


def blocks_of(sizes: jax.Array, size: int) -> jax.Array:
    return -(-sizes.astype(jnp.int32) // size)


def block_of_rows(rows: Rows, sizes: jax.Array, size: int) -> jax.Array:
    """The block of each row, one beyond the last that there may be for rows of no group."""
    most = most_blocks(rows.group.shape[0], sizes.shape[0], size)
    return rows.positions(block_starts(sizes, size), rows.place // size, most)


def _packed_positions(sizes: jax.Array, rows: int, width: int) -> jax.Array:
    """Returns the positions of the elements of [rows, width] once the matrix of each group is transposed."""
    if rows * width > np.iinfo(np.int32).max:
        raise ValueError(f"groups of [{rows},{width}] cannot be transposed: at most {np.iinfo(np.int32).max} elements")
    at = Rows.of(sizes, rows)
    places = at.place[:, None] + jnp.arange(width, dtype=jnp.int32)[None] * at.size[:, None]
    return at.positions(block_starts(sizes, 1) * width, places, rows * width)


def packed(x: jax.Array, sizes: jax.Array) -> jax.Array:
    """[rows, width] as the transposed matrices of the groups, one after the other; 0 behind them. 1-D."""
    positions = _packed_positions(sizes, *x.shape)
    return jnp.zeros(x.size, x.dtype).at[positions].set(x, mode="drop")


def unpacked(flat: jax.Array, sizes: jax.Array, shape: tuple[int, int]) -> jax.Array:
    """Inverts `packed`. Rows that belong to no group are filled by `filled`."""
    return filled(flat, _packed_positions(sizes, *shape))
