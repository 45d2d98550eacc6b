"""Errors in units of a tolerance, of which at most 1 is right.

Each product of raggemm's block is compared with float64 on its own inputs, on sampled rows, in units of the tolerance
of docs/numerics.md. Whole blocks are compared with each other, in units of what right blocks may differ by.
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

_SAMPLED_WEIGHTS = 2**24  # Elements that are widened to float64 for one product: 10 experts of 2048 x 768, at least 2.
_WIDENED = 2**17  # Elements that are widened at once: they fit into caches.
_SAMPLED_ROWS = 4  # Rows of a group.

_Array = jax.Array | np.ndarray


@jax.jit  # As one loop: the gradients of a model's weights have gigabytes.
def _disagreements(got: jax.Array, reference: jax.Array) -> jax.Array:
    def lengths(a: jax.Array) -> jax.Array:
        squares = jnp.square(a)
        while squares.ndim > 1:
            squares = squares.sum(1)  # One axis after the other takes 0.6 of the time of both at once.
        return jnp.sqrt(squares)

    got, reference = (jnp.atleast_1d(a.astype(jnp.float32)) for a in (got, reference))
    distance = lengths(got - reference)
    # Rows of zeros, such as the gradients of idle experts, must be zeros.
    return jnp.where(distance == 0, 0, 256 * distance / lengths(reference))


def disagreement(got: jax.Array, reference: jax.Array) -> float:
    """Returns the largest distance between two entries of the first axis (a row, or the matrix of an expert). The unit
    is the reference's length over 256, which is half of bfloat16's eps: roundings to bfloat16 inside the block may fall
    either way."""
    ratio = np.asarray(_disagreements(got, reference))
    return float(np.where(np.isnan(ratio), np.inf, ratio).max(initial=0.0))


def _float64(x: np.ndarray) -> np.ndarray:
    if x.dtype == jnp.bfloat16:  # The upper half of a float32. NumPy's own conversion takes ten times as long.
        x = (x.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    return x.astype(np.float64)


def largest_error(got: np.ndarray, lhs: np.ndarray, rhs: np.ndarray, scalings: float = 0) -> float:
    """Returns the largest error of got = lhs x rhs, in units of the tolerance of float32 sums with `scalings` roundings
    more; infinite for a NaN."""
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
    """Returns `always` and seeded others of the population, `count` in all."""
    others = [i for i in population if i not in always]
    return [*set(always), *random.Random(5).sample(others, min(len(others), max(0, count - len(set(always)))))]


def rows_error(got: _Array, lhs: _Array, rhs: _Array | Dequantized, sizes: Sequence[int]) -> float:
    """Returns the largest error of got[rows of g] = lhs[rows of g] x rhs[g] for active groups g, on sampled rows of
    sampled groups. Among them are the largest group, and the first and the last row of each."""
    scalings = rhs.scalings if isinstance(rhs, Dequantized) else 0
    rhs = rhs if isinstance(rhs, Dequantized) else np.asarray(rhs)
    got, lhs = np.asarray(got), np.asarray(lhs)
    ends = np.cumsum(sizes).tolist()

    def error(g: int) -> float:
        own = range(ends[g] - sizes[g], ends[g])
        rows = _sampled(own, _SAMPLED_ROWS, own[0], own[-1])
        return largest_error(got[rows], lhs[rows], rhs[g], scalings)

    active = [g for g, size in enumerate(sizes) if size]
    sampled = _sampled(active, max(2, _SAMPLED_WEIGHTS // rhs[0].size), max(active, key=sizes.__getitem__))
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        return max(pool.map(error, sampled))


def product_errors(x: jax.Array, weights: Weights, sizes: Sequence[int], got: Products) -> Iterator[tuple[str, float]]:
    """Yields the name and the largest error of each product of the block."""
    for name, y, rows, of in (
        ("gate", got.gate, x, weights.gate),
        ("up", got.up, x, weights.up),
        ("down", got.y, got.gated, weights.down),
    ):
        yield name, rows_error(y, rows, of if isinstance(of, jax.Array) else Dequantized(of), sizes)
