"""How the programs check and report: errors in units of a tolerance, of which at most 1 is right.

Each product of the expert block, forward and backward, is compared with float64 on its own inputs, on sampled rows;
the tolerance is what raggemm promises. Whole blocks are compared with each other; it is what right ones may differ by.
"""

import argparse
import concurrent.futures
import itertools
import os
import pathlib
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from raggemm.ops import gmm

from raggemm_demo.formats import Dequantized
from raggemm_demo.layers import Layer, Products, Weights, distance, gated_product, random_weights
from raggemm_demo.progress import Progress, say

# Weights that are widened to float64 for one product: 21 experts of 2048 x 768, and never fewer than 2 experts.
_SAMPLED_WEIGHTS = 2**25
_WIDENED = 2**17  # of these at once: in caches
_SAMPLED_ROWS = 4  # of a group
_STEPS = 10  # of a layer in the demo, more or less

_Array = jax.Array | np.ndarray


def output_file(text: str) -> pathlib.Path:
    """The path of a file that can be written, for argparse's `type`, which asks before minutes of computing. Neither
    makes nor changes it."""
    path = pathlib.Path(text)
    if path.is_dir():
        raise argparse.ArgumentTypeError(f"cannot write {path}: it is a folder")
    if not path.parent.is_dir():
        raise argparse.ArgumentTypeError(f"cannot write {path}: there is no folder {path.parent}")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise argparse.ArgumentTypeError(f"cannot write {path}: permission denied")
    return path


class Checks:
    """Counts errors in units of the tolerance, and keeps what was wrong."""

    def __init__(self) -> None:
        self.count = 0
        self.failures: list[str] = []

    def add(self, title: str, errors: Iterable[tuple[str, float]]) -> float:
        """The largest of the named errors."""
        worst = 0.0
        for name, error in errors:
            self.count += 1
            if error > 1:
                self.failures.append(f"{title}, {name}: error is {error:.3g} times the tolerance")
            worst = max(worst, error)
        return worst

    def finish(self, program: str, noun: str) -> int:
        """Says what was wrong, and on the last line whether anything was. The program's exit code."""
        for failure in self.failures:
            say(failure)
        say(f"{program}: FAILED" if self.failures else f"{program}: OK ({self.count} {noun})")
        return 1 if self.failures else 0


def run(
    layers: Iterable[Layer],
    run_layer: Callable[[Layer, Any, Checks], list[dict[str, Any]]],
    checks: Checks,
    make_weights: Callable[[Layer], Any] = random_weights,
) -> list[dict[str, Any]]:
    """All rows of a report, of layers whose models are not mixed: the weights of one model are there at a time."""
    rows: list[dict[str, Any]] = []
    for model, of_model in itertools.groupby(layers, key=lambda layer: layer.model):
        first, *others = of_model
        say(f"{model}: making {first.experts} experts")
        weights = make_weights(first)
        rows += [row for layer in (first, *others) for row in run_layer(layer, weights, checks)]
    return rows


def run_shown(
    layers: Sequence[Layer],
    run_layer: Callable[[Layer, Any, Checks, Progress], dict[str, Any]],
    checks: Checks,
    columns: Sequence[tuple[Any, ...]],
    make_weights: Callable[[Layer], Any] = random_weights,
) -> list[dict[str, Any]]:
    """The same, with a row for each layer, which is printed as soon as it is there. run_layer says what it does."""
    progress = Progress(layers, _STEPS)
    shown = 0

    def show(layer: Layer, weights: Any, checks: Checks) -> list[dict[str, Any]]:
        nonlocal shown
        progress.begin(layer)
        row = run_layer(layer, weights, checks, progress)
        say("\n".join(aligned(columns, [row])[shown:]))
        shown = len(columns[0]) - 1  # its heading is there
        return [row]

    return run(layers, show, checks, make_weights)


def milliseconds(ms: float) -> str:
    return f"{ms:.{0 if ms >= 100 else 1}f}"


def aligned(columns: Iterable[tuple[Any, ...]], rows: Sequence[dict[str, Any]]) -> list[str]:
    """The lines of a table: a column is the lines of its heading, and what stands below as a function of a row."""
    texts = [(*heading, *map(cell, rows)) for *heading, cell in columns]
    padded = [[text.rjust(max(map(len, column))) for text in column] for column in texts]
    return ["  ".join(line).rstrip() for line in zip(*padded, strict=True)]


def _lengths(a: jax.Array) -> jax.Array:
    squares = jnp.square(a)
    while squares.ndim > 1:
        squares = squares.sum(1)  # one axis after the other takes 0.6 of the time of both at once
    return jnp.sqrt(squares)


@jax.jit  # as one loop: the gradients of a model's weights have gigabytes
def _disagreements(got: jax.Array, reference: jax.Array) -> jax.Array:
    got, reference = (jnp.atleast_1d(a.astype(jnp.float32)) for a in (got, reference))
    distance, length = _lengths(got - reference), _lengths(reference)
    # Rows of zeros, such as the gradients of idle experts, must be zeros.
    return jnp.where(distance == 0, 0, 256 * distance / length)


def disagreement(got: jax.Array, reference: jax.Array) -> float:
    """How far two computations of the same block differ, where roundings in between to bfloat16 may fall either way.

    The largest distance between two entries of the first axis (a row, or the matrix of an expert), in units of the
    reference's length over 256, which is half of bfloat16's eps.
    """
    ratio = np.asarray(_disagreements(got, reference))
    return float(np.where(np.isnan(ratio), np.inf, ratio).max(initial=0.0))


class Backward(NamedTuple):
    """What the derivative of the loss computes: cotangents, bfloat16 like their primal or float32, and gradients."""

    dy: jax.Array
    dgated: jax.Array
    dgate: jax.Array
    dup: jax.Array
    dx_gate: jax.Array  # x's gradient is the sum of these two
    dx_up: jax.Array
    dweights: Weights


def backward_products(x: jax.Array, weights: Weights, sizes: jax.Array, target: jax.Array) -> tuple[Products, Backward]:
    """The derivative of the loss of raggemm's block, one product after the other, with what goes between them."""

    def product(rows, matrices):
        return jax.vjp(lambda a, b: gmm(a, b, sizes), rows, matrices)

    gate, gate_transpose = product(x, weights.gate)
    up, up_transpose = product(x, weights.up)
    gated, gated_transpose = jax.vjp(gated_product, gate, up)
    y, y_transpose = product(gated, weights.down)
    dy = jax.grad(distance)(y, target)
    dgated, ddown_weights = y_transpose(dy)
    dgate, dup = gated_transpose(dgated)
    dx_gate, dgate_weights = gate_transpose(dgate)
    dx_up, dup_weights = up_transpose(dup)
    dweights = Weights(dgate_weights, dup_weights, ddown_weights)
    return Products(gate, up, gated, y), Backward(dy, dgated, dgate, dup, dx_gate, dx_up, dweights)


def _float64(x: np.ndarray) -> np.ndarray:
    if x.dtype == jnp.bfloat16:  # the upper half of a float32; NumPy's own conversion takes ten times as long
        x = (x.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    return x.astype(np.float64)


def largest_error(got: np.ndarray, lhs: np.ndarray, rhs: np.ndarray, scalings: float = 0) -> float:
    """Largest error of got = lhs x rhs, in units of the tolerance of sums in float32 with so many roundings more;
    infinite for a NaN."""
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


def _group_rows(sizes: Sequence[int]) -> list[range]:
    ends = np.cumsum(sizes).tolist()
    return [range(end - size, end) for end, size in zip(ends, sizes, strict=True)]


def _sampled(population: Sequence[int], count: int, *always: int) -> list[int]:
    """`always` and seeded others of the population, `count` in all."""
    others = [i for i in population if i not in always]
    return [*set(always), *random.Random(5).sample(others, min(len(others), max(0, count - len(set(always)))))]


def rows_error(
    got: _Array, lhs: _Array, rhs: _Array | Dequantized, sizes: Sequence[int], rhs_is_trans: bool = False
) -> float:
    """Largest error of got[rows of g] = lhs[rows of g] x rhs[g], on sampled rows of sampled active groups g.

    Among them are the largest group, and the first and the last row of each.
    """
    scalings = rhs.scalings if isinstance(rhs, Dequantized) else 0
    rhs = rhs if isinstance(rhs, Dequantized) else np.asarray(rhs)
    got, lhs, group_rows = np.asarray(got), np.asarray(lhs), _group_rows(sizes)
    active = [g for g, size in enumerate(sizes) if size]

    def error(g: int) -> float:
        rows = _sampled(group_rows[g], _SAMPLED_ROWS, group_rows[g][0], group_rows[g][-1])
        return largest_error(got[rows], lhs[rows], rhs[g].T if rhs_is_trans else rhs[g], scalings)

    sampled = _sampled(active, max(2, _SAMPLED_WEIGHTS // rhs[0].size), max(active, key=sizes.__getitem__))
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        return max(pool.map(error, sampled))


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
