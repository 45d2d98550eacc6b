"""Dependencies point one way: each part of the C++ code may include what its rule lists, and nothing else.

python --loads .so--> ffi --> include <-- kernels --> kernels/isa    ffi --> proto    bench, tests --> everything
"""

import ast
import graphlib
import pathlib
import re

import pytest

STD = r"<[a-z_]+>"
ABSL = r'"absl/.*"'
API = r'"raggemm/.*"'
PROTO = r'"proto/.*"'
PROTOBUF = r'"google/protobuf/.*"'
PYTHON = "python/raggemm"

# The first pattern that matches a file is its rule: regular expressions of the includes it may have.
RULES = [
    (r"include/raggemm/(types|arithmetic|activation)\.h", ["<cstdint>", '"raggemm/types.h"']),
    (r"include/raggemm/.*", [STD, ABSL, API]),
    # Compiled for one instruction set: an inline function of any other header could end up on every CPU.
    (
        r"kernels/isa/.*",
        [
            "<immintrin.h>",
            "<cstddef>",
            "<cstdint>",
            "<type_traits>",
            '"kernels/microkernel.h"',
            r'"kernels/isa/\w+\.h"',
            r'"raggemm/(types|activation)\.h"',
        ],
    ),
    (r"kernels/microkernel\.h", ["<cstddef>", "<cstdint>", r'"raggemm/(types|arithmetic|activation)\.h"']),
    (r"kernels/parallel_for\.cc", [STD, ABSL, API, r'"kernels/\w+\.h"', "<omp.h>", r"<pthread\.h>"]),
    (r"kernels/fork\.cc", [STD, API, r'"kernels/\w+\.h"', r"<pthread\.h>"]),
    (
        r"kernels/(cpu|cpuid|isa|units)\.cc",
        [STD, ABSL, API, r'"kernels/\w+\.h"', r"<cpuid\.h>", r"<unistd\.h>", r"<sys/syscall\.h>"],
    ),
    (r"kernels/.*", [STD, ABSL, API, r'"kernels/\w+\.h"', r"<sys/mman\.h>", r"<unistd\.h>"]),
    (r"proto/.*", [STD, ABSL, PROTO, PROTOBUF]),
    (r"ffi/xla_versions\.h", ["<cstddef>", '"xla/ffi/api/c_api.h"']),
    (
        r"ffi/host/mini_host\..*",
        [STD, r"<dlfcn\.h>", '"xla/ffi/api/c_api.h"', '"ffi/xla_versions.h"', '"ffi/host/mini_host.h"'],
    ),
    # reference.h is the oracle, element.h the number formats it reads.
    (r"ffi/host/.*", [STD, ABSL, API, PROTO, PROTOBUF, r'"ffi/.*"', r'"kernels/(reference|element)\.h"']),
    (r"ffi/handlers\.h", ["<stdint.h>", '"xla/ffi/api/c_api.h"']),  # C, for whoever registers the call by hand
    (r"ffi/huge_pages\.cc", [STD, r'"ffi/\w+\.h"', r"<sys/mman\.h>"]),
    (r"ffi/.*", [STD, ABSL, API, PROTO, PROTOBUF, r'"ffi/\w+\.h"', r'"xla/ffi/api/\w+\.h"']),
    (r"(tests|bench)/.*", [r".*"]),
]


def _rule(path: str) -> int:
    return next(i for i, (pattern, _) in enumerate(RULES) if re.fullmatch(pattern, path))


def _may_include(path: str, include: str) -> bool:
    return any(re.fullmatch(allowed, include) for allowed in RULES[_rule(path)][1])


def _sources(root: pathlib.Path) -> list[str]:
    folders = ("include", "kernels", "proto", "ffi", "tests", "bench")
    files = [f for folder in folders for f in (root / folder).rglob("*") if f.suffix in (".h", ".cc")]
    return sorted(f.relative_to(root).as_posix() for f in files)


def _includes(text: str) -> list[str]:
    return re.findall(r'^\s*#\s*include\s*(<[^>]+>|"[^"]+"|\S+)', text, re.MULTILINE)


def test_every_include_is_allowed(root):
    wrong = [
        f"{path} includes {include}"
        for path in _sources(root)
        for include in _includes((root / path).read_text())
        if not _may_include(path, include)
    ]
    assert not wrong, "\n".join(wrong)


def test_every_rule_has_files(root):
    used = {_rule(path) for path in _sources(root)}
    assert used == set(range(len(RULES)))


@pytest.mark.parametrize(
    ("path", "line"),
    [
        ("include/raggemm/types.h", "#include <cstddef>"),
        ("include/raggemm/plan.h", '#include "kernels/problem.h"'),
        ("kernels/isa/avx512.cc", "#include <algorithm>"),
        ("kernels/isa/tile_gemm.h", '#  include "absl/types/span.h"'),
        ("kernels/plan.cc", "#include <omp.h>"),
        ("kernels/plan.cc", '#include "proto/config.pb.h"'),
        ("kernels/plan.cc", '#include "kernels/isa/tile_gemm.h"'),
        ("ffi/handlers.cc", '#include "kernels/problem.h"'),
        ("ffi/handlers.cc", '#include "ffi/host/mini_host.h"'),
        ("ffi/host/mini_host.cc", '#include "ffi/handlers.h"'),
        ("ffi/host/ffi_driver.cc", '#include "kernels/plan.h"'),
    ],
)
def test_forbidden_includes_are_found(path, line):
    (include,) = _includes(line)
    assert not _may_include(path, include)


def test_public_headers_have_no_conditions(root):
    for header in (root / "include" / "raggemm").glob("*.h"):
        guard = f"RAGGEMM_{header.stem.upper()}_H_"
        conditions = re.findall(r"^\s*#\s*(?:if|ifdef|ifndef|elif)\b.*", header.read_text(), re.MULTILINE)
        assert conditions == [f"#ifndef {guard}"], header.name


def _python_imports(root: pathlib.Path) -> dict[str, set[str]]:
    """The modules of the package that each of them imports; a package is its __init__.py."""
    sources = {path.relative_to(root / "python").with_suffix(""): path for path in (root / PYTHON).rglob("*.py")}
    names = {".".join(path.parts).removesuffix(".__init__"): source for path, source in sources.items()}
    imports: dict[str, set[str]] = {}
    for name, source in names.items():
        nodes = [node for node in ast.walk(ast.parse(source.read_text())) if isinstance(node, ast.ImportFrom)]
        both = [(node.module, f"{node.module}.{alias.name}") for node in nodes for alias in node.names]
        imports[name] = {one if one in names else package for package, one in both if package in names}
    return imports


def test_python_modules_import_one_way(root):
    imports = _python_imports(root)
    assert len(list(graphlib.TopologicalSorter(imports).static_order())) == len(imports)  # CycleError where they do not
    up = {name: {x for x in of if "._primitive" not in x} for name, of in imports.items() if "._primitive" in name}
    assert up and not any(up.values()), up


def test_python_loads_the_library_and_nothing_else(root):
    for source in (root / PYTHON).rglob("*.py"):
        if source.name != "library.py":
            assert "ctypes" not in source.read_text(), f"only library.py loads the library, not {source.name}"
