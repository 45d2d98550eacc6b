"""The demo's layers with quantized weights: raggemm on them and on bfloat16, and what XLA makes of them."""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from raggemm._functions.quantized import dequantize
from raggemm._functions.tensors import QuantizedTensor
from raggemm.ops import gmm

from raggemm_demo import contenders
from raggemm_demo.checks import Checks, aligned, disagreement, milliseconds, rows_error, run_shown
from raggemm_demo.formats import FORMATS, Dequantized
from raggemm_demo.layers import Layer, Weights, expert_products, random_rows, random_weights
from raggemm_demo.programs import Limits, WarmProgram, affordable_layer, median_ms
from raggemm_demo.progress import Progress, say

BFLOAT16 = "raggemm, bfloat16"


class _Both(NamedTuple):
    """The experts of a model, quantized, and what these stand for, rounded to bfloat16."""

    quantized: Weights
    bfloat16: Weights


def _both(layer: Layer, name: str) -> _Both:
    quantize = jax.jit(FORMATS[name].quantized)
    quantized = Weights(*(quantize(w) for w in random_weights(layer)))
    return _Both(quantized, jax.tree.map(_bfloat16, quantized, is_leaf=lambda x: isinstance(x, QuantizedTensor)))


@jax.jit
def _bfloat16(tensor: QuantizedTensor) -> jax.Array:
    return dequantize(tensor, jnp.bfloat16)


def _dequantized_ragged_dot(x: jax.Array, tensor: QuantizedTensor, sizes: jax.Array) -> jax.Array:
    return contenders.ragged_dot(x, dequantize(tensor, jnp.bfloat16), sizes)


def _call(name: str, layer: Layer, weights: _Both) -> tuple[Any, ...]:
    """What a contender runs: (function, *its arguments)."""
    x, sizes = random_rows(layer)
    if name == contenders.RAGGED_DOT:
        return lambda *operands: expert_products(_dequantized_ragged_dot, *operands).y, x, weights.quantized, sizes
    block = contenders.blocks(layer.padded_size)[contenders.RAGGEMM if name == BFLOAT16 else name]
    return block, x, weights.bfloat16 if name == BFLOAT16 else weights.quantized, sizes


def _checked_error(title: str, layer: Layer, weights: Weights, checks: Checks) -> float:
    """The largest of raggemm's products on quantized weights."""
    x, sizes = random_rows(layer)
    got = WarmProgram(lambda *operands: expert_products(gmm, *operands), x, weights, sizes).output
    pairs = ((got.gate, x, weights.gate), (got.up, x, weights.up), (got.y, got.gated, weights.down))
    errors = (rows_error(y, rows, Dequantized(tensor), layer.sizes) for y, rows, tensor in pairs)
    return checks.add(title, zip(("gate", "up", "down"), errors, strict=True))


def _run_all_rows(title: str, layer: Layer, weights: _Both, checks: Checks) -> float:
    """Raggemm alone, on rows that others can't afford; its largest error."""
    programs = {name: WarmProgram(*_call(name, layer, weights)) for name in (contenders.RAGGEMM, BFLOAT16)}
    ms = median_ms(programs, over=programs[BFLOAT16].output)
    quantized, bfloat16 = milliseconds(ms[contenders.RAGGEMM]), milliseconds(ms[BFLOAT16])
    say(f"{title}: raggemm alone on all {layer.rows} rows takes {quantized} ms, with bfloat16 {bfloat16} ms")
    return _checked_error(f"{title} on all rows", layer, weights.quantized, checks)


def _run_layer(
    recorded: Layer, weights: _Both, checks: Checks, progress: Progress, quantization: str, limits: Limits
) -> dict[str, Any]:
    """A row of the table."""
    title = f"{recorded.model} {recorded.phase}"
    progress.step("how many rows lax.ragged_dot can afford")
    make_call = lambda layer, both: _call(contenders.RAGGED_DOT, layer, both)  # noqa: E731
    layer = affordable_layer(recorded, weights, make_call, limits)
    say(f"{title}: {layer.rows} of {recorded.rows} rows for {layer.active} of {layer.experts} experts")
    names = (contenders.RAGGEMM, BFLOAT16, contenders.RAGGED_DOT, contenders.LOOPS[0])
    programs = {}
    for name in names:
        progress.step(name)
        programs[name] = WarmProgram(*_call(name, layer, weights))
    reference = programs[contenders.RAGGEMM].output
    # Half of it, for dequantized weights were rounded to bfloat16.
    checks.add(title, ((name, 0.5 * disagreement(programs[name].output, reference)) for name in names[1:]))
    progress.step("comparing with float64")
    error = _checked_error(title, layer, weights.quantized, checks)
    progress.step("timing all in turns")
    ms = median_ms(programs, over=reference, seconds=limits.timed_seconds)
    if layer.rows < recorded.rows:
        progress.step("raggemm alone on all rows")
        error = max(error, _run_all_rows(title, recorded, weights, checks))
    alternative = min(ms[contenders.RAGGED_DOT], ms[contenders.LOOPS[0]])
    return {
        "weights": quantization,
        **layer.in_report(recorded),
        "raggemm_ms": ms[contenders.RAGGEMM],
        "bfloat16_ms": ms[BFLOAT16],
        "ragged_dot_ms": ms[contenders.RAGGED_DOT],
        "loop_ms": ms[contenders.LOOPS[0]],
        "ratio_bfloat16": ms[BFLOAT16] / ms[contenders.RAGGEMM],
        "ratio_alternative": alternative / ms[contenders.RAGGEMM],
        "weights_bytes": sum(map(FORMATS[quantization].bytes, weights.quantized)),
        "max_error": error,
    }


def run_layers(layers: Sequence[Layer], name: str, limits: Limits, checks: Checks) -> list[dict[str, Any]]:
    """The rows of the table, of weights in a format of FORMATS."""
    return run_shown(
        layers,
        functools.partial(_run_layer, quantization=name, limits=limits),
        checks,
        _COLUMNS,
        lambda layer: _both(layer, name),
    )


# Two lines of heading, as wide as what stands below, of which one row is printed after the other.
_COLUMNS: tuple[tuple[str, str, Callable[[dict[str, Any]], str]], ...] = (
    ("", f"{'model':>13}", lambda row: row["model"]),
    ("", f"{'phase':>7}", lambda row: row["phase"]),
    ("", "weights", lambda row: row["weights"]),
    ("weights", "MiB", lambda row: f"{row['weights_bytes'] / 2**20:.0f}"),
    ("", " rows", lambda row: f"{row['rows']}{'*' if row['reduced'] else ' '}"),
    ("active", f"{'experts':>9}", lambda row: f"{row['active']} of {row['experts']}"),
    ("raggemm", "ms", lambda row: milliseconds(row["raggemm_ms"])),
    ("bfloat16", "ms", lambda row: milliseconds(row["bfloat16_ms"])),
    ("dequantize,", "ragged_dot ms", lambda row: milliseconds(row["ragged_dot_ms"])),
    ("dequantize,", "loop ms", lambda row: milliseconds(row["loop_ms"])),
    ("bfloat16", "/ raggemm", lambda row: f"{row['ratio_bfloat16']:.2f}"),
    ("best of XLA", "/ raggemm", lambda row: f"{row['ratio_alternative']:.1f}"),
    ("largest", "error", lambda row: f"{row['max_error']:.2g}"),
)


def table(rows: Sequence[dict[str, Any]], limits: Limits) -> str:
    lines = aligned(_COLUMNS, rows)
    if any(row["reduced"] for row in rows):
        lines.append(f"* fewer rows than recorded: with all of them ragged_dot would need over {limits}")
    return "\n".join(lines)
