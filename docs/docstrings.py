"""Converts docstrings of the package to reStructuredText. They are plain text in Google style, with tables.

Tables, and lines that are indented more than the text around them, become literal blocks. Markup characters of
reStructuredText are escaped.
"""

import inspect
import re

SECTION = re.compile(r"(Args|Returns|Raises|Yields):$")
ITEM = re.compile(r"  \S[^:]*: ")
FIELD = re.compile(r"^    (\w+): (.+?)(?: = .*?)?  # (.+)$", re.MULTILINE)
MARKS = re.compile(r"([*|])")
OPENER = re.compile(r"\s*(- |\d\. )")  # start of a list item


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _escaped(line: str) -> str:
    parts = re.split(r"(`[^`]*`)", line)
    return "".join(part if part.startswith("`") else MARKS.sub(r"\\\1", part) for part in parts)


class _Writer:
    """Collects converted lines, and tracks the section, list and literal block of the last line."""

    def __init__(self) -> None:
        self.out: list[str] = []
        self.section = ""
        self.base = 0  # indent of the text of the section
        self.item = -1  # indent of the open list; -1: none
        self.text = 0  # indent of the text of a list item
        self.is_literal = False

    def add(self, line: str) -> None:
        indent = _indent(line)
        if indent == 0:
            self.section = line if SECTION.match(line) else ""
            self.base = {"": 0, "Args:": 4, "Raises:": 4}.get(self.section, 2)
        opener = OPENER.match(line)
        opens = bool(opener) and indent in (self.base, self.item)
        if opens != (self.item >= 0) and (opens or indent <= self.item) and not self.is_literal:
            self.out.append("")  # Separates lists from text.
        if opener and opens:
            self.item, self.text = indent, opener.end()
        elif indent <= self.item:
            self.item = -1
        text = max(self.base, self.text if self.item >= 0 else 0)
        is_named = self.section in ("Args:", "Raises:") and ITEM.match(line)
        is_literal = not (is_named or opens) and (indent > text or line.startswith("|"))
        if is_literal and not self.is_literal:
            self.out += ["", " " * text + "::", ""]
        elif self.is_literal and not is_literal:
            self.out.append("")
        self.is_literal = is_literal
        self.out.append("  " + line if is_literal else line if SECTION.match(line) else _escaped(line))

    def add_empty(self, following: str) -> None:
        self.is_literal = self.is_literal and _indent(following) > self.base
        self.out.append("")


def as_rst(lines: list[str]) -> list[str]:
    writer = _Writer()
    for i, line in enumerate(lines):
        if line.strip():
            writer.add(line)
        else:
            writer.add_empty(next((later for later in lines[i:] if later.strip()), ""))
    return writer.out


def list_fields(thing: type) -> list[str]:
    """Returns the fields of a class that have a trailing comment, as a list in reStructuredText."""
    source = inspect.getsource(thing)
    found = FIELD.findall(source)
    return ["", *(f"* **{name}**: {_escaped(comment)}" for name, _, comment in found), ""] if found else []


def setup(app) -> None:
    def process(app, what: str, name: str, thing: object, options: object, lines: list[str]) -> None:
        more = list_fields(thing) if inspect.isclass(thing) else []
        lines[:] = as_rst(lines) + more

    def skip(app, what: str, name: str, thing: object, skipped: bool, options: object) -> bool | None:
        return True if type(thing).__name__ == "_tuplegetter" else None  # Skips fields of NamedTuples.

    # Runs `process` before Sphinx's napoleon extension, which has priority 500.
    app.connect("autodoc-process-docstring", process, priority=400)
    app.connect("autodoc-skip-member", skip)
