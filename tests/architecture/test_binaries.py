"""Tests the symbols, linked libraries and instructions of the built libraries."""

import pathlib
import re
import subprocess

import pytest

EXPORTS = {
    "raggemm_grouped_gemm_v1_instantiate",
    "raggemm_grouped_gemm_v1_execute",
    "raggemm_v1_workspace_coefficients",
    "raggemm_moe_mlp_v1_instantiate",
    "raggemm_moe_mlp_v1_execute",
    "raggemm_v1_moe_mlp_workspace",
    "raggemm_moe_mlp_backward_v1_instantiate",
    "raggemm_moe_mlp_backward_v1_execute",
    "raggemm_v1_moe_mlp_backward_workspace",
    "raggemm_plan_text",
    "raggemm_record_plans",
    "raggemm_take_plans",
    "raggemm_describe_json",
    "raggemm_tables_json",
    "raggemm_free",
    "raggemm_version",
    "raggemm_ffi_version",
}
# External symbols that object files of every ISA may use: GCC inserts references to them. Scalar code may also call
# libm's fma and libgcc's f16 conversions.
RUNTIME = {"memcpy", "memset", "memmove", "_GLOBAL_OFFSET_TABLE_"}
SCALAR_RUNTIME = {"fma", "fmaf", "__extendhfsf2", "__extendhfdf2", "__truncsfhf2", "__truncdfhf2"}
ISAS = ["scalar", "avx2", "avx_vnni", "avx512", "avx512_bf16", "avx512_vnni", "amx"]
OTHER_TARGETS = {"neon", "neon_bf16", "neon_dotprod", "neon_i8mm"}
LIBRARIES = ["libraggemm_ffi.so", "libraggemm_proto.so"]
# Libraries that raggemm's libraries may link, as in DEPENDENCIES.md.
NEEDED = r"lib(?:raggemm_proto|absl_\w+|protobuf|gomp|stdc\+\+|gcc_s|m|c)\.so[.\d]*|ld-linux-x86-64\.so\.2"


def _run(*command: str | pathlib.Path) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def _symbols(*options: str | pathlib.Path) -> list[tuple[str, str]]:
    """Returns (type letter, name) of each symbol that nm lists."""
    lines = [line.split() for line in _run("nm", *options).splitlines()]
    return [(fields[-2], fields[-1]) for fields in lines if len(fields) >= 2]


def _isa_object(build: pathlib.Path, isa: str) -> pathlib.Path:
    return build / "kernels" / "CMakeFiles" / "raggemm.dir" / "isa" / f"{isa}.cc.o"


def test_plugin_exports_only_its_c_functions(build):
    symbols = _symbols("-D", "--defined-only", build / "lib" / "libraggemm_ffi.so")
    assert {name for _, name in symbols} == EXPORTS


@pytest.mark.parametrize("library", LIBRARIES)
def test_libraries_find_each_other_by_a_relative_path(build, library):
    dynamic = _run("readelf", "-d", build / "lib" / library)
    assert re.findall(r"\((?:RUNPATH|RPATH)\).*\[(.*)\]", dynamic) == ["$ORIGIN"]


@pytest.mark.parametrize("library", LIBRARIES)
def test_libraries_need_what_is_listed(build, library):
    needed = re.findall(r"\(NEEDED\).*\[(.*)\]", _run("readelf", "-d", build / "lib" / library))
    assert "libc.so.6" in needed
    assert [name for name in needed if not re.fullmatch(NEEDED, name)] == []


@pytest.mark.parametrize("library", LIBRARIES)
def test_libraries_are_hardened(build, library):
    segments = _run("readelf", "-lW", build / "lib" / library)
    (stack,) = re.findall(r"GNU_STACK.*", segments)
    assert " RW " in stack
    assert "GNU_RELRO" in segments
    assert re.search(r"FLAGS_1.*\bNOW\b", _run("readelf", "-d", build / "lib" / library))


@pytest.mark.parametrize("library", LIBRARIES)
def test_libraries_read_little_of_the_environment(build, library):
    imported = {name.partition("@")[0] for _, name in _symbols("-D", "--undefined-only", build / "lib" / library)}
    assert imported
    expected = {"getenv"} if library == "libraggemm_ffi.so" else set()
    assert imported & {"getenv", "secure_getenv", "environ", "__environ"} == expected


# Environment variables whose names the library must contain. The linker may store OMP_STACKSIZE as the end of
# GOMP_STACKSIZE, so it is not listed.
VARIABLES = {f"RAGGEMM_{name}" for name in ("ISA", "THREADS", "EXECUTOR", "BF16_SUMS")}
VARIABLES |= {"GOMP_STACKSIZE", "OMP_STACKSIZE_ALL"}


def test_plugin_reads_known_variables_of_the_environment(build):
    texts = _run("strings", build / "lib" / "libraggemm_ffi.so")
    assert set(re.findall(r"^(?:RAGGEMM_\w+|\w*_STACKSIZE\w*)$", texts, re.MULTILINE)) == VARIABLES


def test_generated_code_is_never_unloaded(build):
    assert "NODELETE" in _run("readelf", "-d", build / "lib" / "libraggemm_proto.so")
    defined = _run("nm", "-C", "--defined-only", build / "lib" / "libraggemm_ffi.so")
    assert "raggemm::proto::GroupedGemmConfig::GroupedGemmConfig" not in defined


def test_every_isa_file_is_known(root):
    assert {f.stem for f in (root / "kernels" / "isa").glob("*.cc")} == set(ISAS) | OTHER_TARGETS


@pytest.mark.parametrize("isa", ISAS)
def test_isa_object_leaks_nothing(build, isa):
    symbols = _symbols(_isa_object(build, isa))
    exported = [name for kind, name in symbols if kind in "ABCDGRST"]
    tables = sorted(
        re.sub(r"^_ZN7raggemm\d+k(?i:" + isa.replace("_", "") + r")(\w+)E$", r"\1", name) for name in exported
    )
    assert tables in (["Kernels"], ["Dequantizers", "Kernels"])
    # The linker would keep a weak symbol of one ISA for all ISAs.
    assert [name for kind, name in symbols if kind in "uvVwW"] == []
    assert {name for kind, name in symbols if kind == "U"} <= RUNTIME | (SCALAR_RUNTIME if isa == "scalar" else set())
    sections = _run("readelf", "-SW", _isa_object(build, isa))
    assert ".init_array" not in sections and ".ctors" not in sections


@pytest.mark.parametrize(
    ("isa", "forbidden"), [("scalar", r"%[yz]mm|\bv[a-z]"), ("avx2", r"%zmm|%k[0-7]|%[xy]mm(?:1[6-9]|[23][0-9])")]
)
def test_isa_object_keeps_to_its_instructions(build, isa, forbidden):
    code = _run("objdump", "-d", "--no-show-raw-insn", _isa_object(build, isa)).splitlines()
    instructions = "\n".join(line for line in code if line.startswith(" "))
    assert instructions and re.findall(forbidden, instructions) == []


# Packed types of rhs, and the matrix instructions that their kernels must have. Tests on software units replace these
# instructions by C++, so they do not notice a missing one.
@pytest.mark.parametrize(
    ("packs", "instructions"),
    [
        ("Avx512Pairs", {"tdpbf16ps"}),
        ("Avx512Quads<signed char>", {"tdpbssd", "tdpbusd"}),
        ("Avx512Quads<unsigned char>", {"tdpbsud", "tdpbuud"}),
    ],
)
def test_tiles_are_multiplied_by_their_signs(build, packs, instructions):
    listing = _run("objdump", "-dC", "--no-show-raw-insn", _isa_object(build, "amx"))
    kernels = re.findall(rf"^\w+ <.*Gemm<.*\b{packs},.*>:\n((?:.+\n)+)", listing, re.MULTILINE)
    assert set(re.findall(r"\btdp\w+", "".join(kernels))) == instructions
