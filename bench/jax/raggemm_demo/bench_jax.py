"""The experts of three mixture-of-experts models at JAX level: raggemm against everything JAX users have on CPU.

    ./dev bench --jax [--full] [--layer | --calls] [--json=FILE]

The whole expert block on recorded routing, forward and with the gradients of a loss for x and all weights: raggemm,
product by product and in one call, jax.lax.ragged_dot, the padded loops, the padded einsum, and as a bound the unrolled
loop, which must be compiled for each routing. Results are compared before times are taken, which are medians of up to
nine runs, as many as take two seconds. By default one model, in under three minutes on two cores; takes 9 GiB of memory
there, up to two thirds of what there is. With --layer the whole MLP of some tokens: sorting, gather, products and the
weighted sum of each token's rows, on 1 to 512 tokens of recorded routing, also on MaxText's dense path. With --calls
where the time of one token's MLP goes, and percentiles of 1,000 calls.
"""

import argparse
import dataclasses
import json
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax

from raggemm_demo import bench_calls, bench_layer, contenders, contest
from raggemm_demo.checks import Checks, aligned, output_file, run
from raggemm_demo.contenders import unrolled_block
from raggemm_demo.contest import BACKWARD, FORWARD, LIMITS
from raggemm_demo.layers import Block, Layer, Weights, loss_of, random_rows, random_target, recorded_layers
from raggemm_demo.programs import Programs, affordable_layer
from raggemm_demo.progress import say

DEFAULT_MODEL = "qwen3-30b-a3b"
UNROLLED = "unrolled loop"
ALTERNATIVES = (*contenders.LOOPS, contenders.EINSUM)


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


def checked_programs(case: Case, weights: Weights, names: Iterable[str], checks: Checks) -> tuple[Programs, Any]:
    block = contenders.blocks(case.layer.padded_size) | {UNROLLED: unrolled_block(case.layer.sizes)}
    return contest.checked_programs(case.title, {name: _call(block[name], case, weights) for name in names}, checks)


def measured(case: Case, programs: Programs, over: Any) -> dict[str, Any]:
    """One row of the report; ratios are times over raggemm's, None without a contender."""
    of_names = contest.measured(programs, over)
    ratio = {name: of["ratio"] for name, of in of_names.items()}
    return {
        "model": case.layer.model,
        "phase": case.layer.phase,
        "direction": case.direction,
        "rows": case.layer.rows,
        "recorded_rows": case.recorded.rows,
        "active": case.layer.active,
        "experts": case.layer.experts,
        "contenders": {name: of | {"compiled_for_each_routing": name == UNROLLED} for name, of in of_names.items()},
        "ratio_fused": ratio[contenders.FUSED],
        "ratio_ragged_dot": ratio.get(contenders.RAGGED_DOT),
        "ratio_unrolled": ratio.get(UNROLLED),
        "ratio_best_alternative": min((ratio[name] for name in ALTERNATIVES if name in ratio), default=None),
    }


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
    say(contest.table(row["contenders"], "/ raggemm", {UNROLLED: "for each routing"}))
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
        prog="./dev bench --jax", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--full", action="store_true", help=f"all models, not only {DEFAULT_MODEL}")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--layer", action="store_true", help="the whole MLP of 1 to 512 tokens, not the block on rows")
    form.add_argument("--calls", action="store_true", help="parts of the MLP of one token, with percentiles")
    parser.add_argument("--json", metavar="FILE", type=output_file, help="write the report there, as a list of rows")
    options = parser.parse_args(argv)
    checks = Checks()
    of_layer, of_all = run_layer, summary
    if options.layer or options.calls:
        module = bench_layer if options.layer else bench_calls
        of_layer, of_all = module.run_layer, module.summary
    rows = run((x for x in recorded_layers() if options.full or x.model == DEFAULT_MODEL), of_layer, checks)
    say(f"\n{of_all(rows)}\n")
    if options.json:
        options.json.write_text(json.dumps(rows, indent=2) + "\n")
    return checks.finish("raggemm bench_jax", "comparisons")


if __name__ == "__main__":
    sys.exit(main())
