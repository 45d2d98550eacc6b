"""Whether something else ran on the machine while it was measured: then figures say little of the library."""

import statistics

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
        threads, fma, probed = limits["threads"], limits["fma_gflops"], machine.get("probed_gflops")
        if probed and fma < LEAST_OF_PROBE * probed * threads:
            signs.append(
                f"{threads} threads reached {fma:.1f} GFLOP/s of f32 fma, {100 * fma / probed / threads:.0f} % of what "
                f"one reached in the best of some short turns ({probed:.1f}) times {threads}."
            )
        for key, name in (("fma_gflops", "f32 fma"), ("read_gbps", "memory read")):
            spread = _spread([case["limits"][key] for case in cases if case["threads"] == threads])
            if spread > MOST_SPREAD:
                signs.append(
                    f"The limit {name} of {threads} threads has a spread of {100 * spread:.0f} % over the cases."
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
