"""Two pictures of a report: the roofline, and the share of it against rows per group. PNG, for a page 850 px wide."""

import pathlib

import matplotlib.pyplot as plt
from regimes import F32_FMA, rate_of, rows_per_group, types, unit

plt.switch_backend("Agg")  # without a display
# 11 points in 8.5 inches are 15 px in a page's 850; with half as many pixels again for screens that have them.
plt.rcParams.update(
    {"font.size": 11, "axes.titlesize": 11, "legend.fontsize": 11, "figure.labelsize": 11, "savefig.dpi": 150}
)

OURS, PEER, LIMIT = "tab:blue", "tab:orange", "black"
WIDTH, PANEL_HEIGHT = 8.5, 2.7  # inches


def _panels(rows: int, columns: int, height: float = PANEL_HEIGHT):
    return plt.subplots(
        rows, columns, figsize=(WIDTH, height * rows), sharex=True, sharey=True, squeeze=False, layout="constrained"
    )


def _save(figure, folder: pathlib.Path, name: str) -> str:
    """The name of the file."""
    figure.savefig(folder / f"{name}.png")
    plt.close(figure)
    return f"{name}.png"


def _most_threads(cases: list[dict]) -> list[dict]:
    threads = max(case["threads"] for case in cases)
    return [case for case in cases if case["threads"] == threads]


def roofline(report: dict, folder: pathlib.Path, name: str) -> str:
    """GFLOP/s against flops per byte, one panel for each pair of types; the roof is drawn for reads alone."""
    cases = _most_threads(report["cases"])
    limits = next(found for found in report["machine"]["limits"] if found["threads"] == cases[0]["threads"])
    pairs = sorted({types(case) for case in cases}, key=lambda pair: ("f32" not in pair[:3], pair))
    figure, axes = _panels(-(-len(pairs) // 2), min(len(pairs), 2), 1.4 * PANEL_HEIGHT)
    for axis, pair in zip(axes.flat, pairs, strict=False):
        own = [case for case in cases if types(case) == pair]
        intensity = [case["flops"] / case["bytes"] for case in own]
        reach = [min(intensity) / 1.5, max(intensity) * 1.5]
        sums, fastest = max((rate_of(name, limits) or 0, name) for name in map(unit, own))
        roof = sorted({*reach, sums / limits["read_gbps"]})
        rates = [min(sums, x * limits["read_gbps"]) for x in roof]
        axis.loglog(roof, rates, color=LIMIT, linewidth=1, label="roofline")
        axis.plot(intensity, [case["ours_gflops"] for case in own], ".", color=OURS, label="raggemm")
        with_peer = [(x, case["best_peer_gflops"]) for x, case in zip(intensity, own, strict=True) if "ratio" in case]
        if with_peer:
            axis.plot(*zip(*with_peer, strict=True), "x", color=PEER, label="best peer")
        axis.set_title(f"{pair}, {fastest}, {cases[0]['threads']} threads")
        axis.grid(alpha=0.3)
    for axis in axes.flat[len(pairs) :]:
        axis.remove()
    figure.supxlabel("flops per byte read or written")
    figure.supylabel("GFLOP/s")
    axes[0][0].legend()
    return _save(figure, folder, name)


def share_by_rows(report: dict, folder: pathlib.Path, name: str) -> str | None:
    """Share of the roofline against rows per group, forward: a row of panels for each shape, K x N. None without a
    sweep."""
    cases = [case for case in report["cases"] if case["regime"] == "sweep" and case["mode"] == "forward"]
    cases = [case for case in cases if case["out_dtype"] == "f32" and case["lhs_dtype"] in ("f32", "bf16")]
    if not cases:
        return None
    cases = _most_threads(cases)
    shapes = sorted({(case["k"], case["n"]) for case in cases})
    dtypes = sorted({case["lhs_dtype"] for case in cases}, reverse=True)
    figure, axes = _panels(len(shapes), len(dtypes))
    for axis, (k, n, dtype) in zip(axes.flat, [(*shape, d) for shape in shapes for d in dtypes], strict=True):
        own = [case for case in cases if (case["k"], case["n"], case["lhs_dtype"]) == (k, n, dtype)]
        for label, style, color, rate in (
            ("raggemm", "o-", OURS, "ours_gflops"),
            ("best peer", "x-", PEER, "best_peer_gflops"),
        ):
            points = [(rows_per_group(c), c[rate] / c["roofline_gflops"]) for c in own if rate in c]
            if points:
                axis.plot(*zip(*points, strict=True), style, color=color, markersize=5, label=label)
        rows = sorted({rows_per_group(case) for case in own})
        axis.axhline(1, color=LIMIT, linewidth=1, label="roofline")
        axis.set_xscale("log", base=2)
        axis.set_xticks(rows, [f"{value:g}" for value in rows], minor=False)
        axis.set_ylim(0, 1.1)
        units = "".join(f" on {name}" for name in dict.fromkeys(map(unit, own)) if name != F32_FMA)
        axis.set_title(f"{dtype}{units}, {k}x{n}, {cases[0]['threads']} threads")
        axis.grid(alpha=0.3)
    figure.supxlabel("rows per group")
    figure.supylabel("share of the roofline")
    axes[0][0].legend()
    return _save(figure, folder, name)
