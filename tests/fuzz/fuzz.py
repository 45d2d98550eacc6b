"""Fuzzes with all targets at once: fuzz_problems of build/release, and the targets of libFuzzer in build/address."""

import base64
import concurrent.futures
import os
import pathlib
import shutil
import subprocess
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
SEEDS = ROOT / "tests" / "fuzz" / "corpus"
FOLDER = ROOT / "build" / "fuzz"
LIBFUZZER = ("attributes", "frame", "cases")  # fuzz_problems needs no libFuzzer
SYMBOLIZER = "external_symbolizer_path=/usr/lib/llvm-19/bin/llvm-symbolizer"
SANITIZERS = {
    "ASAN_OPTIONS": f"abort_on_error=1:detect_stack_use_after_return=1:{SYMBOLIZER}",
    "UBSAN_OPTIONS": f"print_stacktrace=1:{SYMBOLIZER}",
    "TSAN_OPTIONS": f"abort_on_error=1:halt_on_error=1:second_deadlock_stack=1:{SYMBOLIZER}",
}


def unpack_seeds(target: str, corpus: pathlib.Path) -> None:
    """Puts the seeds and the edge cases where libFuzzer keeps what it finds."""
    corpus.mkdir(parents=True, exist_ok=True)
    if target == "frame":
        lines = [line for line in (SEEDS / "frame.base64").read_text().splitlines() if not line.startswith("#")]
        for number, line in enumerate(lines):
            (corpus / f"seed{number}").write_bytes(base64.b64decode(line))
        return
    shutil.copytree(SEEDS / target, corpus, dirs_exist_ok=True)
    if target == "cases":
        cases = (ROOT / "proto/cases/edge.textproto").read_text().split("\ncases {")
        for number, case in enumerate(cases):
            (corpus / f"edge{number:02}").write_text(f"cases {{{case}" if number else case)


def fuzz_one(target: str, seconds: int) -> str | None:
    """Fuzzes one target and returns None, or what it found, made small, with a command that replays it."""
    if target == "problems":
        program = ROOT / "build/release/bin/fuzz_problems"
        command = [program, f"--corpus={SEEDS}/problems.txt", f"--seconds={seconds}"]
        return None if subprocess.run(command).returncode == 0 else "fuzz_problems failed, see above"
    program, corpus, log = ROOT / f"build/address/bin/fuzz_{target}", FOLDER / target, FOLDER / f"{target}.log"
    unpack_seeds(target, corpus)
    (FOLDER / "found").mkdir(exist_ok=True)
    artifact = FOLDER / "found" / f"{target}-{int(time.time())}"
    dictionary = SEEDS / f"{target}.dict"
    command = [program, f"-max_total_time={seconds}", "-timeout=20", "-rss_limit_mb=2048", "-print_final_stats=1"]
    command += [f"-dict={dictionary}"] if dictionary.exists() else []
    environment = os.environ | SANITIZERS
    with open(log, "w") as out:
        done = subprocess.run(
            [*command, f"-exact_artifact_path={artifact}", corpus], stdout=out, stderr=out, env=environment
        )
    text = log.read_text(errors="replace")
    if done.returncode == 0:
        counts = [line for line in text.splitlines() if line.startswith("stat::number_of_executed_units:")]
        print(f"{target}: inputs {counts[-1].split()[-1] if counts else '?'}", flush=True)
        return None
    small = artifact.with_suffix(".small")
    command = [program, "-minimize_crash=1", "-max_total_time=30", f"-exact_artifact_path={small}", artifact]
    subprocess.run(command, capture_output=True, env=environment)
    if not small.exists() and artifact.exists():
        shutil.copy(artifact, small)
    end = "\n".join(text.splitlines()[-60:])
    return f"{end}\nReplay with\n  {program} {small}\nand add it to {SEEDS}, frames in base64"


def fuzz(seconds: int) -> list[str]:
    """Fuzzes with as many targets at a time as there are cores, for so many seconds together; returns the findings."""
    targets = ("problems", *LIBFUZZER)
    jobs = min(os.cpu_count() or 1, len(targets))
    FOLDER.mkdir(parents=True, exist_ok=True)
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        found = pool.map(lambda target: fuzz_one(target, max(1, seconds * jobs // len(targets))), targets)
        return [text for text in found if text]
