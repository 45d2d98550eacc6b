"""Each product of the expert block, forward and backward, against float64 on its own inputs, on sampled rows.

Errors are in units of the tolerance that raggemm promises; at most 1 is right.
"""

import random
from collections.abc import Iterator, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from raggemm._demo_backward import Backward
from raggemm._expert_products import Products
from raggemm._moe_layers import Weights

# Weights that are widened to float64 for one product: 21 experts of 2048 x 768, and never fewer than 2 experts.
_SAMPLED_WEIGHTS = 2**25
_SAMPLED_ROWS = 4  # of a group

_Array = jax.Array | np.ndarray


def _float64(x: np.ndarray) -> np.ndarray:
    if x.dtype == jnp.bfloat16:  # the upper half of a float32; NumPy's own conversion takes ten times as long
        x = (x.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    return x.astype(np.float64)


def largest_error(got: np.ndarray, lhs: np.ndarray, rhs: np.ndarray) -> float:
    """Largest error of got = lhs x rhs, in units of the tolerance of sums in float32; infinite for a NaN."""
    a, b, k = _float64(lhs), _float64(rhs), lhs.shape[1]
    want = a @ b
    magnitude = np.abs(a) @ np.abs(b, out=b)
    compute, out = jnp.finfo(jnp.float32), jnp.finfo(got.dtype)
    bound = float(compute.eps) * (258 + k / 256) * magnitude + float(out.eps) * np.abs(want)
    bound += (k + 4) * float(compute.smallest_subnormal) + float(out.smallest_subnormal)
    error = np.abs(_float64(got) - want) / bound
    return float(np.where(np.isnan(error), np.inf, error).max(initial=0.0))


def _group_rows(sizes: Sequence[int]) -> list[range]:
    ends = np.cumsum(sizes).tolist()
    return [range(end - size, end) for end, size in zip(ends, sizes, strict=True)]


def _sampled(population: Sequence[int], count: int, *always: int) -> list[int]:
    """`always` and seeded others of the population, `count` in all."""
    others = [i for i in population if i not in always]
    return [*set(always), *random.Random(5).sample(others, min(len(others), max(0, count - len(set(always)))))]


def rows_error(got: _Array, lhs: _Array, rhs: _Array, sizes: Sequence[int], rhs_is_trans: bool = False) -> float:
    """Largest error of got[rows of g] = lhs[rows of g] x rhs[g], on sampled rows of sampled active groups g.

    Among them are the largest group, and the first and the last row of each.
    """
    got, lhs, rhs, group_rows = np.asarray(got), np.asarray(lhs), np.asarray(rhs), _group_rows(sizes)
    active = [g for g, size in enumerate(sizes) if size]
    errors = [0.0]
    for g in _sampled(active, max(2, _SAMPLED_WEIGHTS // rhs[0].size), max(active, key=sizes.__getitem__)):
        rows = _sampled(group_rows[g], _SAMPLED_ROWS, group_rows[g][0], group_rows[g][-1])
        errors.append(largest_error(got[rows], lhs[rows], rhs[g].T if rhs_is_trans else rhs[g]))
    return max(errors)


def weights_error(got: _Array, lhs: _Array, rhs: _Array, sizes: Sequence[int]) -> float:
    """Largest error of got[g] = lhs[rows of g]^T x rhs[rows of g], on sampled rows of sampled groups g.

    Among them are the largest group and the smallest, which may be empty.
    """
    got, lhs, rhs, group_rows = np.asarray(got), np.asarray(lhs), np.asarray(rhs), _group_rows(sizes)
    groups = range(len(sizes))
    errors = [0.0]
    for g in _sampled(groups, 16, max(groups, key=sizes.__getitem__), min(groups, key=sizes.__getitem__)):
        columns = _sampled(range(lhs.shape[1]), _SAMPLED_ROWS, 0, lhs.shape[1] - 1)
        rows = slice(group_rows[g].start, group_rows[g].stop)
        errors.append(largest_error(got[g][columns], lhs[rows][:, columns].T, rhs[rows]))
    return max(errors)


def forward_errors(x: jax.Array, weights: Weights, sizes: Sequence[int], got: Products) -> Iterator[tuple[str, float]]:
    """The name and the largest error of each product."""
    yield "gate", rows_error(got.gate, x, weights.gate, sizes)
    yield "up", rows_error(got.up, x, weights.up, sizes)
    yield "down", rows_error(got.y, got.gated, weights.down, sizes)


def backward_errors(
    x: jax.Array, weights: Weights, sizes: Sequence[int], forward: Products, got: Backward
) -> Iterator[tuple[str, float]]:
    """The name and the largest error of each product of the derivative."""
    yield "gradient of the gated product", rows_error(got.dgated, got.dy, weights.down, sizes, rhs_is_trans=True)
    yield "gradient of x through gate", rows_error(got.dx_gate, got.dgate, weights.gate, sizes, rhs_is_trans=True)
    yield "gradient of x through up", rows_error(got.dx_up, got.dup, weights.up, sizes, rhs_is_trans=True)
    yield "gradient of the gate weights", weights_error(got.dweights.gate, x, got.dgate, sizes)
    yield "gradient of the up weights", weights_error(got.dweights.up, x, got.dup, sizes)
    yield "gradient of the down weights", weights_error(got.dweights.down, forward.gated, got.dy, sizes)
