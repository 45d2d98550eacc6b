"""Compares raggemm with the alternatives in JAX on CPU: the experts of mixture-of-experts models, on recorded routing.

    ./dev demo [--weights=FORMAT] [--long]

For each model the demo measures the expert block of a prefill layer and of a decode step. It compares raggemm, with
separate products and in one call, with jax.lax.ragged_dot and the faster of two hand-written loops. For the prefill of
one model it also measures gradients with respect to x and all weights. First, it checks samples of raggemm's products
against float64. It checks every contender's result against raggemm's products, and gradients against
jax.lax.ragged_dot. It needs two cores, 10 GiB of memory and less than a minute. --weights quantizes the weights.
raggemm then multiplies the quantized weights, and the alternatives dequantize them. The table then has raggemm with
bfloat16 weights instead of the one call, and no gradients. --long adds Mixtral 8x7B, measures longer, and measures
raggemm on all recorded rows.
"""

import argparse
import itertools
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from raggemm import QuantizedTensor, dequantize
from raggemm.ops import gmm

from raggemm_demo.checks import disagreement, product_errors
from raggemm_demo.contenders import FUSED, LOOPS, RAGGED_DOT, RAGGEMM, blocks
from raggemm_demo.formats import FORMATS
from raggemm_demo.layers import Layer, Weights, expert_products, make_loss, random_rows, random_target, random_weights
from raggemm_demo.layers import recorded_layers as recorded

GRADIENT_MODEL = "qwen3-30b-a3b"
# The model that only --long adds, because it takes a third of the time.
LONG_MODEL = "mixtral-8x7b"
BFLOAT16 = "raggemm, bfloat16"
# Approximate rows of reduced prefill layers, forward and for gradients. All rows would take long, because
# jax.lax.ragged_dot multiplies every row by every expert.
PREFILL_ROWS, GRADIENT_ROWS = 128, 64


class Effort(NamedTuple):
    rounds: int  # most timed runs of a contender
    seconds: float  # total time after which a contender starts no further run


SHORT, LONG = Effort(5, 0.5), Effort(9, 2.0)


class Program:
    """A function compiled for its arguments. Each run overwrites the results of the previous run. In fresh memory,
    times would include page faults: raggemm's gradients, 1.2 GB, took between 250 and 1120 ms."""

    def __init__(self, function: Callable, *args: Any):
        self._args = args
        results = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(function, *args))
        run = jax.jit(lambda over, *args: function(*args), donate_argnums=0, keep_unused=True)
        self._compiled = run.lower(results, *args).compile()
        analysis = self._compiled.memory_analysis()
        self.temp_bytes = analysis.temp_size_in_bytes if analysis else 0
        self.output = results
        self.seconds()

    def seconds(self) -> float:
        start = time.perf_counter()
        self.output = jax.block_until_ready(self._compiled(self.output, *self._args))
        return time.perf_counter() - start


def wait_until_quiet() -> None:
    """Waits until the process is idle, at most 2 s. XLA frees temporaries after a run. This would slow the next run."""
    for _ in range(100):
        before = time.process_time()
        time.sleep(0.02)
        if time.process_time() - before < 0.002:
            return


def median_ms(programs: Mapping[str, Program], effort: Effort) -> dict[str, float]:
    """Returns median times by name. Runs programs in turn, so that changes of the machine's speed affect all."""
    times: dict[str, list[float]] = {name: [] for name in programs}
    for _ in range(effort.rounds):
        for name, program in programs.items():
            if sum(times[name]) < effort.seconds:
                wait_until_quiet()
                times[name].append(program.seconds())
    return {name: 1e3 * statistics.median(each) for name, each in times.items()}


class Checks:
    """Counts checks, and collects failures. An error is given as a multiple of its tolerance."""

    def __init__(self) -> None:
        self.count = 0
        self.failures: list[str] = []

    def add(self, title: str, errors: Iterable[tuple[str, float]]) -> float:
        """Counts one check for each (name, error). An error above 1 is a failure. Returns the largest error."""
        worst = 0.0
        for name, error in errors:
            self.count += 1
            if error > 1:
                self.failures.append(f"{title}, {name}: error is {error:.3g} times the tolerance")
            worst = max(worst, error)
        return worst


def results_errors(name: str, got: Any, want: Any, share: float) -> Iterable[tuple[str, float]]:
    """Yields (name, error as a multiple of the tolerance) for each result. share: 0.5 doubles the tolerance.

    name: the contender. got, want: y, or a loss and its gradients with respect to x and the weights.
    """
    names = (
        ("y",)
        if isinstance(got, jax.Array)
        else ("loss", "gradient of x", *(f"gradient of {w}" for w in Weights._fields))
    )
    for result, a, b in zip(names, jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        yield f"{name}, {result}", share * disagreement(a, b)


def run_block(layer: Layer, weights: Weights, plain: Weights | None, effort: Effort, checks: Checks) -> dict[str, Any]:
    """Checks and measures the expert block of a layer. Returns a row of the table.

    plain: `weights` dequantized to bfloat16, or None if they are not quantized.
    """
    title = f"{layer.model} {layer.phase}"
    x, sizes = random_rows(layer)
    products = jax.jit(lambda *operands: expert_products(gmm, *operands))(x, weights, sizes)
    error = checks.add(title, product_errors(x, weights, layer.sizes, products))
    calls = {name: (block, x, weights, sizes) for name, block in blocks(layer.padded_size).items()}
    if plain is not None:
        calls = {name: call for name, call in calls.items() if name != FUSED}
        calls[BFLOAT16] = (calls[RAGGEMM][0], x, plain, sizes)
    programs = {}
    for name, call in calls.items():
        print(f"{title}: {name}", file=sys.stderr, flush=True)
        programs[name] = Program(*call)
        # Twice the tolerance, because most contenders also round the dequantized weights to bfloat16.
        share = 1.0 if plain is None else 0.5
        checks.add(title, results_errors(name, programs[name].output, products.y, share))
    return {"phase": layer.phase, "error": error, **_figures(layer, programs, effort)}


def run_gradients(layer: Layer, weights: Weights, effort: Effort, checks: Checks) -> dict[str, Any]:
    """Checks and measures a loss of a layer and its gradients. Returns a row of the table."""
    title = f"{layer.model} gradients"
    x, sizes = random_rows(layer)
    operands = (x, weights, sizes, random_target(layer))
    programs, error = {}, 0.0
    for name in (RAGGED_DOT, RAGGEMM, FUSED):
        print(f"{title}: {name}", file=sys.stderr, flush=True)
        loss = make_loss(blocks(layer.padded_size)[name])
        programs[name] = Program(jax.value_and_grad(loss, argnums=(0, 1)), *operands)
        # Gradients have twice the tolerance, because they are rounded to bfloat16 more often than y.
        want = programs[RAGGED_DOT].output
        error = max(error, checks.add(title, results_errors(name, programs[name].output, want, 0.5)))
    return {"phase": "grad", "error": error, **_figures(layer, programs, effort)}


def _figures(layer: Layer, programs: Mapping[str, Program], effort: Effort) -> dict[str, Any]:
    ms = median_ms(programs, effort)
    loop = min((ms[name] for name in LOOPS if name in ms), default=None)
    return {
        "model": layer.model,
        "rows": layer.rows,
        "experts": f"{layer.active} of {layer.experts}",
        "raggemm": ms[RAGGEMM],
        "other": ms.get(FUSED, ms.get(BFLOAT16)),
        "ragged_dot": ms[RAGGED_DOT],
        "loop": loop,
        "raggemm_temp": programs[RAGGEMM].temp_bytes / 2**20,
        "ragged_dot_temp": programs[RAGGED_DOT].temp_bytes / 2**20,
    }


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value:.{0 if value >= 100 else 1}f}"


# The columns of the table: two lines of heading, width, and the cell of a row.
_COLUMNS: tuple[tuple[str, str, int, Callable[[dict[str, Any]], str]], ...] = (
    ("", "model", 13, lambda row: row["model"]),
    ("", "phase", 7, lambda row: row["phase"]),
    ("", "rows", 5, lambda row: str(row["rows"])),
    ("active", "experts", 9, lambda row: row["experts"]),
    ("raggemm", "ms", 7, lambda row: _ms(row["raggemm"])),
    ("{other}", "ms", 8, lambda row: _ms(row["other"])),
    ("ragged_dot", "ms", 10, lambda row: _ms(row["ragged_dot"])),
    ("loop", "ms", 6, lambda row: _ms(row["loop"])),
    ("ragged_dot", "/ raggemm", 10, lambda row: f"{row['ragged_dot'] / row['raggemm']:.1f}"),
    ("loop", "/ raggemm", 9, lambda row: "-" if row["loop"] is None else f"{row['loop'] / row['raggemm']:.1f}"),
    ("raggemm", "temp MiB", 8, lambda row: f"{row['raggemm_temp']:.1f}"),
    ("ragged_dot", "temp MiB", 10, lambda row: f"{row['ragged_dot_temp']:.0f}"),
    ("largest", "error", 7, lambda row: f"{row['error']:.2g}"),
)


def heading(other: str) -> str:
    lines = ((first.format(other=other), second) for first, second, *_ in _COLUMNS)
    return "\n".join(
        "  ".join(text.rjust(column[2]) for text, column in zip(line, _COLUMNS, strict=True))
        for line in zip(*lines, strict=True)
    )


def format_row(row: dict[str, Any]) -> str:
    return "  ".join(cell(row).rjust(width) for _, _, width, cell in _COLUMNS)


@jax.jit
def _bfloat16(tensor: QuantizedTensor) -> jax.Array:
    return dequantize(tensor, jnp.bfloat16)


def run_model(layers: Sequence[Layer], format: str | None, effort: Effort, checks: Checks) -> Iterable[dict[str, Any]]:
    """Yields the table's rows for the layers of a model. The layers share their weights. If effort is LONG, also prints
    raggemm's times on all recorded rows of reduced layers.
    """
    weights, plain = random_weights(layers[0]), None
    if format is not None:
        quantize = jax.jit(FORMATS[format].quantized)
        weights = Weights(*(quantize(w) for w in weights))
        plain = Weights(*map(_bfloat16, weights))
    for layer in layers:
        fewer = layer if layer.phase == "decode" else layer.with_rows(PREFILL_ROWS)
        yield run_block(fewer, weights, plain, effort, checks)
        if (layer.model, layer.phase, plain) == (GRADIENT_MODEL, "prefill", None):
            yield run_gradients(layer.with_rows(GRADIENT_ROWS), weights, effort, checks)
        if effort == LONG and fewer.rows < layer.rows:
            x, sizes = random_rows(layer)
            names = (RAGGEMM,) if plain is not None else (RAGGEMM, FUSED)
            programs = {name: Program(blocks(layer.padded_size)[name], x, weights, sizes) for name in names}
            for name, ms in median_ms(programs, effort).items():
                print(f"{layer.model} {layer.phase}: {name} takes {_ms(ms)} ms on all {layer.rows} rows", flush=True)


def main(argv: Sequence[str] | None = None) -> int:
    summary, _, *details = __doc__.split("\n\n")
    parser = argparse.ArgumentParser(prog="./dev demo", description=summary, epilog="\n\n".join(details))
    parser.add_argument("--weights", choices=FORMATS, help="use quantized weights instead of bfloat16")
    parser.add_argument(
        "--long", action="store_true", help="measure longer, one more model, and raggemm on all recorded rows"
    )
    options = parser.parse_args(argv)
    checks = Checks()
    print(heading("bfloat16" if options.weights else "one call"), flush=True)
    for model, layers in itertools.groupby(recorded(), key=lambda layer: layer.model):
        if model == LONG_MODEL and not options.long:
            continue
        for row in run_model(list(layers), options.weights, LONG if options.long else SHORT, checks):
            print(format_row(row), flush=True)
    print("", *checks.failures, sep="\n")
    print("raggemm demo: FAILED" if checks.failures else f"raggemm demo: OK ({checks.count} checks)")
    return 1 if checks.failures else 0


if __name__ == "__main__":
    sys.exit(main())
