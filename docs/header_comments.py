"""Prints a header as Doxygen wants it, for docs/Doxyfile: header_comments.py FILE.

Comments of the headers have no marks. Those above what they are of become ///, those behind it ///<, the first one of
the file says what the file is for. Indented lines are tables and drawings, which stay as they are.
"""

import itertools
import pathlib
import re
import sys
import textwrap

ALONE = re.compile(r"^(\s*)//(?: (.*))?$")
BEHIND = re.compile(r"^(\s*[^\s#}/].*?)  // (.*)$")
SPECIAL = re.compile(r"([\\@<>&#%])")
VERBATIM = "  "


def _escaped(text: str) -> str:
    return SPECIAL.sub(r"\\\1", text)


def _block(indent: str, texts: list[str]) -> list[str]:
    """The lines of a comment, with runs of those that are indented between marks, at the left."""
    out: list[str] = []
    for is_drawn, run in itertools.groupby(texts, lambda text: text.startswith(VERBATIM)):
        lines = textwrap.dedent("\n".join(run)).split("\n")
        lines = ["", "~~~{.txt}", *lines, "~~~", ""] if is_drawn else [_escaped(line) for line in lines]
        out += [f"{indent}/// {line}".rstrip() for line in lines]
    return out


def converted(source: str) -> str:
    lines, out, comment, column, first = source.splitlines(), [], [], -1, True
    for line in [*lines, ""]:
        alone, behind = ALONE.match(line), BEHIND.match(line)
        if alone and not comment and len(alone[1]) == column:  # goes on behind the line above
            out.append(f"{alone[1]}///< {_escaped(alone[2] or '')}")
            continue
        if alone:
            if not (alone[2] or "").startswith("NOLINT"):
                comment.append((alone[1], alone[2] or ""))
            continue
        if comment:
            head = ["/// \\file", *_block("", [text for _, text in comment])] if first else None
            out += head or _block(comment[0][0], [text for _, text in comment])
            comment = []
        first, column = False, -1
        if behind and not behind[2].startswith("NOLINT"):
            column = len(behind[1]) + 2
            out.append(f"{behind[1]}  ///< {_escaped(behind[2])}")
        else:
            out.append(line)
    return "\n".join(out) + "\n"


if __name__ == "__main__":
    print(converted(pathlib.Path(sys.argv[1]).read_text()), end="")
