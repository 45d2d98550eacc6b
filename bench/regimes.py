"""Which regime a measured case belongs to, figures over the cases of one, and whether the machine was busy.

Cases are those of report.json (bench/report.proto has the fields), as dicts.
"""

import dataclasses
import math
import statistics

F32_FMA = "f32 fma"
UNITS_OF_BYTES = ("VPDPBUSD", "TDPBSSD")
ROW_REGIMES = [(2, "1 to 2 rows"), (16, "4 to 16 rows"), (64, "32 to 64 rows"), (math.inf, "128 rows and more")]


def geometric_mean(values: list[float]) -> float:
    return math.exp(sum(map(math.log, values)) / len(values))


def rows_per_group(case: dict) -> float:
    return case["rows"] / case["groups"]


def regime(case: dict) -> str:
    modes = {"forward": "forward", "forward_transposed": "transposed", "wgrad": "wgrad"}
    mode = "quantized" if "quantization" in case else modes[case["mode"]]
    if case["regime"] == "recorded":
        return f"{mode}, recorded"
    rows = rows_per_group(case)
    if mode == "wgrad":
        return "wgrad, 16 rows and more" if rows >= 16 else "wgrad, below 16 rows"
    return f"{mode}, " + next(name for most, name in ROW_REGIMES if rows <= most)


def types(case: dict) -> str:
    return f"{case.get('quantization', case['lhs_dtype'])} → {case['out_dtype']}"


def unit(case: dict) -> str:
    """Reports that name none are from the time when it was this for all types."""
    return case.get("unit", F32_FMA)


def rate_of(unit_name: str, limits: dict) -> float | None:
    """GFLOP/s of a unit in the limits of a case or of the machine, None where it was not measured."""
    rates = {F32_FMA: limits["fma_gflops"], **{of["name"]: of["gflops"] for of in limits.get("units", [])}}
    return rates.get(unit_name)


def case_name(case: dict) -> str:
    return f"{case['case']} {types(case)}, {case['mode']}, {case['threads']}t"


@dataclasses.dataclass
class Cell:
    """All cases of one regime, one pair of types and one number of threads."""

    regime: str
    types: str
    threads: int
    cases: list[dict]

    def __str__(self) -> str:
        return f"{self.regime}, {self.types}, {self.threads} threads"

    @property
    def unit(self) -> str:
        """Whose sums limit the cases: mostly one, for others are slower by far."""
        return ", ".join(dict.fromkeys(map(unit, self.cases)))

    def ratios(self) -> list[float]:
        return [case["ratio"] for case in self.cases if "ratio" in case]

    def shares(self) -> list[float]:
        return [case["roofline_share"] for case in self.cases]


def cells(report: dict) -> list[Cell]:
    """In the order in which their first cases were measured."""
    by_key: dict[tuple[str, str, int], list[dict]] = {}
    for case in report.get("cases", []):
        by_key.setdefault((regime(case), types(case), case["threads"]), []).append(case)
    return [Cell(*key, found) for key, found in by_key.items()]


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


# Where something else ran on the machine while it was measured, figures say little of the library.
LEAST_OF_PROBE = 0.4  # of the fma rate: two threads of one core have half of it each
MOST_SPREAD = 0.3  # where nothing disturbs, limits differ by some percent from case to case, and so do rounds


def _spread(values: list[float]) -> float:
    """The distance of the quartiles over the median."""
    if len(values) < 2:
        return 0.0
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return (high - low) / middle


def signs_of_a_busy_machine(report: dict) -> list[str]:
    """What speaks for it in a report, one sentence each."""
    machine, cases, signs = report["machine"], report["cases"], []
    for limits in machine.get("limits", []):
        threads, fma, probed = limits["threads"], limits["overall_fma_gflops"], machine.get("probed_gflops")
        if probed and fma < LEAST_OF_PROBE * probed * threads:
            signs.append(
                f"{threads} threads reached {fma:.1f} GFLOP/s of f32 fma, {100 * fma / probed / threads:.0f} % of what "
                f"one reached in the best of some short turns ({probed:.1f}) times {threads}."
            )
        for key, name in (("overall_fma_gflops", "f32 fma"), ("read_gbps", "memory read")):
            spread = _spread([case["limits"][key] for case in cases if case["threads"] == threads])
            if spread > MOST_SPREAD:
                signs.append(
                    f"The rate of {name} on {threads} threads has a spread of {100 * spread:.0f} % over the cases."
                )
    spread = statistics.median(case["ours"]["spread"] for case in cases)
    if spread > MOST_SPREAD:
        signs.append(f"In half of the cases our figure has a spread of {100 * spread:.0f} % or more over the rounds.")
    return signs


def warning(report: dict) -> str:
    """A paragraph for the top of the report; empty where nothing speaks for a busy machine."""
    signs = signs_of_a_busy_machine(report)
    if not signs:
        return ""
    return f"**WARNING: the machine was busy with something else; do not trust these figures.** {' '.join(signs)}"
