"""The k loops of the kernels, as the compiler left them: a disassembly cut into functions, blocks and loops."""

import dataclasses
import itertools
import pathlib
import re
import subprocess
from collections.abc import Iterator

_TRAITS = r"raggemm::\(anonymous namespace\)::(?P<traits>\w+)(?:<(?P<scalar>float|double)>)?"
NAME = re.compile(
    rf"TileGemm<{_TRAITS}, raggemm::\(anonymous namespace\)::FmaSteps<[^,]*, (?:raggemm::)?(?P<element>\w+), "
    r"(?P<rows>\d+), (?P<vectors>\d+), (?P<expand>true|false), \(raggemm::ArithmeticId\)(?P<arithmetic>\d)>, "
    r"\d+, \d+>\([^)]*\)$"
)
PAIRS, MMLA = "2", "5"  # ArithmeticId::kPairs, kMmla
DTYPES = {"Float16": "f16", "BFloat16": "bf16", "float": "f32", "double": "f64"}
VECTOR = re.compile(r"%[xyz]mm")
# With the scalar kernels an fma is a call of the C library.
FMA = re.compile(r"vfmadd\d+[ps][sd]\s|call\s.*\bfmaf?\b|(\{vex\} )?vpdpbusd|vpmaddwd|vdpbf16ps")
WORDS = re.compile(r"TileGemm<.*\bWordSteps<.*, (\d+), (\d+), \([^()]*\(anonymous namespace\)[^()]*\)2>")  # of strips
PADDING = re.compile(r"(data16\s+|cs\s+)*nop|xchg\s+%ax,%ax$")


@dataclasses.dataclass(frozen=True)
class Loop:
    """Instructions that run once per iteration, and those of the loops within, which run more often."""

    own: list[str]
    nested: list[str]

    def fmas(self) -> int:
        return sum(bool(FMA.match(text)) for text in self.own)

    def prefetches(self) -> bool:
        return any(text.startswith("prefetch") for text in self.own + self.nested)

    def vector_loads(self) -> int:
        return sum(bool(VECTOR.search(text)) and "(" in text and not text.endswith(")") for text in self.own)

    def vector_stores(self) -> int:
        return sum(bool(VECTOR.search(text)) and text.endswith(")") for text in self.own)


@dataclasses.dataclass(frozen=True)
class Kernel:
    """An instance of TileGemm: rows x vectors of type compute, b of type element; loops that contain an fma."""

    compute: str  # or pairs
    element: str
    rows: int
    vectors: int
    expand: bool
    loops: list[Loop]
    has_frame: bool  # %rbp points to the stack

    def family(self) -> str:
        """Kernels of one line in the table: compute type, element type, and as in MakeKernels' table."""
        direct = "narrow" if self.vectors == 2 else "wide"
        return f"{self.compute} {self.element} {'expand' if self.expand else direct}"

    def __str__(self) -> str:
        return f"{self.family()} {self.rows}x{self.vectors}"

    def spills(self) -> list[str]:
        """Vector instructions of the loops that read or write the stack."""
        stack = re.compile(r"\(%rsp|\(%rbp" if self.has_frame else r"\(%rsp")
        texts = [text for loop in self.loops for text in loop.own + loop.nested]
        return [text for text in texts if VECTOR.search(text) and stack.search(text)]


def _loops_of(blocks: set[int], successors: dict[int, list[int]]) -> list[set[int]]:
    """The largest sets of blocks that reach one another (strongly connected components with a cycle)."""
    reach: dict[int, set[int]] = {}
    for start in blocks:
        seen: set[int] = set()
        stack = [start]
        while stack:
            new = {b for b in successors[stack.pop()] if b in blocks} - seen
            seen |= new
            stack += new
        reach[start] = seen
    cyclic = {frozenset(b for b in reach[a] if a in reach[b]) for a in blocks if a in reach[a]}
    return sorted(map(set, cyclic), key=min)


def _blocks_of(lines: list[tuple[int, str]]) -> tuple[dict[int, list[str]], dict[int, list[int]]]:
    """Instructions of each basic block and the blocks that may follow it, by address."""
    jumps = {at: (m[1], int(m[2], 16)) for at, text in lines if (m := re.match(r"(j\w+)\s+([0-9a-f]+)\b", text))}
    addresses = [at for at, _ in lines]
    following = dict(itertools.pairwise(addresses))
    ends = {at for at, text in lines if at in jumps or re.match(r"ret|ud2|(notrack )?jmp\s+\*", text)}
    starts = {addresses[0]} | {t for _, t in jumps.values() if t in addresses} | {following.get(at) for at in ends}
    blocks: dict[int, list[str]] = {}
    successors: dict[int, list[int]] = {}
    for at, text in lines:
        if at in starts:
            begin = at
            blocks[begin] = []
        blocks[begin].append(text)
        if following.get(at) in starts or at not in following:
            target, falls = jumps.get(at, ("", None))[1], at not in ends or jumps.get(at, ("jmp",))[0] != "jmp"
            successors[begin] = [b for b in (target, following.get(at) if falls else None) if b is not None]
    return blocks, {b: [s for s in after if s in blocks] for b, after in successors.items()}


def loops(lines: list[tuple[int, str]]) -> list[Loop]:
    """The outermost loops of a function."""
    blocks, successors = _blocks_of(lines)
    found = []
    for members in _loops_of(set(blocks), successors):
        entries = {b for a in blocks if a not in members for b in successors[a] if b in members} or {min(members)}
        nested = set().union(*_loops_of(members - entries, successors))

        def texts(of: set[int]) -> list[str]:
            return [text for b in sorted(of) for text in blocks[b] if not PADDING.match(text)]

        found.append(Loop(texts(members - nested), texts(nested)))
    return found


def _fma_loops(lines: list[tuple[int, str]]) -> list[Loop]:
    """Those that contain an fma."""
    return [loop for loop in loops(lines) if any(map(FMA.match, loop.own + loop.nested))]


def _functions(listing: str) -> Iterator[tuple[str, list[tuple[int, str]]]]:
    """Names and instructions."""
    for name, body in re.findall(r"^[0-9a-f]+ <(.+)>:\n((?:\s+[0-9a-f]+:.*\n?)+)", listing, re.MULTILINE):
        # What a call calls stands in the relocation on the line below it.
        body = re.sub(r"(call\s).*\n\s+[0-9a-f]+: R_\w+\s+", r"\1", body)
        lines = [(int(at, 16), text.strip()) for at, text in re.findall(r"^\s+([0-9a-f]+):\t(.*)$", body, re.MULTILINE)]
        yield name, [(at, re.sub(r"\s*(#|<raggemm).*", "", text)) for at, text in lines if not text.startswith("R_")]


def parse(listing: str) -> list[Kernel]:
    """The kernels in what objdump -drC --no-show-raw-insn prints."""
    kernels = []
    for name, lines in _functions(listing):
        has_frame = any(re.match(r"mov\s+%rsp,%rbp", text) for _, text in lines)
        if words := WORDS.search(name):
            kernels.append(Kernel("words", "words", int(words[1]), int(words[2]), False, _fma_loops(lines), has_frame))
        if not (match := NAME.search(name)) or match["arithmetic"] == MMLA:  # of scalar code, without fmas
            continue
        kernels.append(
            Kernel(
                compute="pairs"
                if match["arithmetic"] == PAIRS
                else DTYPES[match["scalar"]]
                if match["scalar"]
                else match["traits"][-3:].lower(),
                element=DTYPES[match["element"]],
                rows=int(match["rows"]),
                vectors=int(match["vectors"]),
                expand=match["expand"] == "true",
                loops=_fma_loops(lines),
                has_frame=has_frame,
            )
        )
    return kernels


def compiler(path: pathlib.Path) -> str:
    """What an object file says it was made with, as in "gcc12"."""
    command = ["readelf", "--string-dump=.comment", path]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    match = re.search(r"GCC: .* (\d+)\.\d+\.\d+", text)
    assert match, text
    return f"gcc{match[1]}"


def disassemble(path: pathlib.Path) -> list[Kernel]:
    command = ["objdump", "-drC", "--no-show-raw-insn", path]
    return parse(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
