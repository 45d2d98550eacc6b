"""What bounds the cells below their targets, as far as a run shows it: by arithmetic on its own figures."""

import statistics

from regimes import Cell, bound, case_name, geometric_mean, geometric_mean_over, memory_bound
from tables import figure, markdown_table

FAR_BEHIND = 0.90

LEGEND = """\
Of our time, `sums` is what the multiply-adds alone take at the fma rate (ports), `memory` what goes away when the
weights come from the last cache (not of wgrad), and `rest` what neither explains: kernels that begin and end, packing,
widening, the latency of caches, stores. `Threads` is our rate over that of one thread times their number: imbalance,
and memory that they share. `Over dense` is over one dense product of the same flops, where sums are the bound: what
small groups cost; `over equal` over groups of equal size: what the imbalance of the routing does. `Most` is how far
ahead of the best peer a contender at the roofline would be: nobody can meet a target above it."""


def parts_of_time(case: dict) -> dict[str, float | None]:
    """Shares of our time: sums, memory, rest. Memory is None, and in the rest, where it was not measured."""
    sums = case["ours_gflops"] / case["limits"]["fma_gflops"]
    cached = bound(case, "ours, weights in cache")
    memory = None if cached is None else max(0.0, 1 - case["ours_gflops"] / cached)
    return {"sums": sums, "memory": memory, "rest": max(0.0, 1 - sums - (memory or 0))}


def _scaled_alone(case: dict) -> float | None:
    alone = bound(case, "ours, one thread")
    return None if alone is None else case["threads"] * alone


def _percent(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.0f} %"


def _mean_of_parts(cases: list[dict]) -> list[str]:
    parts = [parts_of_time(case) for case in cases]
    fields = []
    for name in ("sums", "memory", "rest"):
        known = [part[name] for part in parts if part[name] is not None]
        fields.append(_percent(statistics.mean(known) if known else None))
    return fields


def _most(cases: list[dict]) -> float | None:
    rates = [case["roofline_gflops"] / case["best_peer_gflops"] for case in cases if "best_peer_gflops" in case]
    return geometric_mean(rates) if rates else None


PARTS = ["sums", "memory", "rest", "threads"]


def missed(found: list[Cell]) -> str:
    """The cells below their targets."""
    rows = []
    for cell in found:
        misses = cell.misses()
        if not misses:
            continue
        worst = min(cell.cases, key=lambda case: case.get("ratio", case["roofline_share"]))
        summing = [case for case in cell.cases if not memory_bound(case)]
        rows.append(
            [
                str(cell),
                " and ".join(misses),
                f"{worst['case']} ({figure(worst.get('ratio'))}, {worst['roofline_share']:.2f})",
                f"{len(cell.cases) - len(summing)} of {len(cell.cases)}",
                *_mean_of_parts(cell.cases),
                figure(geometric_mean_over(cell.cases, _scaled_alone)),
                figure(geometric_mean_over(summing, lambda case: bound(case, "ours, one dense product"))),
                figure(geometric_mean_over(cell.cases, lambda case: bound(case, "ours, equal groups"))),
                figure(_most(cell.cases)),
            ]
        )
    if not rows:
        return "Every cell with a target meets it."
    header = ["cell", "below", "worst case (ratio, share)", "memory-bound", *PARTS, "over dense", "over equal", "most"]
    return f"{markdown_table(header, rows)}\n\n{LEGEND}"


def behind(cases: list[dict]) -> str:
    """The cases far behind their best peer, and why."""
    rows = []
    for case in cases:
        if case.get("ratio", 1) >= FAR_BEHIND:
            continue
        rows.append(
            [
                case_name(case),
                f"{case['ratio']:.2f}",
                case["best_peer"],
                f"{case['roofline_share']:.2f}",
                *_mean_of_parts([case]),
                figure(geometric_mean_over([case], _scaled_alone)),
                _reason(case),
            ]
        )
    if not rows:
        return f"No case is below {FAR_BEHIND:.2f} of its best peer."
    return markdown_table(["case", "ratio", "best peer", "share", *PARTS, "bounded by"], rows)


def _reason(case: dict) -> str:
    """In words: memory's rate where that is the roofline, else the parts of the time, the largest first."""
    if memory_bound(case):
        rate = case["bytes"] * case["ours_gflops"] / case["flops"]
        return f"memory: {rate:.1f} GB/s, reading alone reaches {case['limits']['read_gbps']:.1f}"
    words = {"sums": "ports", "memory": "memory", "rest": "kernel calls, packing, latency"}
    parts = {words[name]: share for name, share in parts_of_time(case).items() if share is not None}
    return "; ".join(sorted(parts, key=lambda name: -parts[name]))
