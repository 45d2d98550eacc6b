"""Estimates the cycles that loops over k take on cores of aarch64. llvm-mca counts them from the machine code.

    python counted.py FOLDER-OF-OBJECTS [--record]

compares the cycles with those in bench/results/aarch64-counted.md, or with --record writes this file. Nothing is run.
The basic block with the most product instructions is taken as a kernel's loop over k. This block has all loads, but no
prefetches, which run only in some iterations. A subs instruction stands for the conditional branch at the end of the
block.
"""

import argparse
import pathlib
import re
import subprocess
import sys
from typing import NamedTuple

ROOT = pathlib.Path(__file__).parents[2]
TABLE = ROOT / "bench" / "results" / "aarch64-counted.md"
MCA = "llvm-mca-19"
LEAST = 0.93  # Smallest allowed share of the peak rate. PIPES gives the peak.
TOLERANCE = 0.01


class Counted(NamedTuple):
    """A kernel to count. Each arithmetic has one: for packed panels, with the tallest register tile."""

    name: str
    file: str
    traits: str  # Pattern of the template arguments in the symbol, without spaces and namespaces.
    product: str  # Mnemonic of the product instruction.
    cores: tuple[str, ...]


ALL = ("neoverse-n1", "neoverse-n2", "neoverse-v1", "neoverse-v2", "apple-m1")
WITH_UNITS = ALL[1:4]
# Product instructions that a core can start per cycle, by Arm's optimization guides.
PIPES = {"neoverse-n1": 2, "neoverse-n2": 2, "neoverse-v1": 4, "neoverse-v2": 4}
KERNELS = (
    Counted("f32 6x16", "neon", "NeonF32,FmaSteps<NeonF32,float,6,4,false,(ArithmeticId)0>", "fmla", ALL),
    Counted("f64 6x8", "neon", "NeonF64,FmaSteps<NeonF64,double,6,4,false,(ArithmeticId)1>", "fmla", ALL),
    Counted("SDOT 10x8", "neon_dotprod", r"NeonDotProd<signedchar>,WordSteps<.*,10,2,(RhsFrom)2>", "sdot", ALL[:4]),
    Counted("rounded SDOT 6x8", "neon_dotprod", "NeonDotProdCodes,6,2>", "sdot", ALL[:4]),
    Counted("BFMMLA 10x8", "neon_bf16", "NeonBf16,MmlaSteps<NeonBf16,10,2,(RhsFrom)2,true>", "bfmmla", WITH_UNITS),
    Counted("SMMLA 4x16", "neon_i8mm", r"NeonI8mm<signedchar>,MmlaSteps<.*,4,4,(RhsFrom)2,true>", "smmla", WITH_UNITS),
)


def as_of_x86(text: str) -> str:
    """Rewrites an aarch64 branch as an x86 jump to the same address: jmp, or jne if the branch is conditional."""
    text = re.sub(r"\s*//.*|\s*<.*", "", text)
    if match := re.match(r"b\s+([0-9a-f]+)$", text):
        return f"jmp {match[1]}"
    if match := re.match(r"(?:b\.\w+|cbn?z|tbn?z)\s+(?:.*,\s*)?([0-9a-f]+)$", text):
        return f"jne {match[1]}"
    return text


def basic_blocks(lines: list[tuple[int, str]]) -> list[list[str]]:
    jumps = {at: int(found[1], 16) for at, text in lines if (found := re.match(r"j\w+\s+([0-9a-f]+)", text))}
    blocks: list[list[str]] = [[]]
    for at, text in lines:
        if at in jumps.values():
            blocks.append([])
        if text != "nop":
            blocks[-1].append(text)
        if at in jumps or text.startswith("ret"):
            blocks.append([])
    return blocks


def loop_over_k(kernel: Counted, objects: pathlib.Path) -> tuple[int, list[str]]:
    command = ["aarch64-linux-gnu-objdump", "-dC", "--no-show-raw-insn", objects / f"{kernel.file}.cc.o"]
    listing = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    wanted = re.escape(kernel.traits).replace(r"\.\*", ".*")
    found = []
    for name, body in re.findall(r"^[0-9a-f]+ <(.+)>:\n((?:\s+[0-9a-f]+:.*\n?)+)", listing, re.MULTILINE):
        short = re.sub(r"raggemm::|\(anonymous namespace\)::| ", "", name)
        if not re.search("(TileGemm|RoundedTileKernel)<" + wanted, short):
            continue
        lines = [(int(at, 16), as_of_x86(t.strip())) for at, t in re.findall(r"^\s+([0-9a-f]+):\t(.*)$", body, re.M)]
        found += [(sum(text.startswith(kernel.product) for text in x), x) for x in basic_blocks(lines)]
    assert found, f"{kernel.name}: no such kernel in {command[-1]}"
    return max(found, key=lambda pair: (pair[0], -len(pair[1])))


def cycles(loop: list[str], core: str) -> float:
    assembly = "\n".join("subs x0, x0, #1" if re.match(r"j\w+ ", text) else text for text in loop if text[:3] != "jmp")
    command = [MCA, "-mtriple=aarch64", f"-mcpu={core}", "-mattr=+bf16,+i8mm,+dotprod", "-iterations=100"]
    out = subprocess.run(command, check=True, capture_output=True, text=True, input=assembly + "\n").stdout
    match = re.search(r"^Total Cycles:\s+(\d+)$", out, re.MULTILINE)
    assert match, out
    return int(match[1]) / 100


def measure(objects: pathlib.Path) -> list[list[str]]:
    rows = []
    for kernel in KERNELS:
        products, loop = loop_over_k(kernel, objects)
        stack = sum("[sp" in text for text in loop)
        row = [kernel.name, str(products), f"{len(loop) / products:.2f}", str(stack)]
        for core in ALL:
            each = cycles(loop, core) / products if core in kernel.cores else None
            share = f" ({1 / PIPES[core] / each:.2f})" if each and core in PIPES else ""
            row.append(f"{each:.3f}{share}" if each else "")
        rows.append(row)
    return rows


def page(rows: list[list[str]]) -> str:
    heads = ["kernel", "products of a turn", "instructions of one", "of them on the stack", *ALL]
    lines = ["| " + " | ".join(row) + " |" for row in (heads, ["---"] + ["---:"] * (len(heads) - 1), *rows)]
    return f"""# aarch64, counted

Nothing of this was measured on hardware. `./dev test --aarch64` counts it with {MCA} from the machine code of
g++ 12.2: cycles for each multiply-add instruction in the loop over k of the tallest register tile, packed operands in
L1, loads included, and in parentheses the share of what the core's pipes for them begin in a cycle. For an Apple M1
LLVM takes the model of an older core, Cyclone.

{chr(10).join(lines)}
"""


def faults(rows: list[list[str]], recorded: str) -> list[str]:
    """Returns a message for each wrong row, and for each row that differs from the recorded one.

    A row is wrong if a share of the peak is below LEAST, or if the loop spills registers.
    """
    found = []
    for row in rows:
        text = " | ".join(row)
        if row[3] != "0" or min(map(float, re.findall(r"\(([0-9.]+)\)", text))) < LEAST:
            found.append(f"{text}: a share below {LEAST}, or the stack")
        was = next((line for line in recorded.splitlines() if line.startswith(f"| {row[0]} |")), "")
        now, before = (list(map(float, re.findall(r"[0-9.]+", x))) for x in (text, was))
        if len(now) != len(before) or any(abs(a - b) > TOLERANCE for a, b in zip(now, before, strict=True)):
            found.append(f"{text}: recorded is {was or 'nothing'}")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("objects", type=pathlib.Path)
    parser.add_argument("--record", action="store_true")
    options = parser.parse_args()
    rows = measure(options.objects)
    if options.record:
        TABLE.write_text(page(rows))
    found = faults(rows, TABLE.read_text())
    print("\n".join(found) or f"{TABLE.name}: as recorded")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
