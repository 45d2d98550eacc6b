"""The experts of three mixture-of-experts models at JAX level: raggemm against everything JAX users have on CPU.

    python -m raggemm.bench_jax [--full] [--json=FILE]

The whole expert block on recorded routing, forward and with the gradients of a loss for x and all weights: raggemm,
product by product and in one call, jax.lax.ragged_dot, the padded loops, the padded einsum, and as a bound the unrolled
loop, which must be compiled for each routing. Results are compared before times are taken, which are medians of up to
nine runs, as many as take two seconds. By default one model, in under three minutes on two cores; takes 9 GiB of memory
there, up to two thirds of what there is.
"""

import argparse
import dataclasses
import json
import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax

from raggemm.demo import contenders
from raggemm.demo.checks import Checks, aligned, disagreement, output_file, run, say
from raggemm.demo.contenders import unrolled_block
from raggemm.demo.layers import Block, Layer, Weights, loss_of, random_rows, random_target, recorded_layers
from raggemm.demo.programs import Limits, Programs, WarmProgram, affordable_layer, median_ms

DEFAULT_MODEL = "qwen3-30b-a3b"
UNROLLED = "unrolled loop"
ALTERNATIVES = (*contenders.LOOPS, contenders.EINSUM)
FORWARD, BACKWARD = "forward", "forward+backward"
# Weights and the gradients of two contenders need another part of the memory.
LIMITS = Limits(seconds=10.0, temp_bytes=os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2)


@dataclasses.dataclass(frozen=True)
class Case:
    """What to run on how many rows; `recorded` has the rows that were recorded."""

    layer: Layer
    recorded: Layer
    direction: str  # FORWARD or BACKWARD

    @property
    def title(self) -> str:
        rows = f"{self.layer.rows} of {self.recorded.rows} rows"
        experts = f"{self.layer.active} of {self.layer.experts} experts active"
        return f"{self.layer.model} {self.layer.phase}, {self.direction}, {rows}, {experts}"

    def with_layer(self, layer: Layer) -> "Case":
        return dataclasses.replace(self, layer=layer)


def _call(block: Block, case: Case, weights: Weights) -> tuple[Any, ...]:
    """What to run: (function, *its arguments)."""
    x, sizes = random_rows(case.layer)
    if case.direction == FORWARD:
        return block, x, weights, sizes
    return jax.value_and_grad(loss_of(block), argnums=(0, 1)), x, weights, sizes, random_target(case.layer)


def _errors(case: Case, got: Any, reference: Any) -> Iterable[tuple[str, float]]:
    """The distances of two blocks' results, in units of what right ones may differ by."""
    if case.direction == FORWARD:
        yield "y", disagreement(got, reference)
        return
    # Half of it, for gradients pass more roundings to bfloat16 than y. Gradients of weights are compared expert by
    # expert: a row of one with few tokens may be anything, down to the rounding errors of a zero.
    (loss, (dx, dweights)), (want_loss, (want_dx, want_dweights)) = got, reference
    yield "loss", disagreement(loss, want_loss)
    yield "gradient of x", 0.5 * disagreement(dx, want_dx)
    for name, d, want in zip(Weights._fields, dweights, want_dweights, strict=True):
        yield f"gradient of the {name} weights", 0.5 * disagreement(d, want)


def checked_programs(case: Case, weights: Weights, names: Iterable[str], checks: Checks) -> tuple[Programs, Any]:
    """The named contenders, each compared with the first, and results to write over. They have gigabytes, so that the
    contenders keep none."""
    block = contenders.blocks(case.layer.padded_size) | {UNROLLED: unrolled_block(case.layer.sizes)}
    programs: Programs = {}
    reference = results = None
    for name in names:
        programs[name] = program = WarmProgram(*_call(block[name], case, weights), over=results)
        results, program.output = program.output, None
        if reference is None:
            reference, results = results, None
        else:
            checks.add(f"{case.title}, {name}", _errors(case, results, reference))
    return programs, results


def measured(case: Case, programs: Programs, over: Any) -> dict[str, Any]:
    """One row of the report, of programs that write over the same results; ratios are times over raggemm's, None
    without a contender."""
    ms = median_ms(programs, over)
    ratio = {name: ms[name] / ms[contenders.RAGGEMM] for name in programs}
    return {
        "model": case.layer.model,
        "phase": case.layer.phase,
        "direction": case.direction,
        "rows": case.layer.rows,
        "recorded_rows": case.recorded.rows,
        "active": case.layer.active,
        "experts": case.layer.experts,
        "contenders": {
            name: {
                "ms": ms[name],
                "ratio": ratio[name],
                "temp_bytes": program.temp_bytes,
                "compile_seconds": program.compile_seconds,
                "compiled_for_each_routing": name == UNROLLED,
            }
            for name, program in programs.items()
        },
        "ratio_fused": ratio[contenders.FUSED],
        "ratio_ragged_dot": ratio.get(contenders.RAGGED_DOT),
        "ratio_unrolled": ratio.get(UNROLLED),
        "ratio_best_alternative": min((ratio[name] for name in ALTERNATIVES if name in ratio), default=None),
    }


def table(row: dict[str, Any]) -> str:
    lines = [f"{'':22}  {'ms':>8}  {'/ raggemm':>9}  {'temp MiB':>8}  {'compile s':>9}"]
    for name, of in row["contenders"].items():
        note = "  for each routing" if of["compiled_for_each_routing"] else ""
        ms, temp = f"{of['ms']:.{0 if of['ms'] >= 100 else 1}f}", f"{of['temp_bytes'] / 2**20:.1f}"
        lines.append(f"{name:22}  {ms:>8}  {of['ratio']:9.2f}  {temp:>8}  {of['compile_seconds']:9.2f}{note}")
    return "\n".join(lines)


def affordable_case(recorded: Layer, direction: str, weights: Weights) -> Case:
    """The case on the rows that all contenders can afford."""
    case = Case(recorded, recorded, direction)

    def ragged_dot(layer: Layer, weights: Weights) -> tuple[Any, ...]:
        return _call(contenders.blocks(layer.padded_size)[contenders.RAGGED_DOT], case.with_layer(layer), weights)

    return case.with_layer(affordable_layer(recorded, weights, ragged_dot, LIMITS))


def report(case: Case, names: Iterable[str], weights: Weights, checks: Checks) -> dict[str, Any]:
    """A row of the report, which is also printed."""
    say(f"\n{case.title}")
    row = measured(case, *checked_programs(case, weights, names, checks))
    say(table(row))
    return row


def run_layer(recorded: Layer, weights: Weights, checks: Checks) -> list[dict[str, Any]]:
    """For each direction a row of the report for all contenders, on the rows that the last direction, which needs more,
    can afford. Where those are fewer token rows than recorded, also one on all, for raggemm, the faster loop (the
    others' padding is not confined to the active experts) and the bound.
    """
    directions = (FORWARD, BACKWARD) if recorded.phase == "prefill" else (FORWARD,)
    affordable = affordable_case(recorded, directions[-1], weights)
    rows: list[dict[str, Any]] = []
    for direction in directions:
        case = dataclasses.replace(affordable, direction=direction)
        if case.layer.rows == recorded.rows:
            rows.append(report(case, (*contenders.CONTENDERS, UNROLLED), weights, checks))
            continue
        rows.append(report(case, contenders.CONTENDERS, weights, checks))
        faster_loop = min(
            contenders.LOOPS, key=lambda name: rows[0]["contenders"][name]["ms"]
        )  # they differ forward only
        names = (contenders.RAGGEMM, contenders.FUSED, faster_loop, UNROLLED)
        rows.append(report(case.with_layer(recorded), names, weights, checks))
    return rows


def _ratio(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio:.1f}"


_COLUMNS: tuple[tuple[str, Callable[[dict[str, Any]], str]], ...] = (
    ("model", lambda row: row["model"]),
    ("phase", lambda row: row["phase"]),
    ("direction", lambda row: row["direction"]),
    ("rows", lambda row: f"{row['rows']} of {row['recorded_rows']}"),
    ("raggemm ms", lambda row: f"{row['contenders'][contenders.RAGGEMM]['ms']:.1f}"),
    ("fused / raggemm", lambda row: f"{row['ratio_fused']:.2f}"),
    ("ragged_dot / raggemm", lambda row: _ratio(row["ratio_ragged_dot"])),
    ("best alternative / raggemm", lambda row: _ratio(row["ratio_best_alternative"])),
    ("unrolled / raggemm", lambda row: _ratio(row["ratio_unrolled"])),
)


def summary(rows: Sequence[dict[str, Any]]) -> str:
    lines = aligned(_COLUMNS, rows)
    if any(row["rows"] < row["recorded_rows"] for row in rows):
        lines.append(f"fewer rows than recorded: with all of them lax.ragged_dot would need over {LIMITS}")
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m raggemm.bench_jax", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--full", action="store_true", help=f"all models, not only {DEFAULT_MODEL}")
    parser.add_argument("--json", metavar="FILE", type=output_file, help="write the report there, as a list of rows")
    options = parser.parse_args(argv)
    checks = Checks()
    rows = run((x for x in recorded_layers() if options.full or x.model == DEFAULT_MODEL), run_layer, checks)
    say(f"\n{summary(rows)}\n")
    if options.json:
        options.json.write_text(json.dumps(rows, indent=2) + "\n")
    return checks.finish("raggemm bench_jax", "comparisons")
