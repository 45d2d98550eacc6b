"""Computes checksums of results of ffi_driver. Records them in proto/cases/checksums.txt or compares them."""

import pathlib
import subprocess

CASES = pathlib.Path(__file__).resolve().parents[2] / "proto" / "cases"
RECORDED = CASES / "checksums.txt"
HEAD = "# Checksums of the results of edge.textproto and formats.textproto (tests/host/checksum.h): ./dev checksums"


def runs() -> list[list[str]]:
    """Returns the flags of each run of ffi_driver, which override earlier flags of the command.

    The cases of edge.textproto run in their own types, in f16, in f64, and in bf16 with each of the four bf16 rules.
    The cases of formats.textproto run with two bf16 rules.
    """
    edge, formats = f"--cases={CASES}/edge.textproto", f"--cases={CASES}/formats.textproto"
    types = [[], ["--dtype=f16"], ["--dtype=f64"], ["--dtype=bf16"]]
    found = [[edge, "--bf16_sums=pairs", *flags] for flags in types]
    found += [[edge, "--dtype=bf16", f"--bf16_sums={rule}"] for rule in ("tiles", "fma", "mmla")]
    return found + [[formats, f"--bf16_sums={rule}"] for rule in ("pairs", "tiles")]


def recorded() -> list[str]:
    return [line for line in RECORDED.read_text().splitlines() if not line.startswith("#")]


def computed(driver: list[str], *flags: str) -> list[str]:
    """Runs ffi_driver, and returns its lines: "CASE DTYPES CHECKSUM" for a right result, another text for an error."""
    lines: list[str] = []
    for run in runs():
        command = [*driver, "--all", "--checksums", *flags, *run]
        lines += subprocess.run(command, stdout=subprocess.PIPE, text=True).stdout.splitlines()
    return lines


def differences(driver: list[str], *flags: str) -> list[str]:
    """Returns "+ LINE" for each computed line that is not recorded, and "- LINE" for each missing recorded line."""
    want, got = recorded(), computed(driver, *flags)
    return [f"- {line}" for line in want if line not in got] + [f"+ {line}" for line in got if line not in want]


def record(driver: list[str]) -> int:
    lines = computed(driver, "--isa=scalar", "--executor=serial")
    RECORDED.write_text("\n".join([HEAD, *lines]) + "\n")
    return len(lines)
