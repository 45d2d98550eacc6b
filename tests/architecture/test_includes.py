"""Tests that C++ files include only the headers that RULES allow. The main rules:

    python --loads .so--> ffi --> include <-- kernels
                          ffi --> proto
                 tests/oracle --> include
            bench, most tests --> everything

In kernels:

    mlp --> run --> plan --> check
                    plan --> threads --> target --> isa/microkernel.h
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
ORACLE = r'"tests/oracle/\w+\.h"'
PYTHON = "python/raggemm"

MICROKERNEL = '"kernels/isa/microkernel.h"'
TARGET = r'"kernels/target/(isa|target)\.h"'
CHECK = r'"kernels/check/\w+\.h"'
THREADS = r'"kernels/threads/\w+\.h"'
PLAN = r'"kernels/plan/\w+\.h"'
RUN = r'"kernels/run/\w+\.h"'
MLP = r'"kernels/mlp/\w+\.h"'
MACHINE = [STD, ABSL, API, MICROKERNEL, TARGET]
PLANNED = [*MACHINE, CHECK, r'"kernels/threads/team\.h"', PLAN]

# (pattern of files, patterns of allowed includes). For each file, the first rule whose pattern matches applies.
RULES = [
    (r"include/raggemm/(types|arithmetic|activation)\.h", ["<cstdint>", '"raggemm/types.h"']),
    (r"include/raggemm/.*", [STD, ABSL, API]),
    (r"kernels/isa/microkernel\.h", ["<cstddef>", "<cstdint>", r'"raggemm/(types|arithmetic|activation)\.h"']),
    # Kernels must not include inline functions of other headers. The linker could use a version for one instruction set
    # in all code.
    (
        r"kernels/isa/.*",
        [
            "<immintrin.h>",
            "<arm_neon.h>",
            "<cstddef>",
            "<cstdint>",
            "<type_traits>",
            r'"kernels/isa/\w+\.h"',
            r'"raggemm/(types|activation)\.h"',
        ],
    ),
    (r"kernels/target/.*", [*MACHINE, r'"kernels/target/\w+\.h"', r"<(cpuid|unistd|sys/auxv|sys/syscall)\.h>"]),
    (r"kernels/check/.*", [STD, ABSL, API, CHECK]),
    (r"kernels/threads/.*", [*MACHINE, THREADS, "<omp.h>", r"<pthread\.h>"]),
    (r"kernels/plan/.*", PLANNED),
    (r"kernels/run/.*", [*PLANNED, r'"kernels/threads/fork\.h"', RUN, r"<sys/mman\.h>"]),
    (r"kernels/mlp/.*", [*PLANNED, RUN, MLP]),
    (r"proto/.*", [STD, ABSL, PROTO, PROTOBUF]),
    (r"tests/host/xla_versions\.h", ["<cstddef>", '"xla/ffi/api/c_api.h"']),
    (r"tests/(oracle|host)/\w+_test\.cc", [r".*"]),
    (
        r"tests/host/mini_host\..*",
        [STD, r"<dlfcn\.h>", '"xla/ffi/api/c_api.h"', '"tests/host/xla_versions.h"', '"tests/host/mini_host.h"'],
    ),
    (r"tests/host/.*", [STD, ABSL, API, PROTO, PROTOBUF, r'"(ffi|tests/host)/\w+\.h"', ORACLE]),
    (r"ffi/handlers\.h", ["<stdint.h>", '"xla/ffi/api/c_api.h"']),  # C header for manual registration of custom calls
    (r"ffi/decode\.cc", [STD, ABSL, API, r'"(ffi/\w+|kernels/check/errors)\.h"', r"<sys/mman\.h>"]),
    (r"ffi/.*", [STD, ABSL, API, PROTO, PROTOBUF, r'"(ffi/\w+|kernels/check/errors)\.h"', r'"xla/ffi/api/\w+\.h"']),
    # The oracle must not share code with the library.
    (r"tests/oracle/.*", [STD, ABSL, API, ORACLE, r"<(sys/auxv|sys/syscall|unistd)\.h>"]),
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
        ("include/raggemm/plan.h", '#include "kernels/check/problem.h"'),
        ("kernels/isa/avx512.cc", "#include <algorithm>"),
        ("kernels/isa/tile_gemm.h", '#  include "absl/types/span.h"'),
        ("kernels/plan/schedule.cc", "#include <omp.h>"),
        ("kernels/plan/schedule.cc", '#include "proto/config.pb.h"'),
        ("kernels/plan/schedule.cc", '#include "kernels/isa/tile_gemm.h"'),
        ("kernels/check/problem.cc", '#include "kernels/plan/schedule.h"'),
        ("kernels/check/problem.cc", '#include "kernels/isa/microkernel.h"'),
        ("kernels/target/isa.cc", '#include "kernels/check/problem.h"'),
        ("kernels/threads/team.cc", '#include "kernels/plan/schedule.h"'),
        ("kernels/plan/rhs_mode.cc", '#include "kernels/run/prefetch.h"'),
        ("kernels/run/run.cc", '#include "kernels/mlp/check.h"'),
        ("kernels/run/run.cc", '#include "kernels/target/x86_probe.h"'),
        ("ffi/calls.cc", '#include "kernels/check/problem.h"'),
        ("tests/oracle/rule.cc", '#include "kernels/plan/select_kernels.h"'),
        ("tests/oracle/bits.h", '#include "gtest/gtest.h"'),
        ("ffi/handlers.cc", '#include "tests/host/mini_host.h"'),
        ("tests/host/mini_host.cc", '#include "ffi/handlers.h"'),
        ("tests/host/ffi_driver.cc", '#include "kernels/plan/schedule.h"'),
    ],
)
def test_forbidden_includes_are_found(path, line):
    (include,) = _includes(line)
    assert not _may_include(path, include)


def test_public_headers_have_no_conditions(root):
    for header in (root / "include" / "raggemm").glob("*.h"):
        assert not re.search(r"^\s*#\s*(?:if|ifdef|ifndef|elif)\b", header.read_text(), re.MULTILINE), header.name


def _python_imports(root: pathlib.Path) -> dict[str, set[str]]:
    """Returns the imports of each module."""
    sources = {path.relative_to(root / "python").with_suffix(""): path for path in (root / PYTHON).rglob("*.py")}
    names = {".".join(path.parts).removesuffix(".__init__"): source for path, source in sources.items()}
    imports: dict[str, set[str]] = {}
    for name, source in names.items():
        nodes = [node for node in ast.walk(ast.parse(source.read_text())) if isinstance(node, ast.ImportFrom)]
        both = [(node.module, f"{node.module}.{alias.name}") for node in nodes for alias in node.names]
        imports[name] = {one if one in names else package for package, one in both if package in names}
    return imports


def test_python_modules_import_one_way(root):
    """A module of _src imports only modules that the docstring of _src lists before it."""
    imports = _python_imports(root)
    assert len(list(graphlib.TopologicalSorter(imports).static_order())) == len(
        imports
    )  # Raises CycleError for cycles.
    private = {name: modules for name, modules in imports.items() if "._" in name}
    wrong = [f"{name} imports {x}" for name, modules in private.items() for x in modules if "._" not in x]
    rows = re.findall(r"^    (\w[\w, ]*?)(?:  .*)?$", (root / PYTHON / "_src/__init__.py").read_text(), re.MULTILINE)
    order = [f"raggemm._src.{name}" for name in re.findall(r"\w+", " ".join(rows))]
    assert set(order) == {name for name in imports if name.startswith("raggemm._src.")}
    wrong += [f"{name} imports {x}" for i, name in enumerate(order) for x in imports[name] if x not in order[:i]]
    assert not wrong, "\n".join(wrong)


def test_python_loads_the_library_and_nothing_else(root):
    for source in (root / PYTHON).rglob("*.py"):
        if source.name != "library.py":
            assert "ctypes" not in source.read_text(), f"only library.py loads the library, not {source.name}"


def test_only_targets_and_kernels_know_an_architecture(root):
    """In kernels/, only isa and target name instruction sets, CPUs or vendors, except in comments."""
    named = re.compile(r"avx|amx|vnni|sse\d|ia32|x86|neon|aarch64|zen\d|intel|amd\b|immintrin|MXCSR", re.IGNORECASE)
    folders = [root / "kernels" / name for name in ("check", "plan", "run", "mlp", "threads")]
    for path in [file for folder in folders for file in folder.iterdir()]:
        code = re.sub(r"//.*", "", path.read_text())
        assert not (found := named.findall(code)), f"{path}: {found}"
