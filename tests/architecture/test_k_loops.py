"""The speed of the kernels, without timing anything: what their k loops execute, read from the disassembly.

Slow-downs that compilers brought, at 4x16 and 6x16 on AVX2, in shares of the fma peak, and what shows them here:
the load of a strip folded into every fma that uses it (65 % instead of 96 %): fewer instructions, more loads;
the steps of k not unrolled (60-70 %): too few fmas in a loop; a tile that does not fit the registers: spills.
"""

import pathlib
import re

import k_loops
import pytest

ISAS = ["scalar", "avx2", "avx512"]
STEPS = 4  # kSteps of tile_gemm.h
TABLES = {path.stem.removeprefix("k_loops_"): path for path in pathlib.Path(__file__).parent.glob("k_loops_*.txt")}
TOLERANCE = 0.05  # of instructions per fma: four or five instructions in the loop of a 6x2 tile, one per step of k


@pytest.fixture(scope="module", params=ISAS)
def isa(request) -> str:
    return request.param


def _object(build: pathlib.Path, isa: str) -> pathlib.Path:
    return build / "kernels" / "CMakeFiles" / "raggemm.dir" / "isa" / f"{isa}.cc.o"


@pytest.fixture(scope="module")
def isa_object(build, isa) -> pathlib.Path:
    return _object(build, isa)


@pytest.fixture(scope="module")
def kernels(isa_object) -> list[k_loops.Kernel]:
    return [kernel for kernel in k_loops.disassemble(isa_object) if kernel.compute != "words"]


def _main_loops(kernel: k_loops.Kernel) -> list[k_loops.Loop]:
    """The unrolled loop."""
    return [loop for loop in kernel.loops if loop.fmas() == STEPS * kernel.rows * kernel.vectors]


def _unrolling(kernel: k_loops.Kernel) -> list[str]:
    """Complaint unless there is one unrolled loop, which fetches."""
    if [loop.prefetches() for loop in _main_loops(kernel)] == [True]:
        return []
    found = ", ".join(f"{loop.fmas()}{' with prefetches' * loop.prefetches()}" for loop in kernel.loops)
    return [f"{kernel}: loops of {found} fmas, not of {STEPS * kernel.rows * kernel.vectors} with prefetches"]


def _spills(kernel: k_loops.Kernel) -> list[str]:
    return [f"{kernel}: {text}" for text in kernel.spills()]


def _traffic(kernel: k_loops.Kernel) -> list[str]:
    """Complaints about main loops that load a vector of b or an element of a twice, or store more than the strip."""
    expected = f"{STEPS * (kernel.rows + kernel.vectors)} loads, {STEPS * kernel.vectors * kernel.expand} stores"
    measured = [f"{loop.vector_loads()} loads, {loop.vector_stores()} stores" for loop in _main_loops(kernel)]
    return [f"{kernel}: {traffic}, not {expected}" for traffic in measured if traffic != expected]


def _instructions_per_fma(isa: str, kernels: list[k_loops.Kernel]) -> dict[str, list[float]]:
    """By ISA, compute type, element type and table of kernels: a figure for each number of rows."""
    table: dict[str, list[float]] = {}
    for kernel in sorted(kernels, key=lambda k: (k.family(), k.rows)):
        for loop in _main_loops(kernel):
            table.setdefault(f"{isa} {kernel.family()}", []).append(len(loop.own) / loop.fmas())
    return table


def _as_text(table: dict[str, list[float]]) -> str:
    return "\n".join(f"{key}: " + " ".join(f"{value:.2f}" for value in row) for key, row in table.items())


def _from_text(text: str) -> dict[str, list[float]]:
    rows = re.findall(r"^(\w[^:\n]*): (.*)$", text, re.MULTILINE)
    return {key: [float(value) for value in values.split()] for key, values in rows}


def _deviations(measured: dict[str, list[float]], recorded: dict[str, list[float]]) -> list[str]:
    """The rows, measured and recorded, whose keys or lengths differ, or any figure by more than the tolerance."""

    def near(key: str) -> bool:
        m, r = measured.get(key, []), recorded.get(key, [])
        return len(m) == len(r) and all(abs(a - b) <= TOLERANCE * b for a, b in zip(m, r, strict=True))

    wrong = [key for key in {**measured, **recorded} if not near(key)]
    return [f"{_as_text({k: measured.get(k, [])})}\n    recorded: {_as_text({k: recorded.get(k, [])})}" for k in wrong]


def test_k_loops_are_unrolled(kernels):
    assert len(kernels) >= 60
    faults = [fault for kernel in kernels for fault in _unrolling(kernel)]
    assert not faults, "\n".join(faults)


# Not so the scalar kernels: their fmas are calls, and no vector register outlives a call.
@pytest.mark.parametrize("isa", ["avx2", "avx512"], indirect=True)
@pytest.mark.parametrize("rule", [_spills, _traffic])
def test_k_loops_keep_their_tile_in_registers(kernels, rule):
    faults = [fault for kernel in kernels for fault in rule(kernel)]
    assert not faults, f"{len(faults)} faults\n" + "\n".join(faults)


@pytest.mark.parametrize("unit", ["avx2", "avx_vnni", "avx512", "avx512_bf16", "avx512_vnni"])
def test_strips_of_words_keep_their_tile_in_registers(build, unit):
    # Where s8 and u8 have the same code, one of the two is a jump.
    kernels = [k for k in k_loops.disassemble(_object(build, unit)) if k.compute == "words" and k.loops]
    assert len(kernels) >= 5
    faults = [fault for kernel in kernels for fault in _spills(kernel)]
    assert not faults, "\n".join(faults)


def test_instructions_per_fma(isa, isa_object, kernels):
    compiler = k_loops.compiler(isa_object)
    if compiler not in TABLES:
        pytest.skip(f"NOT covered: {compiler} has no table; those of {', '.join(sorted(TABLES))} are recorded")
    measured, table = _instructions_per_fma(isa, kernels), TABLES[compiler]
    recorded = {key: row for key, row in _from_text(table.read_text()).items() if key.split()[0] == isa}
    wrong = _deviations(measured, recorded)
    assert not wrong, "\n".join(wrong) + f"\n\nall of {isa}, as {table.name} would have it:\n{_as_text(measured)}"


def test_the_compilers_of_the_supported_systems_have_tables():
    assert {"gcc12", "gcc14"} <= TABLES.keys()
    assert all(len(_from_text(path.read_text())) == 48 for path in TABLES.values())


def _listing(*loops: list[str]) -> str:
    """A kernel of 1x2 in objdump's words, each loop followed by its jump; 'jN' is a jump N instructions back."""
    space = "raggemm::(anonymous namespace)"
    steps = f"{space}::FmaSteps<{space}::Avx2F32, float, 1, 2, false, (raggemm::ArithmeticId)0>"
    name = f"void {space}::TileGemm<{space}::Avx2F32, {steps}, 1, 2>(raggemm::MicrokernelArgs const&)"
    lines, at = [], 0
    for text in (text for loop in loops for text in [*loop, f"j{len(loop)}"]):
        if back := re.fullmatch(r"j(\d+)", text):
            text = f"jne    {at - int(back[1]):x} <{name}+0x{at:x}>"
        lines.append(f"   {at:x}:\t{text}")
        at += 1
    return f"0000000000000000 <{name}>:\n" + "\n".join([*lines, f"   {at:x}:\tret"]) + "\n"


STEP = [
    "vmovups (%rdx),%ymm2",
    "vmovups 0x20(%rdx),%ymm3",
    "vbroadcastss (%rax),%ymm4",
    "vfmadd231ps %ymm2,%ymm4,%ymm0",
    "vfmadd231ps %ymm3,%ymm4,%ymm1",
]
FETCH = ["xor %r8,%r8", "prefetcht1 (%rcx)", "j1"]
SPILL = ["vmovaps %ymm2,-0x20(%rsp)"]
FOLDED = [*STEP[:3], "vfmadd231ps (%rdx),%ymm4,%ymm0", "vfmadd231ps 0x20(%rdx),%ymm4,%ymm1"]


@pytest.mark.parametrize(
    ("main", "faults"),
    [
        (FETCH + STEP * 4, []),
        (FETCH + STEP, [_unrolling]),
        (STEP * 4, [_unrolling]),
        ([*FETCH, *STEP, "j5"], [_unrolling]),
        (FETCH + STEP * 4 + SPILL, [_spills, _traffic]),
        (FETCH + SPILL + ["j3"] + STEP * 4, [_spills]),
        (FETCH + FOLDED * 4, [_traffic]),
    ],
)
def test_faults_are_found(main, faults):
    (kernel,) = k_loops.parse(_listing(main, STEP))
    assert [rule for rule in (_unrolling, _spills, _traffic) if rule(kernel)] == faults


def test_slower_loops_are_found():
    (kernel,) = k_loops.parse(_listing(FETCH + STEP * 4, STEP))
    recorded = _instructions_per_fma("avx2", [kernel])
    assert recorded == {"avx2 f32 f32 narrow": [22 / 8]}
    assert not _deviations(_from_text(_as_text(recorded)), recorded)
    (slower,) = k_loops.parse(_listing(FETCH + STEP * 4 + ["mov %rax,%rbx"] * 2, STEP))
    assert len(_deviations(_instructions_per_fma("avx2", [slower]), recorded)) == 1
    assert len(_deviations({}, recorded)) == 1
