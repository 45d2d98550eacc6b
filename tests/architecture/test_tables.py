"""How many files name a member of each set: what a new one will touch. CONTRIBUTING has the table that this prints.

Members are those that need most, not those that a table alone describes. Counted are all files that people write; those
of tests that only use a member as an example have a column of their own.
"""

import re
import subprocess

import pytest

# What there are several of: members by the words that name them.
SETS = {
    "element format": {"int2": r"\b(s2|S2|kS2|int2)\b", "float4": r"(?i)\bk?f4e2m1fn\b|float4_e2m1fn|\be2m1\b"},
    "instruction set": {"avx_vnni": r"(?i)avx_?vnni", "amx": r"(?i)amx(?!pose)"},
    "optional operand": {"row_index": r"row_index"},
    "numeric rule": {"tiles": r"\bkTiles\b|\bTILES\b|\"tiles\"", "pairs": r"\bkPairs\b|\bPAIRS\b|\"pairs\""},
    "activation": {"swiglu_oai": r"(?i)swiglu_?oai", "gelu_tanh": r"(?i)gelu_?tanh"},
    "front end": {"sglang": r"(?i)sglang", "ejkernel": r"(?i)ejkernel", "tokamax": r"(?i)tokamax"},
    "custom call": {"moe_mlp_backward": r"(?i)moe_?mlp_?backward"},
    "way to read rhs": {
        "column blocks": r"BlocksOfColumnBlocks|FetchColumnBlocks|ways/column_blocks\.",
        "sweep": r"SweptStrip|BlocksOfSweeps|ways/sweep\.",
    },
}
WRITTEN_BY_COMMANDS = r"\.(png|base64)$|^CHANGELOG|/(corpus|results)/|(checksums|schedules|help|k_loops_gcc\d+)\.txt$"
NEEDED = r"^(include|kernels|ffi|proto|bench|cmake|dev$|CMakeLists|docs/|python/(raggemm|wheel))|\.md$"
ORACLES = r"^tests/(oracle|support)/|^python/tests/(?!.*test_)"


@pytest.fixture(scope="module")
def texts(root) -> dict[str, str]:
    listed = subprocess.run(["git", "-C", root, "ls-files"], capture_output=True, text=True, check=True).stdout.split()
    written = [name for name in listed if not re.search(WRITTEN_BY_COMMANDS, name) and (root / name).is_file()]
    return {name: (root / name).read_text() for name in written}


def counts(texts: dict[str, str], members: dict[str, str]) -> tuple[int, int, str]:
    """Of the member that most files name: those that it needs, those that use it as an example, and its name."""
    tables = ("CONTRIBUTING.md", "tests/architecture/test_tables.py")

    def of(member, pattern):
        naming = [name for name, text in texts.items() if re.search(pattern, text) and name not in tables]
        needed = [name for name in naming if re.search(f"{NEEDED}|{ORACLES}", name)]
        return len(needed), len(naming) - len(needed), member

    return max(of(*row) for row in members.items())


def test_contributing_says_how_many_files_a_new_member_touches(root, texts):
    rows = []
    for name, members in SETS.items():
        needed, examples, member = counts(texts, members)
        rows.append(f"| {name} | {member} | {needed} | {examples} |")
    print("\n".join(rows))
    page = (root / "CONTRIBUTING.md").read_text()
    assert not (missing := [row for row in rows if row not in page]), "\n".join(missing)


def test_what_is_of_a_front_end_stands_where_contributing_says(root):
    compat = root / "python/raggemm/compat"
    names = {path.stem for path in compat.iterdir() if not path.name.startswith("_")}
    assert len(names) >= 8
    for file in (compat / "__init__.py", root / "python/tests/front_end_programs.py", root / "README.md"):
        assert names <= set(re.findall(r"\w+", file.read_text())), file
    assert names <= {page.stem for page in (root / "docs/libraries").glob("*.md")}
    tests = {path.stem for path in (root / "python/tests").glob("test_compat_*.py")}
    assert {f"test_compat_{name}" for name in names} <= tests
