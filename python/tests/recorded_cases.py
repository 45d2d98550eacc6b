"""The cases of edge.textproto and formats.textproto as custom calls, and the checksums of their results
(cases/checksums.txt).

It is written from tests/host/random_fill.h, checksum.h and case_problem.h, and shares no code with them: operands are
made from integers here as there, so that another language, jaxlib or CPU has the same ones.
"""

import itertools
import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import ml_dtypes
import numpy as np
from raggemm._primitive import library
from raggemm_demo.case_files import CASES, read_cases

GOLDEN = np.uint64(0x9E3779B97F4A7C15)
DTYPES = {
    "F16": np.float16,
    "BF16": ml_dtypes.bfloat16,
    "F32": np.float32,
    "F64": np.float64,
    "S32": np.int32,
    "S64": np.int64,
    "U32": np.uint32,
    "S8": np.int8,
    "U8": np.uint8,
    "S4": ml_dtypes.int4,
    "U4": ml_dtypes.uint4,
    "S2": ml_dtypes.int2,
    "F8E4M3FN": ml_dtypes.float8_e4m3fn,
    "F8E5M2": ml_dtypes.float8_e5m2,
    "F4E2M1FN": ml_dtypes.float4_e2m1fn,
    "F8E8M0FNU": ml_dtypes.float8_e8m0fnu,
}
SUMS = ("PAIRS", "TILES")
SUB_BYTE = {"S4": 4, "U4": 4, "F4E2M1FN": 4, "S2": 2}  # bits
DIMS = [f"{matrix}_{axis}" for matrix in ("lhs", "rhs", "out") for axis in ("first", "last")]


def _scramble(z: np.ndarray) -> np.ndarray:
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def _random_words(count: int, seed: int) -> np.ndarray:
    return _scramble(np.uint64(seed << 40) + np.arange(1, count + 1, dtype=np.uint64) * GOLDEN)


def random_bits(shape, name: str, seed: int) -> np.ndarray:
    """The same of a format of integers, or of less than two bytes."""
    dtype, count, bits = np.dtype(DTYPES[name]), math.prod(shape), SUB_BYTE.get(name, 8)
    if name == "S32":
        return (_random_words(count, seed) >> np.uint64(32)).astype(np.uint32).view(dtype).reshape(shape)
    codes = (_random_words(-(-count * bits // 8), seed) >> np.uint64(56)).astype(np.uint8)
    if name in SUB_BYTE:
        codes = (codes[:, None] >> np.arange(0, 8, bits, dtype=np.uint8) & (2**bits - 1)).reshape(-1)[:count]
    if name in ("S4", "S2"):
        return ((codes ^ 1 << bits - 1).astype(np.int8) - (1 << bits - 1)).astype(dtype).reshape(shape)
    if name == "F8E8M0FNU":
        codes = 119 + (codes >> 4)
    elif name.startswith("F8"):
        odd = ~np.isfinite(codes.view(dtype).astype(np.float32))
        codes = np.where(odd, codes ^ 1 << ml_dtypes.finfo(dtype).nmant, codes).astype(np.uint8)
    return (codes.astype(dtype) if name == "U4" else codes.astype(np.uint8).view(dtype)).reshape(shape)


def random_array(shape, dtype, seed: int, exponent: int = 0) -> np.ndarray:
    """FillRandom of tests/host/random_fill.h: in [-1, 1) times two to the exponent."""
    digits = ml_dtypes.finfo(dtype).nmant + 1
    signed = _random_words(math.prod(shape), seed).view(np.int64) >> np.int64(64 - digits)
    return np.ldexp(signed.astype(np.float64), exponent + 1 - digits).astype(dtype).reshape(shape)


def checksum(array) -> int:
    """Checksum of tests/host/checksum.h."""
    x = np.array(array).reshape(-1)
    if x.dtype != np.int32:
        x[np.isnan(x)] = np.nan
    bits = x.view(f"u{x.itemsize}").astype(np.uint64)
    bits[np.isnan(x)] = {2: 0x7E00 if x.dtype == np.float16 else 0x7FC0, 4: 0x7FC00000, 8: 0x7FF8 << 48}[x.itemsize]
    return int(_scramble(_scramble(bits) + np.arange(1, x.size + 1, dtype=np.uint64) * GOLDEN).sum(dtype=np.uint64))


def recorded_checksums() -> dict[str, int]:
    """By "case dtypes"."""
    lines = [line.split() for line in (CASES / "checksums.txt").read_text().splitlines() if not line.startswith("#")]
    return {f"{name} {dtypes}": int(value, 16) for name, dtypes, value in lines}


class RecordedCase(NamedTuple):
    key: str
    attributes: dict[str, Any]
    operands: list[np.ndarray]
    out: jax.ShapeDtypeStruct
    workspace: int  # int64 elements

    def call(self, operands, **how):
        """The custom call; `how`: executor, isa, threads."""
        results = self.out, jax.ShapeDtypeStruct((self.workspace,), np.int64)
        return jax.ffi.ffi_call(library.TARGET, results)(*operands, **self.attributes, **how)[0]


def _explicit(case: dict[str, Any]) -> dict[str, Any]:
    if "lhs" in case:
        return case
    sizes, k, n = case["group_sizes"], case["K"], case["N"]
    return case | {
        "config": {"ragged": "lhs_first,out_first"},
        "lhs": {"dims": [sum(sizes), k], "first_dims": sizes},
        "rhs": {"dims": [len(sizes), k, n]},
        "out": {"dims": [sum(sizes), n], "first_dims": sizes},
    }


def _with_sums(case: dict[str, Any], sums: str) -> dict[str, Any]:
    return case | {"config": case.get("config", {}) | {"bf16_sums": sums}}


def _with_matrix_dtype(case: dict[str, Any], dtype: str) -> dict[str, Any]:
    """lhs and rhs get this type, out f32, or f64 for f64."""
    out = "F64" if dtype == "F64" else "F32"
    types = {"lhs": dtype, "rhs": dtype, "out": out}
    changed = case | {name: case[name] | {"dtype": t} for name, t in types.items()}
    if out == "F32" and case.get("bias", {}).get("dtype") == "F64":
        changed["bias"] = case["bias"] | {"dtype": "F32"}
    return changed


class _Operands:
    """Makes operands in the order of their seeds."""

    def __init__(self, case: dict[str, Any]):
        self.case = case
        self.seed = case.get("seed", 1) << 8
        self.types = {name: case[name].get("dtype", "F32") for name in ("lhs", "rhs", "out")}
        self.compute = next((x for x in ("F64", "S32") if x in self.types.values()), "F32")

    def random(self, dims, dtype: str, exponent: int = 0) -> np.ndarray:
        self.seed += 1
        shape = tuple(dims)
        if dtype in ("F16", "BF16", "F32", "F64"):
            return random_array(shape, DTYPES[dtype], self.seed - 1, exponent)
        return random_bits(shape, dtype, self.seed - 1)

    def matrix(self, name: str) -> np.ndarray:
        matrix = self.case[name]
        return self.random(matrix.get("dims", []), self.types[name], matrix.get("exponent", 0))

    def dims(self, slot: str) -> np.ndarray:
        if slot not in self.case.get("config", {}).get("ragged", "").split(","):
            return np.zeros(0, np.int32)
        matrix, axis = slot.split("_")
        sizes = np.array(self.case[matrix].get(f"{axis}_dims", []), DTYPES[self.case.get("group_dtype", "S32")])
        return sizes.reshape(self.case.get("group_shape", [sizes.size]))

    def optional(self, name: str) -> np.ndarray:
        if name == "c":
            return self.random(self.case["out"].get("dims", []), self.types["out"])
        vector = self.case.get(name, {})
        scales = dict.fromkeys(("lhs_scale", "rhs_scale"), "F32")
        zeros = {"lhs_zero": self.types["lhs"], "rhs_zero": self.types["rhs"]}
        defaults = {"bias": "F32", "group_offset": "S32"} | scales | zeros
        dtype, dims = vector.get("dtype", defaults.get(name, self.compute)), vector.get("dims", [])
        if "values" not in vector:
            return self.random(dims, dtype)
        return np.array(vector["values"], np.float64).astype(DTYPES[dtype]).reshape(dims)


def _types(types: dict[str, str], config: dict[str, Any]) -> str:
    precision = config.get("precision")
    as_bf16 = all(types[x] not in ("F16", "F32", "F64") for x in ("lhs", "rhs")) and types["out"] != "S32"
    sums = config["bf16_sums"] if precision or as_bf16 else "AUTO"
    what = [precision] if precision else []
    how = [sums] if sums != "AUTO" else []
    return ":".join(["{lhs}*{rhs}>{out}".format(**types), *what, *how]).lower()


def _recorded_case(case: dict[str, Any]) -> RecordedCase:
    make, config = _Operands(case), case.get("config", {})
    lhs, rhs = make.matrix("lhs"), make.matrix("rhs")
    dims = [make.dims(slot) for slot in DIMS]
    names = [name for name in config.get("operands", "").split(",") if name]
    order = ("c", "bias", "alpha", "beta", "group_offset", "lhs_scale", "rhs_scale", "lhs_zero", "rhs_zero")
    optional = {name: make.optional(name) for name in sorted(names, key=order.index)}
    shape = tuple(case["out"].get("dims", []))
    ragged = [x for slot, x in zip(DIMS, dims, strict=True) if slot in config.get("ragged", "").split(",")]
    constant, per_group = library.workspace_coefficients(len(ragged))
    return RecordedCase(
        key=f"{case['name']} {_types(make.types, config)}",
        attributes={name: int(x) if name.endswith("boundary") else x for name, x in config.items()},
        operands=[lhs, rhs, *dims, *(optional[name] for name in names)],
        out=jax.ShapeDtypeStruct(shape, DTYPES[make.types["out"]]),
        workspace=constant + per_group * (ragged[0].size if ragged else shape[0]),
    )


def recorded_cases() -> Iterator[RecordedCase]:
    """As ./dev checksums has them: in the types that they have, then in others; those of formats by two rules."""
    for case, sums in itertools.product(read_cases("formats"), SUMS):
        yield _recorded_case(_with_sums(case, sums))
    for source in read_cases("edge"):
        case = _explicit(source)
        yield _recorded_case(_with_sums(case, "PAIRS"))
        for dtype, rules in (("F16", ("AUTO",)), ("BF16", (*SUMS, "FMA", "MMLA")), ("F64", ("AUTO",))):
            for sums in rules:
                yield _recorded_case(_with_sums(_with_matrix_dtype(case, dtype), sums))
