"""Runs two fuzzers: fuzz_problems of build/release, and the libFuzzer target fuzz_cases of build/address."""

import concurrent.futures
import os
import pathlib
import shutil
import subprocess
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
SEEDS = ROOT / "tests" / "fuzz" / "corpus"
FOLDER = ROOT / "build" / "fuzz"
SYMBOLIZER = "external_symbolizer_path=/usr/lib/llvm-19/bin/llvm-symbolizer"
SANITIZERS = {
    "ASAN_OPTIONS": f"abort_on_error=1:detect_stack_use_after_return=1:{SYMBOLIZER}",
    "UBSAN_OPTIONS": f"print_stacktrace=1:{SYMBOLIZER}",
    "TSAN_OPTIONS": f"abort_on_error=1:halt_on_error=1:second_deadlock_stack=1:{SYMBOLIZER}",
}


def unpack_seeds(corpus: pathlib.Path) -> None:
    shutil.copytree(SEEDS / "cases", corpus, dirs_exist_ok=True)
    cases = (ROOT / "proto/cases/edge.textproto").read_text().split("\ncases {")
    for number, case in enumerate(cases):
        (corpus / f"edge{number:02}").write_text(f"cases {{{case}" if number else case)


def fuzz_problems(seconds: int) -> str | None:
    """Returns a message if the program failed, else None."""
    command = [ROOT / "build/release/bin/fuzz_problems", f"--corpus={SEEDS}/problems.txt", f"--seconds={seconds}"]
    return None if subprocess.run(command).returncode == 0 else "fuzz_problems failed, see above"


def fuzz_cases(seconds: int) -> str | None:
    """Returns None if no error was found, else the end of the log and a command that replays the minimized input."""
    program, corpus, log = ROOT / "build/address/bin/fuzz_cases", FOLDER / "cases", FOLDER / "cases.log"
    unpack_seeds(corpus)
    (FOLDER / "found").mkdir(exist_ok=True)
    artifact = FOLDER / "found" / f"cases-{int(time.time())}"
    command = [program, f"-max_total_time={seconds}", "-timeout=20", "-rss_limit_mb=2048", "-print_final_stats=1"]
    command += [f"-dict={SEEDS}/cases.dict", f"-exact_artifact_path={artifact}", corpus]
    environment = os.environ | SANITIZERS
    with open(log, "w") as out:
        done = subprocess.run(command, stdout=out, stderr=out, env=environment)
    text = log.read_text(errors="replace")
    if done.returncode == 0:
        counts = [line for line in text.splitlines() if line.startswith("stat::number_of_executed_units:")]
        print(f"case files: inputs {counts[-1].split()[-1] if counts else '?'}", flush=True)
        return None
    small = artifact.with_suffix(".small")
    command = [program, "-minimize_crash=1", "-max_total_time=30", f"-exact_artifact_path={small}", artifact]
    subprocess.run(command, capture_output=True, env=environment)
    if not small.exists() and artifact.exists():
        shutil.copy(artifact, small)
    end = "\n".join(text.splitlines()[-60:])
    return f"{end}\nReplay with\n  {program} {small}\nand add it to {SEEDS}"


def fuzz(seconds: int) -> list[str]:
    """Returns a message for each fuzzer that found an error."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        found = pool.map(lambda fuzzer: fuzzer(seconds), (fuzz_problems, fuzz_cases))
        return [text for text in found if text]
