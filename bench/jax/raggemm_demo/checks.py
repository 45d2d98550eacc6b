"""Computes the errors of results, in units of a tolerance. Errors of correct results are at most 1.

Each product of raggemm is compared with float64 on its own inputs, on sampled rows, with the tolerance of
docs/numerics.md. Whole blocks are compared with each other, with the tolerance in `disagreement`.
"""

import concurrent.futures
import os
import random
from collections.abc import Iterator, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from raggemm_demo.formats import Dequantized
from raggemm_demo.layers import Products, Weights

# Most weights that the check of one product reads: those of 10 experts of 2048 x 768. At least two experts are checked.
_SAMPLED_WEIGHTS = 2**24
_WIDENED = 2**17  # Weights that are converted to float64 at once, so that they fit into caches.
_SAMPLED_ROWS = 4  # Most rows that are checked in a sampled group.

_Array = jax.Array | np.ndarray


@jax.jit  # Without jit, each loop would pass over gigabytes of weight gradients.
def _disagreements(got: jax.Array, reference: jax.Array) -> jax.Array:
    def lengths(a: jax.Array) -> jax.Array:
        squares = jnp.square(a)
        while squares.ndim > 1:
            # Sums one axis at a time, in 0.6 of the time of both axes at once.
            squares = squares.sum(1)
        return jnp.sqrt(squares)

    got, reference = (jnp.atleast_1d(a.astype(jnp.float32)) for a in (got, reference))
    distance = lengths(got - reference)
    # If an entry of the reference is zero, only exact zeros agree.
    return jnp.where(distance == 0, 0, 256 * distance / lengths(reference))


def disagreement(got: jax.Array, reference: jax.Array) -> float:
    """Returns the largest distance between an entry of got and the same entry of the reference.

    Entries are indices of the first axis: rows, or matrices of experts. A scalar is one entry. The unit is 1/256 of the
    norm of the reference entry. Correct results may differ by this much, because the block rounds values to bfloat16.
    """
    ratio = np.asarray(_disagreements(got, reference))
    return float(np.where(np.isnan(ratio), np.inf, ratio).max(initial=0.0))


def _float64(x: np.ndarray) -> np.ndarray:
    if x.dtype == jnp.bfloat16:  # NumPy's own conversion takes ten times as long.
        x = (x.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    return x.astype(np.float64)


def largest_error(got: np.ndarray, lhs: np.ndarray, rhs: np.ndarray, scalings: float = 0) -> float:
    """Returns the largest error of got = lhs x rhs, in units of the tolerance of float32 sums. NaN gives infinity.

    scalings: number of roundings that scales add to each sum.
    """
    k, n = rhs.shape
    want, magnitude = np.zeros((2, len(lhs), n))
    step = max(1, _WIDENED // max(1, n))
    for at in range(0, k, step):
        a, b = _float64(lhs[:, at : at + step]), _float64(rhs[at : at + step])
        want += a @ b
        magnitude += np.abs(a) @ np.abs(b)
    compute, out = jnp.finfo(jnp.float32), jnp.finfo(got.dtype)
    bound = float(compute.eps) * (258 + k / 256 + scalings) * magnitude + float(out.eps) * np.abs(want)
    bound += (k + 4) * float(compute.smallest_subnormal) + float(out.smallest_subnormal)
    error = np.abs(_float64(got) - want) / bound
    return float(np.where(np.isnan(error), np.inf, error).max(initial=0.0))


def _sampled(population: Sequence[int], count: int, *always: int) -> list[int]:
    """Returns up to `count` members of the population: `always`, then a sample of the others with a fixed seed."""
    others = [i for i in population if i not in always]
    return [*set(always), *random.Random(5).sample(others, min(len(others), max(0, count - len(set(always)))))]


def rows_error(got: _Array, lhs: _Array, rhs: _Array | Dequantized, sizes: Sequence[int]) -> float:
    """Returns the largest error of got[rows of g] = lhs[rows of g] x rhs[g] on sampled rows of sampled groups g.

    The unit is the tolerance. The samples include the largest group, and the first and last row of each sampled group.
    """
    scalings = rhs.scalings if isinstance(rhs, Dequantized) else 0
    rhs = rhs if isinstance(rhs, Dequantized) else np.asarray(rhs)
    got, lhs = np.asarray(got), np.asarray(lhs)
    ends = np.cumsum(sizes).tolist()

    def error(g: int) -> float:
        group = range(ends[g] - sizes[g], ends[g])
        rows = _sampled(group, _SAMPLED_ROWS, group[0], group[-1])
        return largest_error(got[rows], lhs[rows], rhs[g], scalings)

    active = [g for g, size in enumerate(sizes) if size]
    sampled = _sampled(active, max(2, _SAMPLED_WEIGHTS // rhs[0].size), max(active, key=sizes.__getitem__))
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        return max(pool.map(error, sampled))


def product_errors(x: jax.Array, weights: Weights, sizes: Sequence[int], got: Products) -> Iterator[tuple[str, float]]:
    for name, y, rows, matrices in (
        ("gate", got.gate, x, weights.gate),
        ("up", got.up, x, weights.up),
        ("down", got.y, got.gated, weights.down),
    ):
        yield name, rows_error(y, rows, matrices if isinstance(matrices, jax.Array) else Dequantized(matrices), sizes)
