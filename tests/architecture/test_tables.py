"""Each set has a table that everything else walks, so few files name a member of it.

Counted for the last member, which is in no example by chance: its own files, which say what it is or compute with it,
and at most three more, of which the table is one.
"""

import pathlib
import re

import pytest

MOST = 3
PRODUCT = ("include", "kernels", "ffi", "proto", "bench")
ENDINGS = (".h", ".cc", ".proto", ".py", ".sh")

KERNELS = {f"kernels/isa/{name}" for name in ("scalar.cc", "avx2.cc", "avx512.cc", "tile_gemm.h")}

# What there are several of, how the last one is named, in which folders, and the member's own files.
TABLES = [
    ("element formats", r"(?i)\bk?u32\b", PRODUCT, {"include/raggemm/types.h"}),
    (
        "optional operands",
        r"\bgroup_offset\b",
        PRODUCT,
        {
            *("include/raggemm/problem.h", "kernels/sizes.cc", "kernels/group_products.cc"),
            *("include/raggemm/moe_mlp.h", "kernels/moe_mlp.cc"),
        },
    ),
    ("optional operands in Python", r"\bgroup_offset\b", ("python/raggemm/_primitive",), set()),
    (
        "instruction sets",
        r'\bkScalar|\bSCALAR\b|"scalar\b',
        PRODUCT,
        {"include/raggemm/types.h", "kernels/isa/scalar.cc"},
    ),
    ("arithmetics", r"ArithmeticId::kTiles|\bkTiles,", PRODUCT, {"include/raggemm/arithmetic.h", *KERNELS}),
    ("kernels", r"\bScalarTraits<double>", PRODUCT, {"kernels/isa/scalar.cc"}),
]


def _naming(root: pathlib.Path, pattern: str, folders: tuple[str, ...]) -> set[str]:
    files = [f for folder in folders for f in (root / folder).rglob("*")]
    sources = [f for f in files if f.suffix in ENDINGS or f.name == "CMakeLists.txt"]
    return {f.relative_to(root).as_posix() for f in sources if re.search(pattern, f.read_text())}


@pytest.mark.parametrize(("pattern", "folders", "own"), [row[1:] for row in TABLES], ids=[row[0] for row in TABLES])
def test_few_files_name_the_last_member(root, pattern, folders, own):
    naming = _naming(root, pattern, folders)
    assert own <= naming, f"do not name it: {own - naming}"
    others = sorted(naming - own)
    assert len(others) <= MOST, others


def test_what_is_of_a_front_end_stands_where_contributing_says(root):
    compat = root / "python/raggemm/compat"
    names = {path.stem for path in compat.iterdir() if not path.name.startswith("_")}
    assert len(names) >= 8
    for file in (compat / "__init__.py", root / "python/tests/front_end_programs.py", root / "python/README.md"):
        assert names <= set(re.findall(r"\w+", file.read_text())), file
    tests = {path.stem for path in (root / "python/tests").glob("test_compat_*.py")}
    assert {f"test_compat_{name}" for name in names} <= tests
