"""Operands that try the accuracy of a product: even, cancelling, of wide range, and with denormal results."""

from collections.abc import Callable
from typing import NamedTuple

import ml_dtypes
import numpy as np
from exact_products import Exact, Format, exact_matmul, rounded

GROUPS, ROWS, COLUMNS = 4, 16, 32


class Operands(NamedTuple):
    """[GROUPS,ROWS,k] and [GROUPS,k,COLUMNS], and their product. Everything exact is times 2**shift."""

    lhs: np.ndarray
    rhs: np.ndarray
    exact: Exact
    magnitude: np.ndarray  # sum |lhs||rhs|
    shift: int


class Pair(NamedTuple):
    lhs: np.ndarray  # float64
    rhs: np.ndarray
    shifts: tuple[int, int] = (0, 0)  # lhs and rhs are to be divided by two to these powers


def _even(rng: np.random.Generator, k: int, form: Format) -> Pair:
    """Uniform in [-1, 1)."""
    return Pair(rng.uniform(-1, 1, (GROUPS, ROWS, k)), rng.uniform(-1, 1, (GROUPS, k, COLUMNS)))


def _cancelling(rng: np.random.Generator, k: int, form: Format) -> Pair:
    """Each product comes again with the other sign, changed in its last digits; all in random order along k."""
    lhs, rhs, _ = _even(rng, k, form)
    half = k // 2
    lhs[:, :, half : 2 * half] = lhs[:, :, :half]
    change = 1 + form.epsilon * rng.integers(-4, 5, (GROUPS, half, COLUMNS))
    rhs[:, half : 2 * half] = -rhs[:, :half] * change
    order = rng.permutation(k)
    return Pair(lhs[:, :, order], rhs[:, order])


def _wide(rng: np.random.Generator, k: int, form: Format) -> Pair:
    """Exponents uniform over much of what the type has, short of overflow."""
    span = {-14: 8, -126: 40}.get(form.min_exponent, 200)

    def scale(shape):
        return np.ldexp(1.0, rng.integers(-span, span // 2 + 1, shape))

    lhs, rhs, _ = _even(rng, k, form)
    return Pair(lhs * scale(lhs.shape), rhs * scale(rhs.shape))


def _denormal(rng: np.random.Generator, k: int, form: Format) -> Pair:
    """Normal operands whose products are denormal in the type of the sums, or, for f16, in f16."""
    lhs, rhs, _ = _even(rng, k, form)
    half = {-14: 8, -126: 67}.get(form.min_exponent, 518)
    return Pair(lhs, rhs, (half, half + k.bit_length() // 2))


KINDS: dict[str, Callable[[np.random.Generator, int, Format], Pair]] = {
    "even": _even,
    "cancelling": _cancelling,
    "wide range": _wide,
    "denormal results": _denormal,
}


def make_operands(kind: str, dtype, k: int, seed: int) -> Operands:
    """Of lhs and rhs of one dtype."""
    pair = KINDS[kind](np.random.default_rng(seed), k, Format.of(dtype))
    # Exact sums are made of the shifted operands, where nothing is denormal but f16's few, which float64 has.
    shifts = pair.shifts
    lhs, rhs = (rounded(np.ldexp(x, -shift), dtype) for x, shift in zip(pair[:2], shifts, strict=True))
    wide_lhs, wide_rhs = (np.ldexp(x.astype(np.float64), s) for x, s in zip((lhs, rhs), shifts, strict=True))
    exact = exact_matmul(wide_lhs, wide_rhs, wide=ml_dtypes.finfo(dtype).nmant > 26)
    return Operands(lhs, rhs, exact, np.abs(wide_lhs) @ np.abs(wide_rhs), sum(shifts))
