"""Dependencies point one way: each part of the C++ code may include what its rule lists, and nothing else.

python --loads .so--> ffi --> include <-- kernels    ffi --> proto    bench, tests --> everything
                                                         tests/oracle --> include

Within kernels: run --> ways --> schedule --> checks, and machine: microkernel.h, isa, target
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

BASE = r'"kernels/(errors|enumerators|workspace)\.h"'
MICROKERNEL = '"kernels/microkernel.h"'
TARGET = r'"kernels/target/\w+\.h"'
CHECKS = "checked|problem|operand_types|quantization|sizes|buffers|places|fill|moe_mlp|moe_mlp_workspace"
CHECKED = rf'"kernels/({CHECKS})\.h"'
SCHEDULE = "schedule|recipe|tile|choices|factors"
SCHEDULED = rf'"kernels/({SCHEDULE}|isa)\.h"'
WAYS = r'"kernels/(block|ways/\w+)\.h"'

# The first pattern that matches a file is its rule: regular expressions of the includes it may have.
RULES = [
    (r"include/raggemm/(types|arithmetic|activation)\.h", ["<cstdint>", '"raggemm/types.h"']),
    (r"include/raggemm/.*", [STD, ABSL, API]),
    # Compiled for one instruction set: an inline function of any other header could end up on every CPU.
    (
        r"kernels/isa/.*",
        [
            "<immintrin.h>",
            "<arm_neon.h>",
            "<cstddef>",
            "<cstdint>",
            "<type_traits>",
            '"kernels/microkernel.h"',
            r'"kernels/isa/\w+\.h"',
            r'"raggemm/(types|activation)\.h"',
        ],
    ),
    (r"kernels/microkernel\.h", ["<cstddef>", "<cstdint>", r'"raggemm/(types|arithmetic|activation)\.h"']),
    (r"kernels/target/.*", [STD, ABSL, API, MICROKERNEL, TARGET, r"<(cpuid|unistd|sys/auxv|sys/syscall)\.h>"]),
    # From what a machine has, and what a call says, to the schedule, to the ways of tiles, to the sums.
    (
        r"kernels/(isa|cpu|environment)\..*",
        [STD, ABSL, API, BASE, MICROKERNEL, TARGET, r'"kernels/isa\.h"'],
    ),
    (rf"kernels/({CHECKS}|errors|enumerators|workspace)\..*", [STD, ABSL, API, BASE, CHECKED]),
    (rf"kernels/({SCHEDULE})\..*", [STD, ABSL, API, BASE, CHECKED, MICROKERNEL, SCHEDULED]),
    (r"kernels/(block\..*|ways/.*)", [STD, ABSL, API, BASE, CHECKED, MICROKERNEL, SCHEDULED, WAYS]),
    (r"kernels/parallel_for\.cc", [STD, ABSL, API, r'"kernels/(\w+|target/target)\.h"', "<omp.h>", r"<pthread\.h>"]),
    (r"kernels/fork\.cc", [STD, API, r'"kernels/\w+\.h"', r"<pthread\.h>"]),
    (r"kernels/.*", [STD, ABSL, API, r'"kernels/(\w+|target/target|ways/way)\.h"', r"<sys/mman\.h>", r"<unistd\.h>"]),
    (r"proto/.*", [STD, ABSL, PROTO, PROTOBUF]),
    (r"tests/host/xla_versions\.h", ["<cstddef>", '"xla/ffi/api/c_api.h"']),
    (r"tests/(oracle|host)/\w+_test\.cc", [r".*"]),
    (
        r"tests/host/mini_host\..*",
        [STD, r"<dlfcn\.h>", '"xla/ffi/api/c_api.h"', '"tests/host/xla_versions.h"', '"tests/host/mini_host.h"'],
    ),
    (r"tests/host/.*", [STD, ABSL, API, PROTO, PROTOBUF, r'"(ffi|tests/host)/\w+\.h"', ORACLE]),
    (r"ffi/handlers\.h", ["<stdint.h>", '"xla/ffi/api/c_api.h"']),  # C, for whoever registers the call by hand
    (r"ffi/decode\.cc", [STD, ABSL, API, r'"(ffi/\w+|kernels/errors)\.h"', r"<sys/mman\.h>"]),
    (r"ffi/.*", [STD, ABSL, API, PROTO, PROTOBUF, r'"(ffi/\w+|kernels/errors)\.h"', r'"xla/ffi/api/\w+\.h"']),
    # What must come out is decided by nothing that decides what does.
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
        ("include/raggemm/plan.h", '#include "kernels/problem.h"'),
        ("kernels/isa/avx512.cc", "#include <algorithm>"),
        ("kernels/isa/tile_gemm.h", '#  include "absl/types/span.h"'),
        ("kernels/plan.cc", "#include <omp.h>"),
        ("kernels/plan.cc", '#include "proto/config.pb.h"'),
        ("kernels/plan.cc", '#include "kernels/isa/tile_gemm.h"'),
        ("kernels/problem.cc", '#include "kernels/schedule.h"'),
        ("kernels/problem.cc", '#include "kernels/microkernel.h"'),
        ("kernels/isa.cc", '#include "kernels/problem.h"'),
        ("kernels/choices.cc", '#include "kernels/ways/way.h"'),
        ("kernels/choices.cc", '#include "kernels/target/target.h"'),
        ("kernels/ways/pack.cc", '#include "kernels/fetch.h"'),
        ("kernels/run.cc", '#include "kernels/target/x86_probe.h"'),
        ("ffi/calls.cc", '#include "kernels/problem.h"'),
        ("tests/oracle/rule.cc", '#include "kernels/choices.h"'),
        ("tests/oracle/bits.h", '#include "gtest/gtest.h"'),
        ("ffi/handlers.cc", '#include "tests/host/mini_host.h"'),
        ("tests/host/mini_host.cc", '#include "ffi/handlers.h"'),
        ("tests/host/ffi_driver.cc", '#include "kernels/schedule.h"'),
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


def test_only_targets_and_kernels_know_an_architecture(root):
    """All else of kernels/ names none of its instruction sets, CPUs or vendors; comments do, beside figures."""
    named = re.compile(r"avx|amx|vnni|sse\d|ia32|x86|neon|aarch64|zen\d|intel|amd\b|immintrin|MXCSR", re.IGNORECASE)
    for path in [*(root / "kernels").glob("*.[ch]*"), *(root / "kernels/ways").glob("*.[ch]*")]:
        code = re.sub(r"//.*", "", path.read_text())
        assert not (found := named.findall(code)), f"{path}: {found}"
