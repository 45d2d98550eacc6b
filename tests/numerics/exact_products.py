"""Operands that try the accuracy of a product (even, cancelling, of wide range, with denormal results), their products
without rounding errors, and the distance of a result from these in units in the last place."""

import math
from collections.abc import Callable
from typing import NamedTuple

import ml_dtypes
import numpy as np

GROUPS, ROWS, COLUMNS = 4, 16, 32


class Format(NamedTuple):
    """A binary floating point type: bits of precision with the hidden one, exponent of the smallest normal number."""

    digits: int
    min_exponent: int

    @classmethod
    def of(cls, dtype) -> "Format":
        info = ml_dtypes.finfo(dtype)
        return cls(info.nmant + 1, info.minexp)

    @property
    def epsilon(self) -> float:
        return 2.0 ** (1 - self.digits)

    @property
    def tiny(self) -> float:
        """The smallest subnormal number."""
        return math.ldexp(1.0, self.min_exponent + 1 - self.digits)


class Exact(NamedTuple):
    """Numbers of twice the precision of float64: high is the nearest float64, low what is missing."""

    high: np.ndarray
    low: np.ndarray

    def distance(self, got: np.ndarray) -> np.ndarray:
        """|got - self| for float64 `got`, infinite where it is not finite."""
        with np.errstate(invalid="ignore"):
            distance = np.abs((got - self.high) - self.low)
        return np.where(np.isfinite(got), distance, np.inf)


def two_products(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """a*b in float64 and its rounding error, exactly (Dekker 1971), while no part of them leaves the normal range."""

    def halves(x):
        scaled = x * (2.0**27 + 1)
        high = scaled - (scaled - x)
        return high, x - high

    product = a * b
    (a1, a2), (b1, b2) = halves(a), halves(b)
    return product, a2 * b2 - (((product - a1 * b1) - a2 * b1) - a1 * b2)


def exact_sum(terms: np.ndarray, twice: bool) -> Exact:
    """Of each row. twice: with the low part, which results of float64 need and no others."""
    rows = terms.tolist()
    high = [math.fsum(row) for row in rows]
    low = [math.fsum([*row, -x]) for row, x in zip(rows, high, strict=True)] if twice else [0.0] * len(rows)
    return Exact(np.array(high), np.array(low))


def exact_matmul(lhs: np.ndarray, rhs: np.ndarray, wide: bool) -> Exact:
    """[g,m,k] x [g,k,n] in float64. wide: the factors have more than 26 digits, so that products are two terms each;
    otherwise the low parts are left out."""
    high, low = [], []
    for a, b in zip(lhs, rhs, strict=True):
        for row in a:  # [n, k]: one row of the result at a time bounds the memory
            terms = np.concatenate(two_products(row, b.T), axis=1) if wide else row * b.T
            result = exact_sum(terms, twice=wide)
            high.append(result.high)
            low.append(result.low)
    shape = (*lhs.shape[:2], rhs.shape[2])
    return Exact(np.reshape(high, shape), np.reshape(low, shape))


def units_in_the_last_place(value: np.ndarray, dtype, shift: int = 0) -> np.ndarray:
    """The distance of neighbours of `dtype` at each value / 2**shift, times 2**shift."""
    form = Format.of(dtype)
    exponent = np.where(value == 0, form.min_exponent, np.frexp(value)[1] - 1 - shift)
    return np.ldexp(1.0, np.maximum(exponent, form.min_exponent) + 1 - form.digits + shift)


def rounded(value: np.ndarray, dtype) -> np.ndarray:
    """The nearest number of `dtype`, ties to even, of each float64: one rounding, unlike astype for 16-bit types."""
    value = np.asarray(value, np.float64)
    finite = np.where(np.isfinite(value), value, 0)
    unit = units_in_the_last_place(finite, dtype)
    nearest = np.rint(finite / unit) * unit
    largest = float(ml_dtypes.finfo(dtype).max)
    nearest = np.where(np.abs(nearest) > largest, np.copysign(np.inf, nearest), nearest)
    with np.errstate(over="ignore"):
        return np.where(np.isfinite(value), np.copysign(nearest, value), value).astype(dtype)


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


class Errors(NamedTuple):
    largest: float  # in ulp of the result, as the next two
    percentile: float
    mean: float
    of_tolerance: float  # the largest, in units of the tolerance: above 1 is wrong

    @classmethod
    def of(cls, got: np.ndarray, exact: Exact, tolerance: np.ndarray, shift: int = 0) -> "Errors":
        """exact and tolerance are times 2**shift."""
        distance = exact.distance(np.ldexp(got.astype(np.float64), shift))
        ulp = distance / units_in_the_last_place(exact.high, got.dtype, shift)
        of_tolerance = (distance / tolerance).max()
        return cls(float(ulp.max()), float(np.percentile(ulp, 99.9)), float(ulp.mean()), float(of_tolerance))

    def __str__(self) -> str:
        return " / ".join(_figure(x) for x in self[:3])


def _figure(x: float) -> str:
    if x < 10:
        return f"{x:.2g}"
    return f"{x:.0f}" if x < 1000 else f"{x:.0e}".replace("e+0", "e").replace("e+", "e")


def aligned(header: list[str], rows: list[list[str]]) -> str:
    """A table that can be read as it is."""
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    lines = [map(str.rjust, line, widths) for line in (header, ["-" * (width - 1) + ":" for width in widths], *rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
