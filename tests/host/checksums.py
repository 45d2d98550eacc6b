"""The recorded checksums of the driver's results, and the runs of the driver that give them."""

import pathlib
import subprocess

CASES = pathlib.Path(__file__).resolve().parents[2] / "proto" / "cases"
RECORDED = CASES / "checksums.txt"
HEAD = "# Checksums of the results of edge.textproto and formats.textproto (tests/host/checksum.h): ./dev checksums"


def runs() -> list[list[str]]:
    """Returns the flags of each run of the driver. The last of a flag given twice counts.

    The edge cases come in the types that they have and in others, those of formats.textproto with two rules of bf16.
    """
    edge, formats = f"--cases={CASES}/edge.textproto", f"--cases={CASES}/formats.textproto"
    types = [[], ["--dtype=f16"], ["--dtype=f64"], ["--dtype=bf16"]]
    found = [[edge, "--bf16_sums=pairs", *flags] for flags in types]
    found += [[edge, "--dtype=bf16", f"--bf16_sums={rule}"] for rule in ("tiles", "fma", "mmla")]
    return found + [[formats, f"--bf16_sums={rule}"] for rule in ("pairs", "tiles")]


def recorded() -> list[str]:
    """Returns "case dtypes checksum" of each recorded result."""
    return [line for line in RECORDED.read_text().splitlines() if not line.startswith("#")]


def computed(driver: list[str], *flags: str) -> list[str]:
    """Returns the same of each result that a driver computes. A result that is wrong has no checksum."""
    lines: list[str] = []
    for run in runs():
        command = [*driver, "--all", "--checksums", *flags, *run]
        lines += subprocess.run(command, stdout=subprocess.PIPE, text=True).stdout.splitlines()
    return lines


def differences(driver: list[str], *flags: str) -> list[str]:
    """Returns the lines that a driver prints and that are not recorded, and those that are recorded and missing."""
    want, got = recorded(), computed(driver, *flags)
    return [f"- {line}" for line in want if line not in got] + [f"+ {line}" for line in got if line not in want]


def record(driver: list[str]) -> int:
    """Writes the checksums of scalar code on one thread, and returns their number."""
    lines = computed(driver, "--isa=scalar", "--executor=serial")
    RECORDED.write_text("\n".join([HEAD, *lines]) + "\n")
    return len(lines)
