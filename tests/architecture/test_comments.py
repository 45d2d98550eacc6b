"""Comments are plain English: each begins with what it is about, and can be understood without the one before it."""

import re

import pytest

FOLDERS = ("include", "kernels", "proto", "ffi", "tests", "bench", "python", "cmake", "docs", "dev", "CMakeLists.txt")
ENDINGS = {".h": "//", ".cc": "//", ".proto": "//", ".py": "#", ".sh": "#", ".cmake": "#", ".txt": "#", "": "#"}
# A comment that begins so leans on the line above it, or begins with what it is not about.
WORST = re.compile(r"(Of|That|Those|Likewise|Whose|Which) ")


def beginnings(text: str, mark: str) -> list[tuple[int, str]]:
    """The first lines of comments that have lines of their own, with their numbers."""
    lines = [line.strip() for line in text.splitlines()]
    before = ["", *lines]
    begin = [i for i, line in enumerate(lines) if line.startswith(f"{mark} ") and not before[i].startswith(mark)]
    return [(i + 1, lines[i].removeprefix(f"{mark} ")) for i in begin]


@pytest.mark.parametrize("folder", FOLDERS)
def test_comments_begin_with_what_they_are_about(root, folder):
    whole = root / folder
    files = [whole] if whole.is_file() else [f for f in sorted(whole.rglob("*")) if f.is_file()]
    sources = [f for f in files if f.suffix in ENDINGS and (f.suffix != ".txt" or f.name == "CMakeLists.txt")]
    found = [
        f"{file.relative_to(root)}:{line}: {text}"
        for file in sources
        for line, text in beginnings(file.read_text(), ENDINGS[file.suffix])
        if WORST.match(text)
    ]
    assert sources and not found, "\n".join(found)


def test_the_worst_beginnings_are_found():
    text = "// Of those.\nint x;\n  // Likewise the\n  // Which is long.\n// Reads it.\nint y;  // Of y\n"
    assert beginnings(text, "//") == [(1, "Of those."), (3, "Likewise the")]
    assert [bool(WORST.match(text)) for _, text in beginnings(text, "//")] == [True, True]
