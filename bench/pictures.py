"""Two pictures of a report: the roofline, and time against rows per group. PNG and SVG, small enough to keep."""

import pathlib

import matplotlib.pyplot as plt
from regimes import rows_per_group, types

plt.switch_backend("Agg")  # without a display
# Text as text, and the same report the same file: small pictures, small differences.
plt.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "raggemm"})

OURS, PEER, LIMIT = "tab:blue", "tab:orange", "black"
SIZE = (9, 4)


def _save(figure, folder: pathlib.Path, name: str) -> str:
    """The name of the PNG."""
    figure.tight_layout()
    for ending in ("svg", "png"):
        figure.savefig(folder / f"{name}.{ending}", dpi=110, metadata={"Date": None} if ending == "svg" else None)
    plt.close(figure)
    return f"{name}.png"


def _most_threads(cases: list[dict]) -> list[dict]:
    threads = max(case["threads"] for case in cases)
    return [case for case in cases if case["threads"] == threads]


def roofline(report: dict, folder: pathlib.Path, name: str) -> str:
    """GFLOP/s against flops per byte, one panel for each pair of types; the roof is drawn for reads alone."""
    cases = _most_threads(report["cases"])
    limits = next(found for found in report["machine"]["limits"] if found["threads"] == cases[0]["threads"])
    panels = sorted({types(case) for case in cases}, key=lambda pair: ("f32" not in pair[:3], pair))
    figure, axes = plt.subplots(1, len(panels), figsize=SIZE, sharey=True, squeeze=False)
    for axis, pair in zip(axes[0], panels, strict=True):
        own = [case for case in cases if types(case) == pair]
        intensity = [case["flops"] / case["bytes"] for case in own]
        reach = [min(intensity) / 1.5, max(intensity) * 1.5]
        ridge = limits["fma_gflops"] / limits["read_gbps"]
        roof = sorted({*reach, ridge})
        rates = [min(limits["fma_gflops"], x * limits["read_gbps"]) for x in roof]
        axis.loglog(roof, rates, color=LIMIT, linewidth=1, label="roofline")
        with_peer = [(x, case["best_peer_gflops"]) for x, case in zip(intensity, own, strict=True) if "ratio" in case]
        if with_peer:
            axis.plot(*zip(*with_peer, strict=True), "x", color=PEER, label="best peer")
        axis.plot(intensity, [case["ours_gflops"] for case in own], ".", color=OURS, label="raggemm")
        axis.set_title(f"{pair}, {cases[0]['threads']} threads", fontsize=10)
        axis.set_xlabel("flops per byte read or written")
        axis.grid(alpha=0.3)
    axes[0][0].set_ylabel("GFLOP/s")
    axes[0][0].legend()
    return _save(figure, folder, name)


def time_by_rows(report: dict, folder: pathlib.Path, name: str) -> str | None:
    """Microseconds a group against rows per group, forward, one panel for each shape. None without a sweep."""
    cases = [case for case in report["cases"] if case["regime"] == "sweep" and case["mode"] == "forward"]
    cases = [case for case in cases if case["out_dtype"] == "f32"]
    if not cases:
        return None
    cases = _most_threads(cases)
    shapes = sorted({(case["k"], case["n"]) for case in cases})
    figure, axes = plt.subplots(1, len(shapes), figsize=SIZE, squeeze=False)
    for axis, shape in zip(axes[0], shapes, strict=True):
        for dtype, line in (("f32", "-"), ("bf16", "--")):
            own = [case for case in cases if (case["k"], case["n"]) == shape and case["lhs_dtype"] == dtype]
            for label, color, rate in (
                ("raggemm", OURS, "ours_gflops"),
                ("best peer", PEER, "best_peer_gflops"),
                ("roofline", LIMIT, "roofline_gflops"),
            ):
                points = [(rows_per_group(c), c["flops"] / c["groups"] / c[rate] / 1e3) for c in own if rate in c]
                if points:
                    width = 0.8 if label == "roofline" else 1.5
                    axis.loglog(
                        *zip(*points, strict=True), line, color=color, linewidth=width, label=f"{label}, {dtype}"
                    )
        axis.set_title(f"K = {shape[0]}, N = {shape[1]}, {cases[0]['threads']} threads", fontsize=10)
        axis.set_xlabel("rows per group")
        axis.grid(alpha=0.3)
    axes[0][0].set_ylabel("µs per group")
    axes[0][0].legend(fontsize=8)
    return _save(figure, folder, name)
