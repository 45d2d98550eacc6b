"""What was recorded on each class of CPU, side by side, from the reports kept: the table of docs/performance.md, and
the brief one of README.md."""

import dataclasses
import math
import os
import pathlib
import re

from regimes import F32_FMA

# Rows of the page, each the cases of some regimes (regimes.regime).
ROWS = {
    "forward, 1 to 2": ["forward, 1 to 2 rows"],
    "forward, 4 to 16": ["forward, 4 to 16 rows"],
    "forward, 32 to 64": ["forward, 32 to 64 rows"],
    "forward, 128 and more": ["forward, 128 rows and more"],
    "forward, recorded routing": ["forward, recorded"],
    "transposed weights, 1 to 512": [
        f"transposed, {rows}" for rows in ("1 to 2 rows", "4 to 16 rows", "32 to 64 rows", "128 rows and more")
    ],
    "gradients of weights, 16 and more": ["wgrad, 16 rows and more"],
}
TYPES = {"f32": "f32 → f32", "bf16": "bf16 → f32"}
# Quantized operands, for whose types there are no other rows; their peer is bf16.
QUANTIZED_ROWS = {
    "1 to 16": ["quantized, 1 to 2 rows", "quantized, 4 to 16 rows", "quantized, recorded"],
    "64": ["quantized, 32 to 64 rows"],
    "128 and more": ["quantized, 128 rows and more"],
}
QUANTIZED_TYPES = {name: f"{name} → f32" for name in ("int8", "fp8", "int4", "mxfp4", "w8a8")} | {
    "integers": "integers → s32"
}
HEADER = "| rows of a group | types |"
QUANTIZED_HEADER = "| rows of a group, quantized | types |"
# Columns of the brief table, each a type and a row.
BRIEF = {
    "f32, 1 to 2": ("f32", "forward, 1 to 2"),
    "f32, 4 to 16": ("f32", "forward, 4 to 16"),
    "f32, 128 and more": ("f32", "forward, 128 and more"),
    "bf16, 1 to 2": ("bf16", "forward, 1 to 2"),
    "bf16, 4 to 16": ("bf16", "forward, 4 to 16"),
    "bf16, 128 and more": ("bf16", "forward, 128 and more"),
    "bf16, weights' gradients": ("bf16", "gradients of weights, 16 and more"),
}
BRIEF_HEADER = "| CPU |"


@dataclasses.dataclass
class Summary:
    """One line of a report's summary."""

    regime: str
    types: str
    unit: str
    threads: int
    cases: int
    ratio: float | None  # over the best peer, where there was one
    share: float  # of the roofline


@dataclasses.dataclass(eq=False)
class Recorded:
    cpu: str
    file: str
    lines: list[Summary]

    def units(self, types: str) -> str:
        return ", ".join(dict.fromkeys(line.unit for line in self.lines if line.types == types))

    def field(self, regimes: list[str], types: str) -> str:
        """Means over the cases of the regimes, "ratio / share"; empty where nothing was measured."""
        found = [line for line in self.lines if line.regime in regimes and line.types == types]
        if not found:
            return ""
        ratios = [(line.ratio, line.cases) for line in found if line.ratio is not None]
        share = _mean([(line.share, line.cases) for line in found])
        return f"{_mean(ratios):.2f} / {share:.2f}" if ratios else f"no peer / {share:.2f}"


def _mean(weighted: list[tuple[float, int]]) -> float:
    """Geometric, of values that stand for so many cases each."""
    return math.exp(sum(math.log(value) * cases for value, cases in weighted) / sum(cases for _, cases in weighted))


def _fields(line: str) -> list[str]:
    return [field.strip() for field in line.strip().strip("|").split("|")]


def _number(field: str) -> float | None:
    """The first in it: reports used to have a target behind."""
    found = re.match(r"[\d.]+", field)
    return float(found[0]) if found else None


def read(report: str, file: str) -> Recorded:
    """From the text of a report, the lines of its largest number of threads."""
    machine = re.search(r"^(.+ \(family \d+, model \d+\)), \d+ cores, ", report, re.MULTILINE)
    table = re.search(r"^## Summary\n\n(\|.*?)\n\n", report, re.MULTILINE | re.DOTALL)
    if machine is None or table is None:
        raise ValueError(f"{file} is no report of ./dev bench")
    header, _, *rows = map(_fields, table[1].splitlines())
    lines = []
    for row in rows:
        of = dict(zip(header, row, strict=True))
        share = _number(of["share of roofline"])
        assert share is not None, row
        ratio, unit = _number(of["over best peer"]), of.get("unit", F32_FMA)
        lines.append(Summary(of["regime"], of["types"], unit, int(of["threads"]), int(of["cases"]), ratio, share))
    threads = max(line.threads for line in lines)
    return Recorded(machine[1], file, [line for line in lines if line.threads == threads])


def short_name(cpu: str) -> str:
    """'Intel(R) Xeon(R) Processor (family 6, model 207)' to 'Intel Xeon (family 6, model 207)'."""
    return " ".join(re.sub(r"\((R|TM)\)|Processor|CPU", "", cpu, flags=re.IGNORECASE).split())


def table(recorded: list[Recorded], folder: str) -> str:
    """A column for each class of CPU, named after its report in the folder."""
    lines = [
        " ".join([HEADER, *(f"[{short_name(of.cpu)}]({folder}/{of.file}) |" for of in recorded)]),
        "|---|---|" + "---:|" * len(recorded),
    ]
    for name, types in TYPES.items():
        lines.append(" ".join([f"| fastest unit | {name} |", *(f"{of.units(types)} |" for of in recorded)]))
        for row, regimes in ROWS.items():
            lines.append(" ".join([f"| {row} | {name} |", *(f"{of.field(regimes, types)} |" for of in recorded)]))
    return "\n".join(lines)


def quantized_table(recorded: list[Recorded], folder: str) -> str:
    """The same of quantized operands, of the classes whose reports have any: reports used to have none."""
    rows = [(row, name) for name in QUANTIZED_TYPES for row in QUANTIZED_ROWS]

    def fields(of: Recorded) -> list[str]:
        return [of.field(QUANTIZED_ROWS[row], QUANTIZED_TYPES[name]) for row, name in rows]

    found = {of: some for of in recorded if any(some := fields(of))}
    names = [f"[{short_name(of.cpu)}]({folder}/{of.file}) |" for of in found]
    lines = [" ".join([QUANTIZED_HEADER, *names]), "|---|---|" + "---:|" * len(found)]
    for (row, name), *cells in zip(rows, *found.values(), strict=True):
        if any(cells):
            lines.append(" ".join([f"| {row} | {name} |", *(f"{cell} |" for cell in cells)]))
    return "\n".join(lines)


def brief(recorded: list[Recorded], folder: str) -> str:
    """A row for each class of CPU, named after its report in the folder."""
    lines = [" ".join([BRIEF_HEADER, *(f"{column} |" for column in BRIEF)]), "|---|" + "---:|" * len(BRIEF)]
    for of in recorded:
        fields = [of.field(ROWS[row], TYPES[name]) for name, row in BRIEF.values()]
        lines.append(" ".join([f"| [{short_name(of.cpu)}]({folder}/{of.file}) |", *(f"{field} |" for field in fields)]))
    return "\n".join(lines)


def reports(results: pathlib.Path) -> list[pathlib.Path]:
    """Of times; what was counted alone is something else."""
    return sorted(file for file in results.glob("*.md") if not file.stem.endswith("-counted"))


def update(page: pathlib.Path, results: pathlib.Path) -> None:
    """Puts tables of all that is recorded in place of those that the page has, one of each at most."""
    recorded = [read(file.read_text(), file.name) for file in reports(results)]
    text, folder, found = page.read_text(), os.path.relpath(results, page.parent), []
    for header, made in ((HEADER, table), (QUANTIZED_HEADER, quantized_table), (BRIEF_HEADER, brief)):
        new = made(recorded, folder)
        text, count = re.subn(rf"^{re.escape(header)}.*(\n\|.*)*", lambda _, new=new: new, text, flags=re.MULTILINE)
        found += [header] * count
    if not found or len(set(found)) < len(found):
        raise ValueError(f"{page} has these tables, not one of each at most: {', '.join(found) or 'none'}")
    page.write_text(text)
