"""Files of up to 400 lines, lines of up to 120 characters."""

import pathlib
import re

import pytest

FOLDERS = ("include", "kernels", "proto", "ffi", "tests", "bench", "python", "cmake", "docs")
ENDINGS = (".h", ".c", ".cc", ".proto", ".py", ".sh", ".in")
FILE_LINES = 400
LINE_CHARACTERS = 120


def _sources(root: pathlib.Path) -> list[pathlib.Path]:
    files = [f for folder in FOLDERS for f in (root / folder).rglob("*")]
    sources = [f for f in files if f.suffix in ENDINGS or f.name == "CMakeLists.txt"]
    return [*sources, root / "CMakeLists.txt", root / "dev"]


def _without_tables(markdown: str) -> str:
    """The same text with empty lines for rows of tables and for blocks of no language, which are output."""

    def kept(block: re.Match) -> str:
        return block[0] if block[1] else "\n" * block[0].count("\n")

    text = re.sub(r"^```(\w*)\n.*?^```$", kept, markdown, flags=re.MULTILINE | re.DOTALL)
    return re.sub(r"^\|.*", "", text, flags=re.MULTILINE)


def _long_lines(text: str) -> list[int]:
    return [number for number, line in enumerate(text.splitlines(), 1) if len(line) > LINE_CHARACTERS]


def test_files_are_short(root):
    long = {str(f.relative_to(root)): n for f in _sources(root) if (n := len(f.read_text().splitlines())) > FILE_LINES}
    assert not long


def test_lines_are_short(root):
    texts = {f: f.read_text() for f in _sources(root)}
    folders = [root / name for name in ("docs", "ffi", "include", "python")]
    pages = [*root.glob("*.md"), *(f for folder in folders for f in folder.rglob("*.md"))]
    texts |= {f: _without_tables(f.read_text()) for f in pages}
    assert {"README.md", "dev", "plan.cc", "ops.py"} <= {f.name for f in texts}
    long = [f"{f.relative_to(root)}:{number}" for f, text in texts.items() for number in _long_lines(text)]
    assert not long, "\n".join(long)


LONG = "x" * 121


@pytest.mark.parametrize(
    ("markdown", "long"),
    [
        (f"short\n{LONG}", [2]),
        (f"| {LONG} |\n{LONG}", [2]),
        (f"```\n{LONG}\n```\n{LONG}", [4]),
        (f"```cpp\n{LONG}\n```\n\n```\n{LONG}\n```\n{LONG}", [2, 8]),
    ],
)
def test_long_lines_of_markdown_are_found(markdown, long):
    assert _long_lines(_without_tables(markdown)) == long
