"""How far are results from the exact ones? numerics.py [--short] [--out FILE.md]

Products of matrices with even, cancelling, wide-range and denormal data, in every mode and mix of dtypes, computed by
this library, XLA's dot and the BLAS libraries that are there, beside the product without any rounding error. Errors are
in units in the last place (ulp) of the result's dtype: the largest, the 99.9th percentile and the mean. The report goes
to FILE.md (build/numerics.md), a summary to stdout.

The exit code is 1 where an error of this library exceeds the tolerance of docs/numerics.md, which is derived in
tests/oracle/reference.cc, where two of its modes have other bits for the same product, or where a conversion is wrong.
What the others do is reported and never fails.
"""

import argparse
import dataclasses
import itertools
import pathlib
import sys
from typing import Any, NamedTuple

import jax
import ml_dtypes
import numpy as np
import quantized
from exact_products import KINDS, Errors, Format, Operands, aligned, make_operands, rounded
from programs import MODES, Program, others
from raggemm import grouped_gemm
from raggemm_demo.checks import output_file

ROOT = pathlib.Path(__file__).resolve().parents[2]
F16, BF16, F32, F64 = np.float16, ml_dtypes.bfloat16, np.float32, np.float64
X3, X6 = jax.lax.DotAlgorithmPreset.BF16_BF16_F32_X3, jax.lax.DotAlgorithmPreset.BF16_BF16_F32_X6
PRODUCTS = {None: 1, X3: 3, X6: 6}
SPLITTING = {None: 0.0, X3: 1.01 * 2.0**-15, X6: 1.01 * 2.0**-24}  # errors of one product


class Types(NamedTuple):
    lhs: type  # and rhs
    out: type
    precision: Any = None

    def __str__(self) -> str:
        names = [np.dtype(t).name.replace("bfloat", "bf").replace("float", "f") for t in self[:2]]
        return " to ".join(names) + (f", X{PRODUCTS[self.precision]}" if self.precision else "")

    @property
    def flushes(self) -> bool:
        return self.precision is not None or (self.lhs is BF16 and self.out is not F64)


TYPES = [
    *itertools.starmap(Types, ((F32, F32), (BF16, F32), (BF16, BF16), (F16, F32), (F16, F16), (F64, F64))),
    Types(F32, F32, X3),
    Types(F32, F32, X6),
]
CHAIN = 256  # of the numeric rule: fmas of one chain
LENGTHS, SHORT_LENGTHS = (1, 16, CHAIN, 1024, 4096), (300,)


@dataclasses.dataclass(frozen=True)
class Line:
    """One product by everybody."""

    kind: str
    types: Types
    k: int
    mode: str
    ours: Errors
    others: dict[str, Errors]


def roundings(types: Types, k: int) -> float:
    """Of docs/numerics.md; where products are of bf16 by the rule that has more."""
    products, chains = PRODUCTS[types.precision], CHAIN + 2 + k / CHAIN
    if products > 1:
        chains = 64 * products + 2 + k / 64
    return max(chains, 18 + products * (k / 32 + 1)) if types.flushes else chains


def tolerance(operands: Operands, k: int, types: Types) -> np.ndarray:
    """Of docs/numerics.md, without alpha, c and bias; times 2**shift as the operands' exact results are. No kind of
    data has terms or operands below the smallest normal number."""
    c = Format.of(np.float64 if np.float64 in types else np.float32)
    o = Format.of(types.out)
    relative = (c.epsilon * roundings(types, k) + SPLITTING[types.precision]) * operands.magnitude
    lost = 2 * (PRODUCTS[types.precision] * k + 1) * 2.0**c.min_exponent if types.flushes else k * c.tiny
    return relative + o.epsilon * np.abs(operands.exact.high) + np.ldexp(lost + 4 * c.tiny + o.tiny, operands.shift)


def errors_of(got: np.ndarray, operands: Operands, k: int, types: Types) -> Errors:
    return Errors.of(got, operands.exact, tolerance(operands, k, types), operands.shift)


def measure(kind: str, all_types: list[Types], k: int, programs: dict[str, Program]) -> list[Line]:
    """All dtypes of out for one dtype of lhs and rhs, in every mode, each with data of its own."""
    lines = []
    for seed, (mode, run) in enumerate(MODES.items()):
        operands = make_operands(kind, all_types[0].lhs, k, seed)
        for types in all_types:
            out = np.dtype(types.out)
            found = {name: program(operands.lhs, operands.rhs, out) for name, program in programs.items()}
            rest = {name: errors_of(got, operands, k, types) for name, got in found.items() if got is not None}
            ours = errors_of(run(operands.lhs, operands.rhs, out, types.precision), operands, k, types)
            lines.append(Line(kind, types, k, mode, ours, rest))
    return lines


def modes_that_differ(kind: str, types: Types, k: int) -> list[str]:
    """Modes whose result of one product has other bits than the first one's."""
    operands = make_operands(kind, types.lhs, k, seed=99)
    results = {
        mode: run(operands.lhs, operands.rhs, np.dtype(types.out), types.precision) for mode, run in MODES.items()
    }
    first = next(iter(results.values())).tobytes()
    return [f"{mode}, {kind}, {types}, K {k}" for mode, got in results.items() if got.tobytes() != first]


def _merged(lines: list[Line], by: str | None) -> Errors:
    """Over lines that differ in their mode only: of ours, or of another."""
    all_errors = [line.ours if by is None else line.others[by] for line in lines]
    return Errors(
        max(e.largest for e in all_errors),
        max(e.percentile for e in all_errors),
        float(np.mean([e.mean for e in all_errors])),
        max(e.of_tolerance for e in all_errors),
    )


def table(lines: list[Line], names: list[str], kind: str, by_mode: bool) -> str:
    """Of one kind of data; a row for each dtype and K, and mode or over all modes."""
    groups: dict[tuple, list[Line]] = {}
    for line in (line for line in lines if line.kind == kind):
        groups.setdefault((line.types, line.k, line.mode if by_mode else ""), []).append(line)
    rows = []
    for (types, k, mode), same in groups.items():
        ours = _merged(same, None)
        cells = [str(_merged(same, name)) if name in same[0].others else "" for name in names]
        rows.append([str(types), str(k), *([mode] if by_mode else []), f"{ours.of_tolerance:.2g}", str(ours), *cells])
    return aligned(["dtypes", "K", *(["mode"] if by_mode else []), "of tolerance", "raggemm", *names], rows)


def report(lines: list[Line], names: list[str], quantized_table: str, wrong: list[str], by_mode: bool) -> str:
    parts = [
        "# Numerics",
        "Errors against the exact product, in ulp of the result: largest / 99.9th percentile / mean. "
        "`of tolerance`: raggemm's largest error in units of the tolerance of docs/numerics.md. Nothing where a "
        "library lacks the product. XLA and some libraries flush denormals to zero.",
    ]
    parts += [f"## {kind.capitalize()}\n\n{table(lines, names, kind, by_mode)}" for kind in KINDS]
    parts.append(f"## Quantized\n\n{quantized.TEXT}\n\n{quantized_table}")
    largest = max(line.ours.of_tolerance for line in lines)
    verdict = "\n".join(f"- WRONG: {text}" for text in wrong) or "Nothing is wrong."
    parts.append(f"## Verdict\n\nraggemm's largest error is {largest:.2g} of the tolerance. {verdict}")
    return "\n\n".join(parts) + "\n"


@np.errstate(all="ignore")
def patterns(dtype) -> np.ndarray:
    """Every number of a 16-bit type; of the others random bits, and around every 16-bit number and tie."""
    size = np.dtype(dtype).itemsize
    if size == 2:
        return np.arange(1 << 16, dtype=np.uint16).view(dtype)
    rng = np.random.default_rng(0)
    unsigned = {4: np.uint32, 8: np.uint64}[size]
    anything = rng.integers(0, np.iinfo(unsigned).max, 1 << 16, unsigned, endpoint=True).view(dtype)
    near = []
    for narrow in (F16, BF16):
        numbers = np.arange(1 << 16, dtype=np.uint16).view(narrow)
        numbers = numbers[np.isfinite(numbers)]
        below = np.nextafter(numbers, narrow(0)).astype(dtype)
        near += [numbers.astype(dtype), (numbers.astype(dtype) + below) / 2]
    special = np.array([np.nan, -np.nan, np.inf, -np.inf, 0.0, -0.0], dtype)
    around = [np.nextafter(x, dtype(s)) for x in near for s in (-np.inf, np.inf)]
    return np.concatenate([anything, special, *near, *around])


@np.errstate(all="ignore")
def wrong_conversions() -> list[str]:
    """For each pair of dtypes of lhs and out, x*1 of all patterns: it is x, rounded once, and -0*1 + 0 is +0. Sums of
    bf16 with bf16 have zeros for denormals."""
    wrong = []
    for source, target in itertools.product((F16, BF16, F32, F64), repeat=2):
        x = patterns(source)
        one = np.ones((1, 1, 1), source)
        out = grouped_gemm(x[None, :, None], one, contracting_dims=((2,), (1,)), preferred_element_type=target)
        wide = x.astype(np.float64)
        if Types(source, target).flushes:
            wide[np.abs(wide) < 2.0 ** Format.of(source).min_exponent] = 0
        got, want = np.asarray(out)[0, :, 0], rounded(wide, target)
        same = (got == want) & (np.signbit(got) == np.signbit(want)) | (want == 0) & (got == 0)
        bad = ~(same | (np.isnan(got) & np.isnan(want)))
        if bad.any():
            i = np.argmax(bad)
            wrong.append(f"{np.dtype(source).name} to {np.dtype(target).name}: {bad.sum()}, {x[i]} became {got[i]}")
    return wrong


def check(short: bool, programs: dict[str, Program]) -> tuple[list[Line], list[str]]:
    """All lines, and what is wrong of ours."""
    lines, wrong = [], []
    types = TYPES[:1] + TYPES[2:3] + TYPES[5:] if short else TYPES
    for kind in KINDS:
        for k in SHORT_LENGTHS if short else LENGTHS:
            for dtype in dict.fromkeys(t.lhs for t in types):
                lines += measure(kind, [t for t in types if t.lhs is dtype], k, programs)
        for one in types:
            wrong += [f"other bits: {text}" for text in modes_that_differ(kind, one, k=300)]
    for line in lines:
        if not line.ours.of_tolerance <= 1:
            where = f"{line.kind}, {line.types}, K {line.k}, {line.mode}"
            wrong.append(f"error of {line.ours.of_tolerance:.3g} tolerances: {where}")
    return lines, wrong + wrong_conversions()


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--short", action="store_true", help="some dtypes and lengths, in seconds")
    parser.add_argument("--out", metavar="FILE.md", type=output_file, default=ROOT / "build" / "numerics.md")
    options = parser.parse_args(arguments)
    programs = others()
    with jax.enable_x64(True):
        lines, wrong = check(options.short, programs)
    quantized_lines, quantized_wrong = quantized.check(options.short)
    names, quantized_table, wrong = list(programs), quantized.table(quantized_lines), wrong + quantized_wrong
    options.out.write_text(report(lines, names, quantized_table, wrong, by_mode=True))
    print(report(lines, names, quantized_table, wrong, by_mode=False))
    print(f"numerics: {'FAILED' if wrong else 'OK'}; by mode: {options.out}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
