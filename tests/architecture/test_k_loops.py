"""Tests in the disassembly that kernels for floats and packed words keep all vectors of loops over k in registers.

A register tile that spills to the stack halves the speed, and tests of results do not notice.
"""

import re
import subprocess

import pytest

VECTOR = re.compile(r"%[xyz]mm")
FMA = re.compile(r"vfn?madd|vpdpbus|vpmaddwd|vdpbf16ps|vpdpwss")
STACK = re.compile(r"\(%rsp")
# Names of the tested kernels. Kernels with lookup tables for quantized elements may spill, because the tables do not
# fit into registers.
KERNEL = re.compile(
    r"(TileGemm|StackedTiles)<.*(FmaSteps<[^<]*, (raggemm::)?(Float16|BFloat16|float|double), |WordSteps<.*\)2>)"
)


def functions(listing):
    for name, body in re.findall(r"^[0-9a-f]+ <(.+)>:\n((?:\s+[0-9a-f]+:.*\n?)+)", listing, re.MULTILINE):
        yield name, [(int(at, 16), text) for at, text in re.findall(r"^\s+([0-9a-f]+):\t(.*)$", body, re.MULTILINE)]


def blocks(lines):
    jump = re.compile(r"j\w+\s+([0-9a-f]+)")
    targets = {int(found[1], 16) for _, text in lines if (found := jump.match(text))}
    block = []
    for at, text in lines:
        if at in targets:
            yield block
            block = []
        block.append(text)
        if jump.match(text):
            yield block
            block = []
    yield block


def spills(listing):
    """Finds spills: vector instructions in k loops that access the stack. Also returns the number of kernels.

    The k loop is the basic block with the most fma instructions.
    """
    found, count = [], 0
    for name, lines in functions(listing):
        if KERNEL.search(name):
            unrolled = max(blocks(lines), key=lambda block: sum(bool(FMA.match(text)) for text in block))
            count += 1
            found += [f"{name}: {text}" for text in unrolled if VECTOR.search(text) and STACK.search(text)]
    return found, count


@pytest.mark.parametrize("isa", ["avx2", "avx_vnni", "avx512", "avx512_bf16", "avx512_vnni"])
def test_k_loops_keep_their_tile_in_registers(build, isa):
    objects = list((build / "kernels/CMakeFiles/raggemm.dir/isa").glob(f"{isa}*.cc.o"))
    command = ["objdump", "-dC", "--no-show-raw-insn", *objects]
    found, count = spills(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    assert count >= 5
    assert not found, "\n".join(found)


def test_a_spill_is_found():
    loop = [
        "vmovups (%rdx),%ymm2",
        "vfmadd231ps %ymm2,%ymm4,%ymm0",
        "vmovaps %ymm2,-0x20(%rsp)",
        "jne    0 <TileGemm<A, FmaSteps<A, float, 1>>>",
    ]
    listing = "0000000000000000 <TileGemm<A, FmaSteps<A, float, 1>>>:\n" + "".join(
        f"   {i}:\t{text}\n" for i, text in enumerate(loop)
    )
    assert spills(listing) == (["TileGemm<A, FmaSteps<A, float, 1>>: vmovaps %ymm2,-0x20(%rsp)"], 1)
