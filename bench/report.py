"""Turns a run of the benchmarks into tables and a picture: report.py REPORT.json [--record FOLDER --page FILE].

Writes report.md and report-rows.png beside the JSON file. --record also writes the summary and the picture into FOLDER,
under the name of the CPU. The tables of each --page then combine all summaries in FOLDER. bench/report.proto describes
the JSON file.
"""

import argparse
import io
import json
import math
import os
import pathlib
import re

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

plt.switch_backend("Agg")

F32_FMA = "f32 fma"
UNITS_OF_BYTES = ("VPDPBUSD", "TDPBSSD")
ROW_REGIMES = [(2, "1 to 2 rows"), (16, "4 to 16 rows"), (64, "32 to 64 rows"), (math.inf, "128 rows and more")]

# PLAIN_ROWS and QUANTIZED_ROWS map regimes of a report to table rows in the pages. A cell is a geometric mean over all
# cases of the row.
PLAIN_ROWS = {
    "forward, 1 to 2 rows": "forward, 1 to 2",
    "forward, 4 to 16 rows": "forward, 4 to 16",
    "forward, 32 to 64 rows": "forward, 32 to 64",
    "forward, 128 rows and more": "forward, 128 and more",
    "forward, recorded": "forward, recorded routing",
    **{f"transposed, {rows}": "transposed weights, 1 to 512" for _, rows in ROW_REGIMES},
    "wgrad, 16 rows and more": "gradients of weights, 16 and more",
}
QUANTIZED_ROWS = {
    "quantized, 1 to 2 rows": "1 to 16",
    "quantized, 4 to 16 rows": "1 to 16",
    "quantized, recorded": "1 to 16",
    "quantized, 32 to 64 rows": "64",
    "quantized, 128 rows and more": "128 and more",
}
PLAIN_TYPES = {"f32 → f32": "f32", "bf16 → f32": "bf16"}
QUANTIZED_TYPES = {
    **{f"{name} → f32": name for name in ("int8", "fp8", "int4", "mxfp4", "w8a8")},
    "integers → s32": "integers",
}
BRIEF_ROWS = ("forward, 1 to 2", "forward, 4 to 16", "forward, 128 and more")
BRIEF = {f"{types}, {row.removeprefix('forward, ')}": (types, row) for types in ("f32", "bf16") for row in BRIEF_ROWS}
BRIEF["bf16, weights' gradients"] = ("bf16", "gradients of weights, 16 and more")
PLAIN_HEADER = "| rows of a group | types |"
QUANTIZED_HEADER = "| rows of a group, quantized | types |"
BRIEF_HEADER = f"| CPU | {next(iter(BRIEF))} |"  # A page may have other tables of CPUs.

# Limits for the warning about a busy machine.
LEAST_OF_PROBE = 0.4  # Least ratio of a thread's fma rate to the probed rate. Two threads on one core reach 0.5.
MOST_SPREAD = 0.3  # Largest ratio of a rate's interquartile range to its median.

METHOD = """\
All contenders of a case take turns on the same operands in one process, after their results were compared with ours and
with float64. Successive calls go through 512 MiB of weights and more, so that weights come from memory. A rate is the
median over the rounds. The limit of the sums is the fastest millisecond of the whole run: a loop between registers of
the fastest unit that the CPU has for the types. The limits of memory are the upper quartiles of a case's samples: a
plain pass over its own weights (wgrad: gradients). The roofline is the larger of the time of the sums and the time of
the transfers: lhs, weights of groups with rows, and out, each once and in the bytes that they are stored in. A peer
counts in the better of two ways to use its threads: its own threads on group after group (own), or our threads over the
groups, largest first, with the peer on one thread in each (outer). `widen` is the fastest f32 peer on bf16 operands
that it widens to f32 in each call. The peers of quantized operands are our own call in bf16 at the same rows, and
oneDNN 3 if it has the product and its result is right. Means are geometric."""


def regime_of(case) -> str:
    mode = {"forward": "forward", "forward_transposed": "transposed", "wgrad": "wgrad"}[case["mode"]]
    if not pd.isna(case["quantization"]):
        mode = "quantized"
    if case["regime"] == "recorded":
        return f"{mode}, recorded"
    if mode == "wgrad":
        return "wgrad, 16 rows and more" if case["rows_per_group"] >= 16 else "wgrad, below 16 rows"
    return f"{mode}, " + next(name for most, name in ROW_REGIMES if case["rows_per_group"] <= most)


def frame_of(report: dict) -> pd.DataFrame:
    """Returns one row for each case of a report."""
    cases = pd.DataFrame(report["cases"])
    optional = ("ratio", "best_peer", "best_peer_gflops", "quantization", "unit", "peers")
    cases = cases.reindex(columns=[*cases.columns, *(name for name in optional if name not in cases)])
    cases = cases.astype({"unit": object, "quantization": object})
    cases["unit"] = cases["unit"].fillna(F32_FMA)
    cases["rows_per_group"] = cases["rows"] / cases["groups"]
    cases["types"] = cases["quantization"].fillna(cases["lhs_dtype"]) + " → " + cases["out_dtype"]
    cases["spread"] = [ours["spread"] for ours in cases["ours"]]
    cases["sweep_or_recorded"] = cases["regime"]
    cases["regime"] = cases.apply(regime_of, axis=1)
    return cases


def _list(value) -> list[dict]:
    return value if isinstance(value, list) else []


def geometric_mean(values, weights=None) -> float:
    values = np.asarray(values, float)
    weights = np.ones(len(values)) if weights is None else np.asarray(weights, float)
    there = ~np.isnan(values)
    return float(np.exp(np.average(np.log(values[there]), weights=weights[there]))) if there.any() else math.nan


def markdown(table: pd.DataFrame, digits: int = 2) -> str:
    filled = table.astype(object).where(table.notna(), None)
    return filled.to_markdown(index=False, floatfmt=f".{digits}f", missingval="")


def summary(cases: pd.DataFrame) -> pd.DataFrame:
    """Returns one row for each regime, pair of types and number of threads."""
    found = cases.groupby(["regime", "types", "threads"], sort=False, as_index=False).agg(
        unit=("unit", lambda units: ", ".join(dict.fromkeys(units))),
        cases=("case", "size"),
        ratio=("ratio", geometric_mean),
        least_ratio=("ratio", "min"),
        share=("roofline_share", geometric_mean),
        least_share=("roofline_share", "min"),
    )
    names = {
        "ratio": "over best peer",
        "least_ratio": "least ratio",
        "share": "share of roofline",
        "least_share": "least share",
    }
    return found[["regime", "types", "unit", "threads", "cases", *names]].rename(columns=names)


def best_ways(peers: list[dict]) -> dict[str, dict]:
    """Returns the faster entry of each peer, by name.

    A peer may have two entries: own threads and outer threads. Failed entries count as 0. All peers that widen share
    the name "widen".
    """
    best: dict[str, dict] = {}
    for peer in peers:
        name = "widen" if peer["name"].startswith("widen, ") else peer["name"]
        if name not in best or peer.get("gflops", 0) > best[name].get("gflops", 0):
            best[name] = peer
    return best


def case_table(cases: pd.DataFrame) -> pd.DataFrame:
    columns = {"case": "GFLOP/s", "types": "types", "threads": "threads", "ours_gflops": "ours"}
    table = cases[list(columns)].rename(columns=columns)
    peers = pd.DataFrame(
        [{name: peer.get("gflops") for name, peer in best_ways(_list(of)).items()} for of in cases["peers"]],
        index=cases.index,
    )
    rest = {"best_peer": "best peer", "ratio": "ratio", "roofline_share": "share", "spread": "spread"}
    return pd.concat([table, peers, cases[list(rest)].rename(columns=rest)], axis=1)


def failures(cases: pd.DataFrame) -> str:
    lines = []
    for _, case in cases.iterrows():
        for peer in _list(case["peers"]):
            if "error" in peer:
                name = "/".join(filter(None, (peer["name"], peer.get("threading"))))
                where = f"{case['case']} {case['types']}, {case['mode']}, {case['threads']} threads"
                lines.append(f"- {name}, {where}: {peer['error']}")
    return "\n".join(lines) or "Every result was right."


def rates_of(limits: dict) -> dict[str, float]:
    return {F32_FMA: limits["fma_gflops"], **{unit["name"]: unit["gflops"] for unit in limits.get("units", [])}}


def machine_section(machine: dict) -> str:
    limits = pd.DataFrame(
        {"threads": of["threads"]}
        | {f"{name}, GFLOP/s": rate for name, rate in rates_of(of).items()}
        | {"memory read, GB/s": of["read_gbps"], "non-temporal store, GB/s": of["store_gbps"]}
        for of in machine.get("limits", [])
    )
    peers = [f"- {peer['name']}: {peer['description']}" for peer in machine.get("peers", [])]
    peers += [f"- {peer['name']}: absent, {peer['description']}" for peer in machine.get("absent", [])]
    listed = re.sub(r"(?<!\S)/\S*/", "", "\n".join(peers))  # Drops the folders of libraries.
    run = f"{machine['compiler']}; {machine['date']}; {machine['selection']} run"
    return (
        f"{machine['cpu']}, {machine['cores']} cores, {machine['isa']}; {run}.\n\n{markdown(limits, 1)}\n\n"
        f"The custom call on 512 groups without rows takes {machine['empty_call_microseconds']:.2f} us (median).\n\n"
        f"Peers, each with the kernels it chose:\n\n{listed or '- none found'}"
    )


def _spread(values: pd.Series) -> float:
    low, middle, high = values.quantile([0.25, 0.5, 0.75])
    return (high - low) / middle


def warning(report: dict, cases: pd.DataFrame) -> str:
    """Returns a paragraph if something else seems to have used the machine, else an empty text."""
    machine, signs = report["machine"], []
    for limits in machine.get("limits", []):
        threads, fma, probed = limits["threads"], limits["overall_fma_gflops"], machine.get("probed_gflops")
        if probed and fma < LEAST_OF_PROBE * probed * threads:
            signs.append(
                f"{threads} threads reached {fma:.1f} GFLOP/s of f32 fma, {100 * fma / probed / threads:.0f} % of what "
                f"one reached in the best of some short turns ({probed:.1f}) times {threads}."
            )
        of_cases = pd.DataFrame(list(cases["limits"][cases["threads"] == threads]))
        for key, name in (("overall_fma_gflops", "f32 fma"), ("read_gbps", "memory read")):
            if len(of_cases) > 1 and (spread := _spread(of_cases[key])) > MOST_SPREAD:
                signs.append(
                    f"The rate of {name} on {threads} threads has a spread of {100 * spread:.0f} % over the cases."
                )
    if (spread := cases["spread"].median()) > MOST_SPREAD:
        signs.append(f"In half of the cases our rate has a spread of {100 * spread:.0f} % or more over the rounds.")
    text = "**WARNING: the machine was busy with something else; do not trust these figures.**"
    return f"{text} {' '.join(signs)}" if signs else ""


def share_by_rows(cases: pd.DataFrame, path: pathlib.Path) -> bool:
    """Draws the share of the roofline against rows per group. Returns false if there is nothing to draw.

    There is a panel for each shape and input type. It has the forward cases with f32 results, without quantization, on
    the largest number of threads.
    """
    swept = cases[(cases["sweep_or_recorded"] == "sweep") & (cases["mode"] == "forward") & cases["quantization"].isna()]
    swept = swept[(swept["out_dtype"] == "f32") & swept["lhs_dtype"].isin(["f32", "bf16"])]
    swept = swept[swept["threads"] == swept["threads"].max()]
    if swept.empty:
        return False
    panels = list(swept.groupby(["k", "n", "lhs_dtype"]))
    columns = swept["lhs_dtype"].nunique()
    rows = -(-len(panels) // columns)
    size = (8.5, 2.7 * rows)  # width and height in inches
    figure, axes = plt.subplots(
        rows, columns, figsize=size, sharex=True, sharey=True, squeeze=False, layout="constrained"
    )
    for axis, ((k, n, dtype), own) in zip(axes.flat, panels, strict=False):
        for label, style, rate in (("raggemm", "o-", "ours_gflops"), ("best peer", "x-", "best_peer_gflops")):
            axis.plot(own["rows_per_group"], own[rate] / own["roofline_gflops"], style, markersize=5, label=label)
        axis.axhline(1, color="black", linewidth=1, label="roofline")
        axis.set_xscale("log", base=2)
        ticks = sorted(own["rows_per_group"].unique())
        axis.set_xticks(ticks, [f"{value:g}" for value in ticks], minor=False)
        axis.set_ylim(0, 1.1)
        axis.set_title(f"{dtype}, {k}x{n}, {own['unit'].iloc[0]}, {own['threads'].iloc[0]} threads", fontsize=11)
        axis.grid(alpha=0.3)
    figure.supxlabel("rows per group")
    figure.supylabel("share of the roofline")
    axes[0][0].legend()
    figure.savefig(path, dpi=150)
    plt.close(figure)
    return True


def report_text(report: dict, picture: str, every_case: bool) -> str:
    cases = frame_of(report)
    sections = [
        warning(report, cases),
        machine_section(report["machine"]),
        f"## How\n\n{METHOD}",
        f"## Summary\n\n{markdown(summary(cases))}",
        f"![Share of the roofline against rows per group]({picture})" if picture else "",
    ]
    if every_case:
        for regime, own in cases.groupby("regime", sort=False):
            sections.append(f"## {regime[0].upper()}{regime[1:]}\n\n{markdown(case_table(own))}")
        sections.append(f"## Wrong or failed\n\n{failures(cases)}")
    return "# Grouped GEMM, measured\n\n" + "\n\n".join(filter(None, sections)) + "\n"


def write_report(report: dict, folder: pathlib.Path, name: str, every_case: bool) -> pathlib.Path:
    folder.mkdir(parents=True, exist_ok=True)
    picture = f"{name}-rows.png"
    drawn = share_by_rows(frame_of(report), folder / picture)
    path = folder / f"{name}.md"
    path.write_text(report_text(report, picture if drawn else "", every_case))
    return path


def file_name(machine: dict) -> str:
    """Returns a file name for the CPU, like 'intel-xeon-processor-family-6-model-207'.

    Adds the name of a unit that multiplies floats faster than f32 fma. A virtual machine may hide this unit, so one CPU
    can have two reports.
    """
    rates = rates_of(machine["limits"][-1])
    fastest = max((name for name in rates if name not in UNITS_OF_BYTES), key=lambda name: rates[name] or 0)
    name = machine["cpu"] if fastest == F32_FMA else f"{machine['cpu']} {fastest}"
    return "-".join(re.findall(r"[a-z0-9.]+", re.sub(r"\((R|TM)\)", " ", name, flags=re.IGNORECASE).lower()))


def read_recorded(path: pathlib.Path) -> tuple[str, pd.DataFrame]:
    """Reads (name of the CPU, summary for the largest number of threads) from a recorded report."""
    text = path.read_text()
    machine = re.search(r"^(.+ \(family \d+, model \d+\)), \d+ cores, ", text, re.MULTILINE)
    table = re.search(r"^## Summary\n\n((?:\|.*\n)+)", text, re.MULTILINE)
    if machine is None or table is None:
        raise ValueError(f"{path.name} is no report of ./dev bench")
    rows = pd.read_csv(io.StringIO(table[1]), sep=r"\s*\|\s*", engine="python", skiprows=[1])
    cpu = " ".join(re.sub(r"\((R|TM)\)|Processor|CPU", "", machine[1], flags=re.IGNORECASE).split())
    return cpu, rows[rows["threads"] == rows["threads"].max()]


def fields(recorded: pd.DataFrame, types: dict[str, str], rows: dict[str, str]) -> dict[tuple[str, str], str]:
    """Returns the cells of a page's table by (types, row): 'ratio to the best peer / share of the roofline'."""
    own = recorded.assign(row=recorded["regime"].map(rows), name=recorded["types"].map(types)).dropna(
        subset=["row", "name"]
    )
    found = {}
    for key, of in own.groupby(["name", "row"]):
        ratio, share = (geometric_mean(of[name], of["cases"]) for name in ("over best peer", "share of roofline"))
        found[key] = f"{'no peer' if math.isnan(ratio) else f'{ratio:.2f}'} / {share:.2f}"
    return found


def _line(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def page_tables(results: pathlib.Path, folder: str) -> dict[str, str]:
    """Combines all reports in `results`. Returns {start of the header line: table}.

    folder: path from the page to `results`, for links.
    """
    files = [file for file in sorted(results.glob("*.md")) if not file.stem.endswith("-counted")]
    reports = [(f"[{cpu}]({folder}/{file.name})", rows) for file in files for cpu, rows in [read_recorded(file)]]
    plain = {link: fields(rows, PLAIN_TYPES, PLAIN_ROWS) for link, rows in reports}
    quantized = {link: fields(rows, QUANTIZED_TYPES, QUANTIZED_ROWS) for link, rows in reports}
    quantized = {link: found for link, found in quantized.items() if found}
    lines = [f"{PLAIN_HEADER} {' | '.join(plain)} |", "|---|---|" + "---:|" * len(plain)]
    for types, name in PLAIN_TYPES.items():
        units = (", ".join(dict.fromkeys(rows["unit"][rows["types"] == types])) for _, rows in reports)
        lines.append(_line("fastest unit", name, *units))
        for row in dict.fromkeys(PLAIN_ROWS.values()):
            lines.append(_line(row, name, *(found.get((name, row), "") for found in plain.values())))
    bits = [f"{QUANTIZED_HEADER} {' | '.join(quantized)} |", "|---|---|" + "---:|" * len(quantized)]
    for name in QUANTIZED_TYPES.values():
        for row in dict.fromkeys(QUANTIZED_ROWS.values()):
            cells = [found.get((name, row), "") for found in quantized.values()]
            if any(cells):
                bits.append(_line(row, name, *cells))
    brief = [f"| CPU | {' | '.join(BRIEF)} |", "|---|" + "---:|" * len(BRIEF)]
    brief += [_line(link, *(found.get(key, "") for key in BRIEF.values())) for link, found in plain.items()]
    return {
        header: "\n".join(table)
        for header, table in zip((PLAIN_HEADER, QUANTIZED_HEADER, BRIEF_HEADER), (lines, bits, brief), strict=True)
    }


def update_page(page: pathlib.Path, results: pathlib.Path) -> None:
    text, count = page.read_text(), 0
    for header, new in page_tables(results, os.path.relpath(results, page.parent)).items():
        pattern = rf"^{re.escape(header)}.*(\n\|.*)*"
        # Only the first table, because a page may have others that begin alike.
        text, replaced = re.subn(pattern, lambda _, new=new: new, text, count=1, flags=re.MULTILINE)
        count += replaced
    if count == 0:
        raise ValueError(f"{page} has none of the tables")
    page.write_text(text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("json", type=pathlib.Path)
    parser.add_argument("--record", type=pathlib.Path, metavar="FOLDER")
    parser.add_argument("--page", type=pathlib.Path, metavar="FILE", action="append", default=[])
    arguments = parser.parse_args()
    try:
        report = json.loads(arguments.json.read_text())
    except (OSError, ValueError) as error:
        parser.error(f"{arguments.json}: {error}")
    if not report.get("cases"):
        parser.error(f"{arguments.json} has no cases")
    cases = frame_of(report)
    if text := warning(report, cases):
        print(f"\n{text}")
    print(f"\n{markdown(summary(cases))}\n")
    print("report:", write_report(report, arguments.json.parent, "report", every_case=True))
    if arguments.record:
        name = file_name(report["machine"])
        print("recorded:", write_report(report, arguments.record, name, every_case=False))
    for page in arguments.page:
        update_page(page, arguments.record)


if __name__ == "__main__":
    main()
