"""Reports how far results are from the exact products: numerics.py [--short] [--out FILE.md]

Compares raggemm, XLA's dot and numpy with the exact product, for even, cancelling, wide-range and denormal data in
several dtypes, precisions and quantized formats. The report goes to stdout and to FILE.md, by default
build/numerics.md. Errors are in units in the last place (ulp) of the result: the largest, the 99.9th percentile and the
mean.

The exit code is 1 if an error of raggemm exceeds the tolerance of docs/numerics.md, or if two modes of raggemm give
different bits for the same product. tests/oracle/reference.cc derives the tolerance.
"""

import argparse
import functools
import itertools
import math
import pathlib
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pandas as pd
from raggemm import GroupedTensor, QuantizedTensor, dequantize, gmm, grouped_gemm, quantize

ROOT = pathlib.Path(__file__).resolve().parents[2]
GROUPS, ROWS, COLUMNS = 4, 16, 32
LENGTHS, SHORT_LENGTHS = (1, 16, 256, 1024, 4096), (320,)
CHAIN = 256  # Most steps of k in an accumulation chain.
F16, BF16, F32 = np.float16, ml_dtypes.bfloat16, np.float32
X3, X6 = jax.lax.DotAlgorithmPreset.BF16_BF16_F32_X3, jax.lax.DotAlgorithmPreset.BF16_BF16_F32_X6
PRODUCTS = {None: 1, X3: 3, X6: 6}  # Bf16 products that replace one f32 product.
SPLITTING = {None: 0.0, X3: 1.01 * 2.0**-15, X6: 1.01 * 2.0**-24}  # Relative error that splitting into bf16 adds.


finfo = ml_dtypes.finfo


class Operands(NamedTuple):
    """Operands lhs [GROUPS,ROWS,k] and rhs [GROUPS,k,COLUMNS].

    `exact` is their exact product, and `magnitude` is the exact product of |lhs| and |rhs|.
    """

    lhs: Any
    rhs: Any
    exact: np.ndarray
    magnitude: np.ndarray


def exact_matmul(lhs: np.ndarray, rhs: np.ndarray) -> np.ndarray:
    """Returns the products of the groups, each element rounded only once.

    Products of two elements must be exact in float64: their binary digits add up to at most 53.
    """
    return np.array([[[math.fsum(row * column) for column in b.T] for row in a] for a, b in zip(lhs, rhs, strict=True)])


def _even(rng: np.random.Generator, k: int, dtype) -> tuple[np.ndarray, np.ndarray]:
    return rng.uniform(-1, 1, (GROUPS, ROWS, k)), rng.uniform(-1, 1, (GROUPS, k, COLUMNS))


def _cancelling(rng: np.random.Generator, k: int, dtype) -> tuple[np.ndarray, np.ndarray]:
    """Returns operands whose products cancel in pairs, up to the last digits. With odd k, one product has no pair."""
    (lhs, rhs), half = _even(rng, k, dtype), k // 2
    lhs[:, :, half : 2 * half] = lhs[:, :, :half]
    change = 1 + float(finfo(dtype).eps) * rng.integers(-4, 5, (GROUPS, half, COLUMNS))
    rhs[:, half : 2 * half] = -rhs[:, :half] * change
    order = rng.permutation(k)
    return lhs[:, :, order], rhs[:, order]


def _wide(rng: np.random.Generator, k: int, dtype) -> tuple[np.ndarray, np.ndarray]:
    """Returns operands of very different magnitudes, whose products do not overflow."""
    span = 8 if dtype is F16 else 40
    lhs, rhs = _even(rng, k, dtype)
    return tuple(np.ldexp(x, rng.integers(-span, span // 2 + 1, x.shape)) for x in (lhs, rhs))


def _denormal(rng: np.random.Generator, k: int, dtype) -> tuple[np.ndarray, np.ndarray]:
    """Returns operands whose products are denormal in float32, or in float16 if the operands are float16."""
    (lhs, rhs), half = _even(rng, k, dtype), 8 if dtype is F16 else 67
    return np.ldexp(lhs, -half), np.ldexp(rhs, -half - k.bit_length() // 2)


KINDS: dict[str, Callable[..., tuple[np.ndarray, np.ndarray]]] = {
    "even": _even,
    "cancelling": _cancelling,
    "wide range": _wide,
    "denormal results": _denormal,
}


def make_operands(kind: str, dtype, k: int, seed: int) -> Operands:
    lhs, rhs = (x.astype(dtype) for x in KINDS[kind](np.random.default_rng(seed), k, dtype))
    a, b = lhs.astype(np.float64), rhs.astype(np.float64)
    return Operands(lhs, rhs, exact_matmul(a, b), np.abs(a) @ np.abs(b))


def errors_of(got: np.ndarray, exact: np.ndarray, tolerance: np.ndarray) -> tuple[str, float]:
    form = finfo(got.dtype)
    distance = np.abs(got.astype(np.float64) - exact)
    distance = np.where(np.isfinite(distance), distance, np.inf)
    exponent = np.where(exact == 0, form.minexp, np.frexp(exact)[1] - 1)
    ulp = distance / np.ldexp(1.0, np.maximum(exponent, form.minexp) - form.nmant)
    text = " / ".join(f"{x:.2g}" for x in (ulp.max(), np.percentile(ulp, 99.9), ulp.mean()))
    return text, float((distance / tolerance).max())


class Types(NamedTuple):
    lhs: type  # Type of lhs and rhs.
    out: type
    precision: Any = None

    def __str__(self) -> str:
        names = [np.dtype(t).name.replace("bfloat", "bf").replace("float", "f") for t in self[:2]]
        return " to ".join(names) + (f", X{PRODUCTS[self.precision]}" if self.precision else "")

    @property
    def flushes(self) -> bool:
        return self.precision is not None or self.lhs is BF16


TYPES = [
    *itertools.starmap(Types, ((F32, F32), (BF16, F32), (BF16, BF16), (F16, F32), (F16, F16))),
    Types(F32, F32, X3),
    Types(F32, F32, X6),
]


def _ragged_m(lhs, rhs, dtype, precision):
    rows = GroupedTensor(lhs.reshape(GROUPS * ROWS, -1), first_dims=jnp.full(GROUPS, ROWS, jnp.int32))
    out = grouped_gemm(rows, rhs, contracting_dims=((1,), (1,)), preferred_element_type=dtype, precision=precision)
    return out.reshape(GROUPS, ROWS, -1)


def _ragged_k(lhs, rhs, dtype, precision):
    k = lhs.shape[2]
    sizes = jnp.full(GROUPS, k, jnp.int32)
    left = GroupedTensor(lhs.transpose(0, 2, 1).reshape(GROUPS * k, -1), first_dims=sizes)
    right = GroupedTensor(rhs.reshape(GROUPS * k, -1), first_dims=sizes)
    return grouped_gemm(left, right, contracting_dims=((0,), (0,)), preferred_element_type=dtype, precision=precision)


def _uniform(lhs, rhs, dtype, precision):
    return grouped_gemm(lhs, rhs, contracting_dims=((2,), (1,)), preferred_element_type=dtype, precision=precision)


def _xla(lhs, rhs, dtype, precision):
    batched = (((2,), (1,)), ((0,), (0,)))
    return jax.lax.dot_general(lhs, rhs, batched, precision=jax.lax.Precision.HIGHEST, preferred_element_type=dtype)


MODES = {
    name: jax.jit(f, static_argnums=(2, 3))
    for name, f in (("rows", _ragged_m), ("k", _ragged_k), ("uniform", _uniform))
}
XLA = jax.jit(_xla, static_argnums=(2, 3))


def float_tolerance(operands: Operands, k: int, types: Types) -> np.ndarray:
    products, f32, out = PRODUCTS[types.precision], finfo(F32), finfo(types.out)
    chains = CHAIN + 2 + k / CHAIN if products == 1 else 64 * products + 2 + k / 64
    roundings = max(chains, 18 + products * (k / 32 + 1)) if types.flushes else chains
    relative = (float(f32.eps) * roundings + SPLITTING[types.precision]) * operands.magnitude
    lost = 2 * (products * k + 1) * 2.0**f32.minexp if types.flushes else k * float(f32.smallest_subnormal)
    return (
        relative
        + float(out.eps) * np.abs(operands.exact)
        + lost
        + 4 * float(f32.smallest_subnormal)
        + float(out.smallest_subnormal)
    )


def check_floats(kind: str, types: Types, k: int, seed: int) -> tuple[dict[str, Any], list[str]]:
    """Multiplies float operands. Returns the row of the table, and a text for each failure."""
    operands = make_operands(kind, types.lhs, k, seed)
    tolerance = float_tolerance(operands, k, types)
    arguments = (operands.lhs, operands.rhs, np.dtype(types.out))
    results = {name: np.asarray(run(*arguments, types.precision)) for name, run in MODES.items()}
    first = next(iter(results.values()))
    wrong = [f"other bits: {name}" for name, got in results.items() if got.tobytes() != first.tobytes()]
    found = [errors_of(got, operands.exact, tolerance) for got in results.values()]
    ours, worst = found[0][0], max(of_tolerance for _, of_tolerance in found)
    numpy = np.matmul(operands.lhs, operands.rhs) if types == Types(F32, F32) else None
    others = {"XLA dot": np.asarray(XLA(*arguments, None)), "numpy": numpy}
    row = {"operands": str(types), "data": kind, "K": k, "of tolerance": worst, "raggemm": ours}
    row |= {name: "" if got is None else errors_of(got, operands.exact, tolerance)[0] for name, got in others.items()}
    return row, wrong


class Quantized(NamedTuple):
    name: str
    rhs: Callable[[jax.Array], QuantizedTensor]
    lhs: Callable[[jax.Array], QuantizedTensor] | None = None  # None: lhs keeps `dtype`.
    dtype: type = BF16
    sum_steps: int = 0  # Steps of k that share a scale, if scales multiply sums. 0: all steps.
    scales_sums: bool = True  # False: scales multiply elements before the products.
    rounds_elements: bool = False  # True: scaled elements are rounded to bfloat16.


def _blocks(dtype: Any, steps: int, scale_dtype: Any = F32, **options: Any) -> Callable[[jax.Array], QuantizedTensor]:
    return functools.partial(quantize, dtype=dtype, axes=(), block=(1, steps), scale_dtype=scale_dtype, **options)


_COLUMN_SCALES = functools.partial(quantize, axes=(1,))
_ROW_SCALES = functools.partial(quantize, dtype=np.int8, axes=(2,))
QUANTIZED = (
    Quantized("bf16, int8, a scale for each column", functools.partial(_COLUMN_SCALES, dtype=np.int8)),
    Quantized("bf16, float8, a scale for each column", functools.partial(_COLUMN_SCALES, dtype=jnp.float8_e4m3fn)),
    Quantized("bf16, int4, blocks of 32 steps", _blocks(jnp.int4, 32, BF16), sum_steps=32),
    Quantized("bf16, uint4 with zeros, blocks of 32 steps", _blocks(jnp.uint4, 32, zero_point=True), sum_steps=32),
    Quantized("f32, int4, blocks of 32 steps", _blocks(jnp.int4, 32), dtype=F32, sum_steps=32),
    Quantized("bf16, MXFP4", _blocks(jnp.float4_e2m1fn, 32, jnp.float8_e8m0fnu), scales_sums=False),
    Quantized("bf16, NVFP4's blocks", _blocks(jnp.float4_e2m1fn, 16, jnp.float8_e4m3fn), scales_sums=False),
    Quantized("bf16, int8, blocks of 16 steps", _blocks(np.int8, 16), scales_sums=False, rounds_elements=True),
    Quantized("bf16, int8, a scale for each step", _ROW_SCALES, scales_sums=False, rounds_elements=True),
    Quantized("int8, int8 (W8A8)", functools.partial(_COLUMN_SCALES, dtype=np.int8), _ROW_SCALES),
    Quantized("int8, int4, blocks of 32 steps", _blocks(jnp.int4, 32), _ROW_SCALES, sum_steps=32),
)


def dequantized(x: Any) -> np.ndarray:
    if not isinstance(x, QuantizedTensor):
        return np.asarray(x).astype(np.float64)

    def spread(values):
        values = np.asarray(values).astype(np.float64)
        for axis, extent in enumerate(x.shape):
            values = values.repeat(extent // values.shape[axis], axis)
        return values

    data = np.asarray(x.data).astype(np.float64)
    return (data if x.zero_point is None else data - spread(x.zero_point)) * spread(x.scale)


def quantized_products(lhs: Any, rhs: QuantizedTensor) -> list[np.ndarray]:
    rows = jax.tree.map(lambda x: x.reshape(-1, x.shape[-1]), lhs)
    ragged = jax.jit(gmm)(rows, rhs, jnp.full(GROUPS, ROWS, jnp.int32)).reshape(GROUPS, ROWS, COLUMNS)
    call = functools.partial(grouped_gemm, contracting_dims=((2,), (1,)), preferred_element_type=F32)
    return [np.asarray(ragged), np.asarray(jax.jit(call)(GroupedTensor(lhs), GroupedTensor(rhs)))]


def check_quantized(kind: str, how: Quantized, k: int, seed: int) -> tuple[dict[str, Any], list[str]]:
    """Multiplies quantized operands. Returns the row of the table, and a text if bits differ."""
    operands = make_operands(kind, how.dtype, k, seed)
    rhs = how.rhs(jnp.asarray(operands.rhs))
    lhs = how.lhs(jnp.asarray(operands.lhs)) if how.lhs else jnp.asarray(operands.lhs)
    a, b = dequantized(lhs), dequantized(rhs)
    exact, f32 = exact_matmul(a, b), finfo(F32)
    roundings = max(CHAIN + 2 + k / CHAIN, 19 + k / 32)
    if how.scales_sums:
        roundings += 4 + (k / how.sum_steps + 1 if how.sum_steps else 0)
    relative = float(f32.eps) * roundings + (0.51 * float(finfo(BF16).eps) if how.rounds_elements else 0)
    tolerance = relative * (np.abs(a) @ np.abs(b)) + float(f32.eps) * np.abs(exact) + 2 * (k + 1) * 2.0**f32.minexp
    ragged, uniform = quantized_products(lhs, rhs)
    ours, worst = errors_of(ragged, exact, tolerance)
    xla = XLA(
        *(dequantize(x) if isinstance(x, QuantizedTensor) else jnp.asarray(x, F32) for x in (lhs, rhs)), F32, None
    )
    row = {"operands": how.name, "data": kind, "K": k, "of tolerance": worst, "raggemm": ours}
    row["XLA dot"] = errors_of(np.asarray(xla), exact, tolerance)[0]
    return row, [] if ragged.tobytes() == uniform.tobytes() else ["other bits: uniform"]


def check(short: bool) -> tuple[pd.DataFrame, list[str]]:
    """Returns the table of the report, and a text for each failure."""
    rows, wrong = [], []
    runs: list[tuple[Callable, str, Any, int]] = []
    for k in SHORT_LENGTHS if short else LENGTHS:
        runs += [(check_floats, kind, types, k) for types in TYPES for kind in KINDS]
    # Quantized operands are only "even" or "cancelling". The other KINDS would give zeros or denormal scales.
    for k in SHORT_LENGTHS if short else (64, 2048):
        runs += [(check_quantized, kind, how, k) for how in QUANTIZED for kind in ("even", "cancelling")]
    for seed, (function, kind, operands, k) in enumerate(runs):
        row, found = function(kind, operands, k, seed)
        if not row["of tolerance"] <= 1:
            found = [*found, f"error of {row['of tolerance']:.3g} tolerances"]
        wrong += [f"{text}: {kind}, {row['operands']}, K {k}" for text in found]
        rows.append(row)
    return pd.DataFrame(rows).fillna(""), wrong


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--short", action="store_true", help="one length, in seconds")
    parser.add_argument("--out", metavar="FILE.md", type=pathlib.Path, default=ROOT / "build" / "numerics.md")
    options = parser.parse_args(arguments)
    if not options.out.parent.is_dir():
        parser.error(f"--out: there is no folder {options.out.parent}")
    table, wrong = check(options.short)
    verdict = "\n".join(f"- WRONG: {text}" for text in wrong) or "Nothing is wrong."
    text = (
        "# Numerics\n\nErrors against the exact product, in ulp of the result: largest / 99.9th percentile / mean. "
        "`of tolerance`: raggemm's largest error in units of the tolerance of docs/numerics.md.\n\n"
        f"{table.to_markdown(index=False, floatfmt='.2g')}\n\n{verdict}\n"
    )
    options.out.write_text(text)
    print(f"{text}\nnumerics: {'FAILED' if wrong else 'OK'}; report: {options.out}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
