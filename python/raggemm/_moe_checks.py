"""Errors in units of a tolerance, counted; and how far two computations of one expert block may differ."""

from collections.abc import Iterable

import jax
import jax.numpy as jnp
import numpy as np


def say(text: str) -> None:
    print(text, flush=True)


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
