"""Docstrings of the package as reStructuredText: they are plain text in Google's style, with tables and drawings.

Lines that are indented more than the text around them, and rows of tables, become literal blocks; marks of
reStructuredText are taken for what they are. Fields of a class that have a comment behind them are listed.
"""

import inspect
import re

SECTION = re.compile(r"(Args|Returns|Raises|Yields):$")
ITEM = re.compile(r"  \S[^:]*: ")
FIELD = re.compile(r"^    (\w+): (.+?)(?: = .*?)?  # (.+)$", re.MULTILINE)
MARKS = re.compile(r"([*|])")


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _escaped(line: str) -> str:
    parts = re.split(r"(`[^`]*`)", line)
    return "".join(part if part.startswith("`") else MARKS.sub(r"\\\1", part) for part in parts)


def as_rst(lines: list[str]) -> list[str]:
    out: list[str] = []
    section, base, drawn = "", 0, False
    for i, line in enumerate(lines):
        if not line.strip():
            later = next((x for x in lines[i:] if x.strip()), "")
            drawn = drawn and _indent(later) > base
            out.append("")
            continue
        if _indent(line) == 0:
            section = line if SECTION.match(line) else ""
            base = {"": 0, "Args:": 4, "Raises:": 4}.get(section, 2)
        is_item = section in ("Args:", "Raises:") and ITEM.match(line)
        is_drawn = not is_item and (_indent(line) > base or line.startswith("|"))
        if is_drawn and not drawn:
            out += ["", " " * base + "::", ""]
        elif drawn and not is_drawn:
            out.append("")
        drawn = is_drawn
        out.append(("  " + line) if drawn else line if SECTION.match(line) else _escaped(line))
    return out


def fields_of(thing: type) -> list[str]:
    """A list of the fields of a class, whose comments say what they are."""
    source = inspect.getsource(thing)
    found = FIELD.findall(source)
    return ["", *(f"* **{name}**: {_escaped(comment)}" for name, _, comment in found), ""] if found else []


def setup(app) -> None:
    def process(app, what: str, name: str, thing: object, options: object, lines: list[str]) -> None:
        more = fields_of(thing) if inspect.isclass(thing) else []
        lines[:] = as_rst(lines) + more

    def skip(app, what: str, name: str, thing: object, skipped: bool, options: object) -> bool | None:
        return True if type(thing).__name__ == "_tuplegetter" else None  # a field of a NamedTuple

    app.connect("autodoc-process-docstring", process, priority=400)  # before napoleon
    app.connect("autodoc-skip-member", skip)
