"""The experts of three mixture-of-experts models on recorded routing: raggemm against what JAX has on CPU.

    ./dev demo [--weights=FORMAT] [--json=FILE]

For each model a prefill layer and a decode step: the expert block forward, on raggemm, product by product and in one
call, on jax.lax.ragged_dot and on two hand-written alternatives; for the prefill of one model also the gradients of a
loss for x and all weights. Every product of raggemm is checked against float64. Takes one to two minutes on two
cores, and 10 GiB of memory. With --weights the same layers forward with quantized weights, beside raggemm in bfloat16
and what XLA makes of them.
"""

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from typing import Any

import jax
from raggemm.ops import gmm

from raggemm_demo import checks as oracle
from raggemm_demo import contenders, quantized
from raggemm_demo.checks import Checks, aligned, backward_products, disagreement, milliseconds, output_file, run_shown
from raggemm_demo.formats import FORMATS
from raggemm_demo.layers import Layer, Weights, expert_products, loss_of, random_rows, random_target, recorded_layers
from raggemm_demo.programs import Limits, Programs, WarmProgram, affordable_layer, compiled, median_ms, temp_bytes
from raggemm_demo.progress import Progress, say

GRADIENT_MODEL = "qwen3-30b-a3b"
LIMITS = Limits(seconds=2.0, temp_bytes=4 * 2**30, timed_seconds=1.0)  # all of it takes one to two minutes


def _checked_forward(title: str, layer: Layer, weights: Weights, checks: Checks) -> tuple[WarmProgram, float]:
    """Raggemm's block with everything it computes, and its largest error."""
    x, sizes = random_rows(layer)
    program = WarmProgram(lambda *operands: expert_products(gmm, *operands), x, weights, sizes)
    return program, checks.add(title, oracle.forward_errors(x, weights, layer.sizes, program.output))


def _run_all_rows(title: str, layer: Layer, weights: Weights, checks: Checks) -> float:
    """Raggemm alone, on rows that others can't afford; its largest error."""
    program, error = _checked_forward(f"{title} on all rows", layer, weights, checks)
    say(f"{title}: raggemm alone on all {layer.rows} rows takes {1e3 * program.seconds():.0f} ms")
    return error


def _run_gradients(title: str, layer: Layer, weights: Weights, checks: Checks) -> float:
    """The gradients of a loss for x and all weights on raggemm; the largest error of their products."""
    x, sizes = random_rows(layer)
    operands = (x, weights, sizes, random_target(layer))
    loss = loss_of(contenders.blocks(layer.padded_size)[contenders.RAGGEMM])
    program = WarmProgram(jax.value_and_grad(loss, argnums=(0, 1)), *operands)
    forward, backward = WarmProgram(backward_products, *operands).output
    error = checks.add(title, oracle.backward_errors(x, weights, layer.sizes, forward, backward))
    _, (dx, dweights) = program.output
    dx_and_dweights = (backward.dx_gate + backward.dx_up, *backward.dweights)
    for name, got, reference in zip(("x", *Weights._fields), (dx, *dweights), dx_and_dweights, strict=True):
        checks.add(title, [(f"jax.grad for {name} against its products", disagreement(got, reference))])
    say(f"{title}: raggemm's loss and gradients on all {layer.rows} rows take {1e3 * program.seconds():.0f} ms")
    return error


def _call(name: str, layer: Layer, weights: Weights) -> tuple[Any, ...]:
    """What a contender runs: (function, *its arguments)."""
    x, sizes = random_rows(layer)
    return contenders.blocks(layer.padded_size)[name], x, weights, sizes


def _contenders(recorded: Layer, weights: Weights, progress: Progress) -> tuple[Layer, Programs]:
    """The layer with the rows that all contenders can afford, and the contenders on it, of the two loops the faster."""
    progress.step("how many rows lax.ragged_dot can afford")

    def ragged_dot(layer: Layer, weights: Weights) -> tuple[Any, ...]:
        return _call(contenders.RAGGED_DOT, layer, weights)

    layer = affordable_layer(recorded, weights, ragged_dot, LIMITS)
    programs = {}
    for name in contenders.CONTENDERS:
        progress.step(name)
        programs[name] = WarmProgram(*_call(name, layer, weights))
    del programs[max(contenders.LOOPS, key=lambda name: programs[name].seconds())]
    return layer, programs


def run_layer(recorded: Layer, weights: Weights, checks: Checks, progress: Progress) -> dict[str, Any]:
    """A row of the table."""
    title = f"{recorded.model} {recorded.phase}"
    layer, programs = _contenders(recorded, weights, progress)
    say(f"{title}: {layer.rows} of {recorded.rows} rows for {layer.active} of {layer.experts} experts")
    progress.step("comparing with float64")
    forward, error = _checked_forward(title, layer, weights, checks)
    results = ((name, program.output) for name, program in programs.items())
    checks.add(title, ((name, disagreement(y, forward.output.y)) for name, y in results))
    progress.step("timing all in turns")
    ms = median_ms(programs, over=programs[contenders.RAGGEMM].output, seconds=LIMITS.timed_seconds)
    if layer.rows < recorded.rows:
        progress.step("raggemm alone on all rows")
        error = max(error, _run_all_rows(title, recorded, weights, checks))
    if (recorded.model, recorded.phase) == (GRADIENT_MODEL, "prefill"):
        progress.step("gradients")
        error = max(error, _run_gradients(title, recorded, weights, checks))
    loop_ms = next(ms[name] for name in contenders.LOOPS if name in ms)
    x, sizes = random_rows(layer)
    return {
        **layer.in_report(recorded),
        "raggemm_ms": ms[contenders.RAGGEMM],
        "fused_ms": ms[contenders.FUSED],
        "ragged_dot_ms": ms[contenders.RAGGED_DOT],
        "loop_ms": loop_ms,
        "einsum_ms": ms[contenders.EINSUM],
        "ratio_ragged_dot": ms[contenders.RAGGED_DOT] / ms[contenders.RAGGEMM],
        "ratio_alternative": min(loop_ms, ms[contenders.EINSUM]) / ms[contenders.RAGGEMM],
        "temp_bytes_raggemm": temp_bytes(compiled(gmm, x, weights.up, sizes)),
        "temp_bytes_ragged_dot": temp_bytes(compiled(contenders.ragged_dot, x, weights.up, sizes)),
        "max_error": error,
    }


def _alternative(row: dict[str, Any]) -> str:
    name = "loop" if row["loop_ms"] < row["einsum_ms"] else "einsum"
    return f"{name} {milliseconds(row[f'{name}_ms'])}"


# Two lines of heading, as wide as what stands below, of which one row is printed after the other.
_COLUMNS: tuple[tuple[str, str, Callable[[dict[str, Any]], str]], ...] = (
    ("", f"{'model':>13}", lambda row: row["model"]),
    ("", f"{'phase':>7}", lambda row: row["phase"]),
    ("", " rows", lambda row: f"{row['rows']}{'*' if row['reduced'] else ' '}"),
    ("active", f"{'experts':>9}", lambda row: f"{row['active']} of {row['experts']}"),
    ("raggemm", "ms", lambda row: milliseconds(row["raggemm_ms"])),
    ("fused", "ms", lambda row: milliseconds(row["fused_ms"])),
    ("ragged_dot", "ms", lambda row: milliseconds(row["ragged_dot_ms"])),
    ("alternative", "ms", _alternative),
    ("ragged_dot", "/ raggemm", lambda row: f"{row['ratio_ragged_dot']:.1f}"),
    ("alternative", "/ raggemm", lambda row: f"{row['ratio_alternative']:.1f}"),
    ("raggemm", "temp MiB", lambda row: f"{row['temp_bytes_raggemm'] / 2**20:.3f}"),
    ("ragged_dot", "temp MiB", lambda row: f"{row['temp_bytes_ragged_dot'] / 2**20:.0f}"),
    ("largest", "error", lambda row: f"{row['max_error']:.2g}"),
)


def table(rows: Sequence[dict[str, Any]]) -> str:
    lines = aligned(_COLUMNS, rows)
    if any(row["reduced"] for row in rows):
        lines.append(f"* fewer rows than recorded: with all of them one of the contenders would need over {LIMITS}")
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    summary, _, details = __doc__.split("\n\n")
    parser = argparse.ArgumentParser(prog="./dev demo", description=summary, epilog=details)
    parser.add_argument("--json", metavar="FILE", type=output_file, help="write the table there, as a list of rows")
    parser.add_argument("--weights", choices=FORMATS, help="quantized weights instead of bfloat16")
    options = parser.parse_args(argv)
    checks = Checks()
    if options.weights:
        rows = quantized.run_layers(recorded_layers(), options.weights, LIMITS, checks)
        say(f"\n{quantized.table(rows, LIMITS)}\n")
    else:
        rows = run_shown(recorded_layers(), run_layer, checks, _COLUMNS)
        say(f"\n{table(rows)}\n")
    if options.json:
        options.json.write_text(json.dumps(rows, indent=2) + "\n")
    return checks.finish("raggemm demo", "checks")


if __name__ == "__main__":
    sys.exit(main())
