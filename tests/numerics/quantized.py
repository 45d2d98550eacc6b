"""Quantized operands in the numerics report: every way in which scales act, against the exact product of what they
stand for, within the tolerance that tests/oracle/reference.cc derives."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from exact_products import COLUMNS, GROUPS, KINDS, ROWS, Errors, Exact, Format, aligned, exact_matmul, make_operands
from raggemm import GroupedTensor, QuantizedTensor, dequantize, gmm, grouped_gemm, quantize

TEXT = (
    "Of groups of rows, for float32, and the same bits for uniform groups: against the exact product of the elements "
    "times their scales. XLA multiplies what dequantize makes of them, in float32."
)
BF16, F32 = ml_dtypes.bfloat16, np.float32
LENGTHS, SHORT_LENGTHS = (64, 2048), (320,)
CHAIN, SCALINGS = 256, 4  # steps of a chain; roundings where sums are multiplied by scales
Quantize = Callable[[jax.Array], QuantizedTensor]


def _blocks(dtype: Any, steps: int, scale_dtype: Any = F32, **options: Any) -> Quantize:
    return functools.partial(quantize, dtype=dtype, axes=(), block=(1, steps), scale_dtype=scale_dtype, **options)


@dataclasses.dataclass(frozen=True)
class Way:
    """How operands [g,m,k] and [g,k,n] are quantized; None: as they are."""

    name: str
    rhs: Quantize
    lhs: Quantize | None = None
    dtype: type = BF16  # of lhs that is not quantized
    sum_steps: int = 0  # of k in a sum that a scale multiplies; 0: all
    scales_sums: bool = True
    rounds_elements: bool = False  # to bfloat16 when multiplied by their scales


_ROWS = functools.partial(quantize, dtype=np.int8, axes=(2,))
WAYS = (
    Way("bf16, int8, a scale for each column", functools.partial(quantize, dtype=np.int8, axes=(1,))),
    Way(
        "bf16, float8_e4m3fn, a scale for each column", functools.partial(quantize, dtype=jnp.float8_e4m3fn, axes=(1,))
    ),
    Way("bf16, int4, blocks of 32 steps", _blocks(jnp.int4, 32, BF16), sum_steps=32),
    Way("bf16, uint4 with zeros, blocks of 32 steps", _blocks(jnp.uint4, 32, zero_point=True), sum_steps=32),
    Way("f32, int4, blocks of 32 steps", _blocks(jnp.int4, 32), dtype=F32, sum_steps=32),
    Way("bf16, MXFP4", _blocks(jnp.float4_e2m1fn, 32, jnp.float8_e8m0fnu), scales_sums=False),
    Way("bf16, NVFP4's blocks", _blocks(jnp.float4_e2m1fn, 16, jnp.float8_e4m3fn), scales_sums=False),
    Way("bf16, int8, blocks of 16 steps", _blocks(np.int8, 16), scales_sums=False, rounds_elements=True),
    Way("bf16, int8, a scale for each step", _ROWS, scales_sums=False, rounds_elements=True),
    Way("int8, int8 (W8A8)", functools.partial(quantize, dtype=np.int8, axes=(1,)), _ROWS),
    Way("int8, int4, blocks of 32 steps", _blocks(jnp.int4, 32), _ROWS, sum_steps=32),
)


class Line(NamedTuple):
    """One product by us and by XLA."""

    way: str
    kind: str
    k: int
    ours: Errors
    xla: Errors


def _float64(x: QuantizedTensor | np.ndarray) -> np.ndarray:
    """What a tensor [g,rows,cols] stands for; elements times scales have fewer digits than float64."""
    if not isinstance(x, QuantizedTensor):
        return np.asarray(x).astype(np.float64)

    def spread(factor):
        factor = np.asarray(factor).astype(np.float64)
        for axis, extent in enumerate(x.shape):
            factor = factor.repeat(extent // factor.shape[axis], axis)
        return factor

    data = np.asarray(x.data).astype(np.float64)
    return (data if x.zero_point is None else data - spread(x.zero_point)) * spread(x.scale)


def _ragged(lhs: Any, rhs: QuantizedTensor) -> np.ndarray:
    """By groups of rows."""
    rows = jax.tree.map(lambda x: x.reshape(-1, x.shape[-1]), lhs)
    sizes = jnp.full(GROUPS, ROWS, jnp.int32)
    return np.asarray(jax.jit(gmm)(rows, rhs, sizes)).reshape(GROUPS, ROWS, COLUMNS)


def _uniform(lhs: Any, rhs: QuantizedTensor) -> np.ndarray:
    call = functools.partial(grouped_gemm, contracting_dims=((2,), (1,)), preferred_element_type=F32)
    return np.asarray(jax.jit(call)(GroupedTensor(lhs), GroupedTensor(rhs)))


def _xla(lhs: Any, rhs: QuantizedTensor) -> np.ndarray:
    lhs, rhs = (dequantize(x) if isinstance(x, QuantizedTensor) else jnp.asarray(x, F32) for x in (lhs, rhs))
    return np.asarray(jnp.einsum("gmk,gkn->gmn", lhs, rhs, precision=jax.lax.Precision.HIGHEST))


def tolerance(way: Way, k: int, exact: Exact, magnitude: np.ndarray) -> np.ndarray:
    """Of docs/numerics.md, and what scales add."""
    f32 = Format.of(F32)
    roundings = max(CHAIN + 2 + k / CHAIN, 19 + k / 32)
    if way.scales_sums:
        roundings += SCALINGS + (k / way.sum_steps + 1 if way.sum_steps else 0)
    relative = f32.epsilon * roundings + (0.51 * Format.of(BF16).epsilon if way.rounds_elements else 0)
    return relative * magnitude + f32.epsilon * np.abs(exact.high) + 2 * (k + 1) * 2.0**f32.min_exponent


def measure(way: Way, kind: str, k: int, seed: int) -> tuple[Line, bool]:
    """The line, and whether uniform groups have the same bits."""
    operands = make_operands(kind, way.dtype, k, seed)
    rhs = way.rhs(jnp.asarray(operands.rhs))
    lhs = way.lhs(jnp.asarray(operands.lhs)) if way.lhs else jnp.asarray(operands.lhs)
    wide_lhs, wide_rhs = _float64(lhs), _float64(rhs)
    exact = exact_matmul(wide_lhs, wide_rhs, wide=True)
    bound = tolerance(way, k, exact, np.abs(wide_lhs) @ np.abs(wide_rhs))
    ours = _ragged(lhs, rhs)
    line = Line(way.name, kind, k, Errors.of(ours, exact, bound), Errors.of(_xla(lhs, rhs), exact, bound))
    return line, ours.tobytes() == _uniform(lhs, rhs).tobytes()


def check(short: bool) -> tuple[list[Line], list[str]]:
    """All lines, and what is wrong of ours."""
    lines, wrong = [], []
    for seed, way in enumerate(WAYS):
        for kind in list(KINDS)[:2]:  # of the others elements would be zeros, or scales denormal
            for k in SHORT_LENGTHS if short else LENGTHS:
                line, same_bits = measure(way, kind, k, seed)
                lines.append(line)
                where = f"{kind}, {way.name}, K {k}"
                if not same_bits:
                    wrong.append(f"other bits: uniform, {where}")
                if not line.ours.of_tolerance <= 1:
                    wrong.append(f"error of {line.ours.of_tolerance:.3g} tolerances: {where}")
    return lines, wrong


def table(lines: list[Line]) -> str:
    rows = [[x.way, x.kind, str(x.k), f"{x.ours.of_tolerance:.2g}", str(x.ours), str(x.xla)] for x in lines]
    return aligned(["lhs, rhs", "data", "K", "of tolerance", "raggemm", "XLA"], rows)
