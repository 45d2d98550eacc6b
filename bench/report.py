"""Makes tables and pictures of a run of the benchmarks: report.py REPORT.json [--record FOLDER --page FILE].

Beside the JSON: report.md, report-roofline and report-rows (.png). With --record the same under the CPU's name in
FOLDER, to be kept, and all that is recorded there in the table of a page. The summary also goes to stdout.
"""

import argparse
import json
import pathlib
import re

import classes
import pictures
from regimes import (
    F32_FMA,
    UNITS_OF_BYTES,
    Cell,
    best_ways,
    bound,
    case_name,
    cells,
    geometric_mean,
    rate_of,
    regime,
    types,
    warning,
)


def markdown_table(header: list[str], rows: list[list[str]]) -> str:
    """Aligned, so that it can be read as it is; the first column to the left."""
    widths = [max(len(line[i]) for line in [header, *rows]) for i in range(len(header))]

    def line(fields: list[str]) -> str:
        return (
            "| "
            + " | ".join(f.rjust(w) if i else f.ljust(w) for i, (f, w) in enumerate(zip(fields, widths, strict=True)))
            + " |"
        )

    rule = "|" + "|".join("-" * (w + 1) + (":" if i else "-") for i, w in enumerate(widths)) + "|"
    return "\n".join([line(header), rule, *map(line, rows)])


def figure(value: float | None, digits: int = 2) -> str:
    return "" if value is None else f"{value:.{digits}f}"


def summary(found: list[Cell]) -> str:
    rows = []
    for cell in found:
        ratios, shares = cell.ratios(), cell.shares()
        rows.append(
            [
                cell.regime,
                cell.types,
                cell.unit,
                str(cell.threads),
                str(len(cell.cases)),
                figure(geometric_mean(ratios)) if ratios else "no peer",
                figure(min(ratios, default=None)),
                figure(geometric_mean(shares)),
                figure(min(shares)),
            ]
        )
    header = ["regime", "types", "unit", "threads", "cases", "over best peer", "least", "share of roofline", "least"]
    return markdown_table(header, rows)


def gains(found: list[Cell]) -> str:
    """What one grouped call gains over a series of products, ours and the peers'."""
    rows = []
    for cell in found:
        own = [case["ours_gflops"] / rate for case in cell.cases if (rate := bound(case, "ours, group by group"))]
        means = (figure(geometric_mean(ratios)) if ratios else "" for ratios in (own, cell.ratios()))
        rows.append([str(cell), *means])
    return markdown_table(["cell", "over ours group by group", "over the best peer"], rows)


def bounds(cases: list[dict]) -> str:
    names = list(dict.fromkeys(_bound_name(b["name"]) for case in cases for b in case.get("bounds", [])))
    rows = []
    for case in cases:
        rates = {_bound_name(b["name"]): b.get("gflops") for b in case.get("bounds", [])}
        fields = (figure(rates.get(name), 1) for name in names)
        rows.append([case_name(case), figure(case["ours_gflops"], 1), *fields])
    return markdown_table(["GFLOP/s", "ours", *names], rows)


def _bound_name(name: str) -> str:
    """Without which peer it was, for a column of its own."""
    return "widened before" if name.startswith("widened before") else name.removeprefix("ours, ")


def peers_table(cases: list[dict]) -> str:
    """GFLOP/s of everybody in the cases of one regime; a peer's is its better way."""
    ways = [best_ways(case) for case in cases]
    names = list(dict.fromkeys(_peer_column(name) for best in ways for name in best))
    rows = []
    for case, best in zip(cases, ways, strict=True):
        rates = {_peer_column(name): peer for name, peer in best.items()}
        rows.append(
            [
                f"{case['case']} {types(case)}, {case['threads']}t",
                figure(case["ours_gflops"], 1),
                *(_peer_field(rates.get(name)) for name in names),
                case.get("best_peer", ""),
                figure(case.get("ratio")),
                figure(case["roofline_share"]),
                f"{100 * case['ours']['spread']:.0f} %",
            ]
        )
    return markdown_table(["GFLOP/s", "ours", *names, "best peer", "ratio", "share", "spread"], rows)


def _peer_column(name: str) -> str:
    return "widen" if name.startswith("widen, ") else name


def _peer_field(peer: dict | None) -> str:
    if peer is None:
        return "-"
    return f"{peer['gflops']:.1f}" if "gflops" in peer else "failed"


def failures(cases: list[dict]) -> str:
    lines = [
        f"- {'/'.join(filter(None, (peer['name'], peer.get('way'))))}, {case_name(case)}: {peer['error']}"
        for case in cases
        for peer in case.get("peers", []) + case.get("bounds", [])
        if "error" in peer
    ]
    return "\n".join(lines) if lines else "Every result was right."


def absences(cases: list[dict]) -> str:
    """Peers of quantized operands, and the types that their libraries lack."""
    lines = dict.fromkeys(f"- {name}: {types(case)}" for case in cases for name in case.get("absent", []))
    return "\n".join(lines)


def machine_section(machine: dict) -> str:
    measured = machine.get("limits", [])
    units = list(dict.fromkeys([F32_FMA, *(of["name"] for found in measured for of in found.get("units", []))]))
    limits = markdown_table(
        ["threads", *(f"{name}, GFLOP/s" for name in units), "memory read, GB/s", "non-temporal store, GB/s"],
        [
            [
                str(found["threads"]),
                *(figure(rate_of(name, found), 1) for name in units),
                *(f"{found[key]:.1f}" for key in ("read_gbps", "store_gbps")),
            ]
            for found in measured
        ],
    )
    lines = [f"- {peer['name']}: {peer['description']}" for peer in machine.get("peers", [])]
    lines += [f"- {peer['name']}: absent, {peer['description']}" for peer in machine.get("absent", [])]
    peers = _without_folders("\n".join(lines))
    run = f"{machine['compiler']}; {machine['date']}; {machine['selection']} run"
    overheads = markdown_table(
        ["median", "us"], [[found["name"], f"{found['microseconds']:.2f}"] for found in machine.get("overheads", [])]
    )
    return (
        f"{machine['cpu']}, {machine['cores']} cores, {machine['isa']}; {run}.\n\n{limits}\n\n{overheads}\n\n"
        f"Peers, each with the kernels it chose:\n\n{peers or '- none found'}"
    )


def _without_folders(text: str) -> str:
    """A report that is kept names libraries, not where they happened to lie."""
    return re.sub(r"(?<!\S)/\S*/", "", text)


METHOD = """\
All contenders of a case take turns on the same operands, in one process, after their results were compared with ours
and with float64. Weights come from memory: successive calls go through 512 MiB and more. A figure is the median over
rounds, its spread the distance of the quartiles over the median. The limits are measured between the turns. The limit
of the sums is the fastest millisecond of the whole run, by the fastest unit that the CPU has for the types, in a loop
between registers. The limits of memory are the upper quartiles of a case's samples: a plain pass over its own weights
(wgrad: gradients) reads each line once and in order. The roofline is the larger of the time of the sums and of the
transfers, lhs, weights of groups with rows, and out (wgrad: every gradient) each once. A peer counts with the better
of two ways: its own threads on group after group, or our threads over the groups, largest first, with the peer on one
thread in each. `widen` is the fastest f32 peer on bf16 operands widened to f32 first, widening counted; widened
beforehand it is an upper bound, not a peer. Peers that were far behind took part in fewer rounds. Peers of quantized
operands are `bf16`, our own call with lhs and weights of bf16 at the same rows, and oneDNN 3 where it has such a
product and its result is right: int4 times its scale it rounds to bf16 before it multiplies, which is too far from
float64. The roofline counts quantized operands in the bytes that they are stored in, scales included, so that its
share is that of the memory's speed where few rows let memory bound the call. `Weights in cache` is the same call with
so few groups that their weights stay in the last cache, over and over. Means are geometric."""


def report_text(report: dict, pictures_of: list[tuple[str, str]]) -> str:
    """`pictures_of`: (caption, file) of each."""
    found, cases = cells(report), report["cases"]
    sections = [
        *([("", text)] if (text := warning(report)) else []),
        ("", machine_section(report["machine"])),
        ("How", METHOD),
        ("Summary", summary(found)),
        ("What a grouped call gains over a series of products", gains(found)),
        ("Pictures", "\n\n".join(f"![{caption}]({file})" for caption, file in pictures_of)),
    ]
    for name in dict.fromkeys(map(regime, cases)):
        sections.append((name[0].upper() + name[1:], peers_table([case for case in cases if regime(case) == name])))
    sections += [("Upper bounds", bounds(cases)), ("Wrong or failed", failures(cases))]
    if absent := absences(cases):
        sections.append(("Not implemented", absent))
    body = "\n\n".join(f"## {title}\n\n{text}" if title else text for title, text in sections)
    return f"# Grouped GEMM, measured\n\n{body}\n"


def write_report(report: dict, folder: pathlib.Path, name: str) -> pathlib.Path:
    folder.mkdir(parents=True, exist_ok=True)
    plain = report | {"cases": [case for case in report["cases"] if "quantization" not in case]}
    made = []
    if plain["cases"]:
        made = [
            ("Roofline", pictures.roofline(plain, folder, f"{name}-roofline")),
            ("Share of the roofline against rows per group", pictures.share_by_rows(plain, folder, f"{name}-rows")),
        ]
    path = folder / f"{name}.md"
    path.write_text(report_text(report, [(caption, file) for caption, file in made if file]))
    return path


def file_name(machine: dict) -> str:
    """'Intel(R) Xeon(R) Processor (family 6, model 207)' to 'intel-xeon-processor-family-6-model-207'. Where a unit is
    ahead of f32 fma, with its name: a virtual machine may hide it, which makes the same CPU another class."""
    limits = machine["limits"][-1]
    units = [of["name"] for of in limits.get("units", []) if of["name"] not in UNITS_OF_BYTES]
    fastest = max([F32_FMA, *units], key=lambda name: rate_of(name, limits) or 0)
    name = machine["cpu"] if fastest == F32_FMA else f"{machine['cpu']} {fastest}"
    return "-".join(re.findall(r"[a-z0-9.]+", re.sub(r"\((R|TM)\)", " ", name, flags=re.IGNORECASE).lower()))


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
    if text := warning(report):
        print(f"\n{text}")
    print(f"\n{summary(cells(report))}\n")
    print("report:", write_report(report, arguments.json.parent, "report"))
    if arguments.record:
        print("recorded:", write_report(report, arguments.record, file_name(report["machine"])))
    for page in arguments.page:
        classes.update(page, arguments.record)


if __name__ == "__main__":
    main()
