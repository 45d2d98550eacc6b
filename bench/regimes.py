"""Which regime a measured case belongs to, what is aimed at there, and what was reached. Pure arithmetic.

Cases are those of report.json (bench/report.proto has the fields), as dicts.
"""

import dataclasses
import math

ROW_REGIMES = [(2, "1 to 2 rows"), (16, "4 to 16 rows"), (64, "32 to 64 rows"), (math.inf, "128 rows and more")]

# (least ratio to the best peer, least share of the roofline), for two threads and f32 output.
TARGETS = {
    "f32": {
        "forward, 1 to 2 rows": (0.95, 0.90),
        "forward, 4 to 16 rows": (1.15, 0.70),
        "forward, 32 to 64 rows": (1.05, 0.75),
        "forward, 128 rows and more": (1.00, 0.82),
        "forward, recorded": (1.10, 0.72),
        "wgrad, 16 rows and more": (1.05, 0.68),
    },
    "bf16": {
        "forward, 1 to 2 rows": (1.5, 0.80),
        "forward, 4 to 16 rows": (1.6, 0.65),
        "forward, 32 to 64 rows": (1.4, 0.75),
        "forward, 128 rows and more": (1.2, 0.84),
        "forward, recorded": (1.5, 0.72),
        "wgrad, 16 rows and more": (1.3, 0.68),
    },
}
TRANSPOSED_LESS = 0.05
# With AVX-512 the peers have 16-bit products of their own, which two threads read as fast as anybody can.
BF16_RATIO_AVX512 = {"decode": 1.15, "elsewhere": 1.6}


def geometric_mean(values: list[float]) -> float:
    return math.exp(sum(map(math.log, values)) / len(values))


def geometric_mean_over(cases: list[dict], rate_of) -> float | None:
    """Of ours over another rate, over the cases that have it."""
    ratios = [case["ours_gflops"] / rate for case in cases if (rate := rate_of(case))]
    return geometric_mean(ratios) if ratios else None


def rows_per_group(case: dict) -> float:
    return case["rows"] / case["groups"]


def regime(case: dict) -> str:
    mode = {"forward": "forward", "forward_transposed": "transposed", "wgrad": "wgrad"}[case["mode"]]
    if case["regime"] == "recorded":
        return f"{mode}, recorded"
    rows = rows_per_group(case)
    if mode == "wgrad":
        return "wgrad, 16 rows and more" if rows >= 16 else "wgrad, below 16 rows"
    return f"{mode}, " + next(name for most, name in ROW_REGIMES if rows <= most)


def types(case: dict) -> str:
    return f"{case['lhs_dtype']} → {case['out_dtype']}"


def case_name(case: dict) -> str:
    return f"{case['case']} {types(case)}, {case['mode']}, {case['threads']}t"


def target(regime_name: str, types_name: str, threads: int, isa: str) -> tuple[float, float] | None:
    """(ratio, share), or None where nothing was promised."""
    dtype, _, out = types_name.partition(" → ")
    mode, _, rest = regime_name.partition(", ")
    found = TARGETS.get(dtype, {}).get(f"forward, {rest}" if mode == "transposed" else regime_name)
    if found is None or out != "f32" or threads != 2:
        return None
    ratio, share = found
    if dtype == "bf16" and isa == "avx512":
        ratio = BF16_RATIO_AVX512["decode" if rest == ROW_REGIMES[0][1] else "elsewhere"]
    less = TRANSPOSED_LESS if mode == "transposed" else 0
    return round(ratio - less, 2), round(share - less, 2)


@dataclasses.dataclass
class Cell:
    """All cases of one regime, one pair of types and one number of threads."""

    regime: str
    types: str
    threads: int
    cases: list[dict]
    target: tuple[float, float] | None

    def __str__(self) -> str:
        return f"{self.regime}, {self.types}, {self.threads} threads"

    def ratios(self) -> list[float]:
        return [case["ratio"] for case in self.cases if "ratio" in case]

    def shares(self) -> list[float]:
        return [case["roofline_share"] for case in self.cases]

    def misses(self) -> list[str]:
        """Which of the two figures is below its target."""
        if self.target is None:
            return []
        ratios = self.ratios()
        missed = []
        if ratios and geometric_mean(ratios) < self.target[0]:
            missed.append("ratio")
        if geometric_mean(self.shares()) < self.target[1]:
            missed.append("share")
        return missed


def cells(report: dict) -> list[Cell]:
    """In the order in which their first cases were measured."""
    by_key: dict[tuple[str, str, int], list[dict]] = {}
    for case in report.get("cases", []):
        by_key.setdefault((regime(case), types(case), case["threads"]), []).append(case)
    isa = report["machine"]["isa"]
    return [Cell(*key, found, target(*key, isa)) for key, found in by_key.items()]


def memory_bound(case: dict) -> bool:
    """Whether the roofline of the case is memory's side of it."""
    return case["roofline_gflops"] < 0.999 * case["limits"]["fma_gflops"]


def bound(case: dict, name: str) -> float | None:
    """GFLOP/s of one of our upper bounds, None where it was not run."""
    return next((b["gflops"] for b in case.get("bounds", []) if b["name"] == name and "gflops" in b), None)


def best_ways(case: dict) -> dict[str, dict]:
    """The better way of each peer: name to contender. One that failed has no gflops."""
    best: dict[str, dict] = {}
    for peer in case.get("peers", []):
        if peer["name"] not in best or peer.get("gflops", 0) > best[peer["name"]].get("gflops", 0):
            best[peer["name"]] = peer
    return best
