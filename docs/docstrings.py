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
OPENER = re.compile(r"\s*(- |\d\. )")  # of an item of a list


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _escaped(line: str) -> str:
    parts = re.split(r"(`[^`]*`)", line)
    return "".join(part if part.startswith("`") else MARKS.sub(r"\\\1", part) for part in parts)


class _Writer:
    """What is written so far, and what the lines that follow belong to."""

    def __init__(self) -> None:
        self.out: list[str] = []
        self.section = ""
        self.base = 0  # the indent of text
        self.item = -1  # the indent of the list that is open, and of its text
        self.text = 0
        self.is_drawn = False

    def add(self, line: str) -> None:
        indent = _indent(line)
        if indent == 0:
            self.section = line if SECTION.match(line) else ""
            self.base = {"": 0, "Args:": 4, "Raises:": 4}.get(self.section, 2)
        opener = OPENER.match(line)
        opens = bool(opener) and indent in (self.base, self.item)
        if opens != (self.item >= 0) and (opens or indent <= self.item) and not self.is_drawn:
            self.out.append("")  # around lists
        if opener and opens:
            self.item, self.text = indent, opener.end()
        elif indent <= self.item:
            self.item = -1
        text = max(self.base, self.text if self.item >= 0 else 0)
        is_named = self.section in ("Args:", "Raises:") and ITEM.match(line)
        is_drawn = not (is_named or opens) and (indent > text or line.startswith("|"))
        if is_drawn and not self.is_drawn:
            self.out += ["", " " * text + "::", ""]
        elif self.is_drawn and not is_drawn:
            self.out.append("")
        self.is_drawn = is_drawn
        self.out.append("  " + line if is_drawn else line if SECTION.match(line) else _escaped(line))

    def add_empty(self, following: str) -> None:
        self.is_drawn = self.is_drawn and _indent(following) > self.base
        self.out.append("")


def as_rst(lines: list[str]) -> list[str]:
    writer = _Writer()
    for i, line in enumerate(lines):
        if line.strip():
            writer.add(line)
        else:
            writer.add_empty(next((later for later in lines[i:] if later.strip()), ""))
    return writer.out


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
