"""The C++ tests of one build with faults: which of them reach a fault, and whether one notices it."""

import json
import os
import pathlib
import re
import subprocess
import threading
from concurrent import futures

import planted
from faults import Fault

HERE = pathlib.Path(__file__).parent
RECORD = 1 << 16  # bytes of a record of reached faults, as in chosen.cc
MOST = 60  # seconds of processor time of tests for one fault, as they took without it; all would take minutes


def blamed(output: str, build: pathlib.Path, source: pathlib.Path, faults: dict[int, Fault]) -> set[int]:
    """The faults in the lines that errors, instantiations and inlined calls name, else the last one before each.

    Where a table is no constant any more, the error is at its end.
    """
    places: set[tuple[str, int]] = set()
    # The ends of lines are those of g++'s "inlined from 'f' at a.h:184:30," where an instruction needs a constant.
    named = r"(\S+?):(\d+):\d+(?:: +(?:error|required from|  required)|[,:]$)"
    for path, line in re.findall(named, output, re.MULTILINE):
        resolved = pathlib.Path(os.path.normpath(build / path))
        if resolved.is_relative_to(source):
            places.add((str(resolved.relative_to(source)), int(line)))

    def last_line(fault: Fault) -> int:
        return fault.line + fault.right.count("\n")

    inside = {n for n, f in faults.items() if any((f.path, i) in places for i in range(f.line, last_line(f) + 1))}
    if inside:
        return inside
    before = [[(last_line(f), n) for n, f in faults.items() if (f.path, f.line <= i) == (p, True)] for p, i in places]
    return {max(candidates)[1] for candidates in before if candidates}


class CppTests:
    """Copies of the sources in build/mutants, and the build of one of them, which stay for the next run."""

    def __init__(self, root: pathlib.Path):
        self.root = root
        self.folder = root / "build" / "mutants"
        self.build = self.folder / "build"
        self.tests: dict[str, tuple[list[str], dict[str, str]]] = {}  # by name: the command, its environment
        self.seconds: dict[str, float] = {}
        self.reached: dict[int, list[str]] = {}

    def check(self, faults: dict[int, Fault]) -> set[int]:
        """The faults that the compiler does not take in the library's files, which it reads and does not translate."""
        source, read = self.folder / "source", self.folder / "read"
        if not (self.build / "build.ninja").exists():
            self._write(source, {})
            header = source / "kernels" / "mutants_chosen.h"
            flags = [f"-DCMAKE_CXX_FLAGS=-include {header}", "-DRAGGEMM_BUILD_BENCH=OFF", "-DCMAKE_BUILD_TYPE=Release"]
            flags += [f"-DPython_EXECUTABLE={self.root}/.venv/bin/python", "-DRAGGEMM_JAXLIB_INCLUDE="]
            subprocess.run(["cmake", "-G", "Ninja", "-S", source, "-B", self.build, *flags], check=True)
        subprocess.run(["cmake", "--build", self.build, "--target", "raggemm_proto"], check=True)
        rows = json.loads((self.build / "compile_commands.json").read_text())
        folders = tuple(str(source / folder) for folder in ("kernels/", "ffi/"))
        unread = [
            re.sub(rf"{re.escape(str(source))}(?=[/ ])", str(read), row["command"]) + " -fsyntax-only"
            for row in rows
            if row["file"].startswith(folders)
        ]

        def words(left: dict[int, Fault]) -> str:
            self._write(read, left)
            with futures.ThreadPoolExecutor(os.cpu_count()) as pool:
                errors = dict(zip(unread, pool.map(self._errors_of, unread), strict=True))
            unread[:] = [command for command, text in errors.items() if text]
            return "".join(errors.values())

        return self._without_errors(faults, read, words)

    def plant(self, faults: dict[int, Fault]) -> set[int]:
        """Builds the tests with these faults, and returns those that tests do not compile with."""
        source = self.folder / "source"

        def words(left: dict[int, Fault]) -> str:
            self._write(source, left)
            command = ["cmake", "--build", self.build, "--", "-k", "0"]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            return "" if done.returncode == 0 else done.stdout + done.stderr

        return self._without_errors(faults, source, words)

    def _without_errors(self, faults: dict[int, Fault], source: pathlib.Path, words) -> set[int]:
        """The faults to leave out until the compiler has no more words of errors."""
        bad: set[int] = set()
        while True:
            left = {number: fault for number, fault in faults.items() if number not in bad}
            output = words(left)
            if not output:
                return bad
            wrong = blamed(output, self.build, source, left)
            if not wrong:
                raise RuntimeError(f"the sources do not compile, and no fault is to blame:\n{output[-4000:]}")
            bad |= wrong

    def _write(self, source: pathlib.Path, faults: dict[int, Fault]) -> None:
        planted.copy(self.root, source, ".", faults)
        for name in ("chosen.h", "chosen.cc"):
            planted.write(source / "kernels" / f"mutants_{name}", (HERE / name).read_bytes())

    def _errors_of(self, command: str) -> str:
        done = subprocess.run(command, shell=True, cwd=self.build, capture_output=True, text=True, check=False)
        return done.stderr if done.returncode != 0 else ""

    def trace(self) -> None:
        """Runs every test once without a fault: its seconds and the faults that it reaches."""
        shown = subprocess.run(
            ["ctest", "--show-only=json-v1"],
            **{"cwd": self.build, "capture_output": True, "text": True, "check": True},
        )
        for test in json.loads(shown.stdout)["tests"]:
            values = [p["value"] for p in test.get("properties", []) if p["name"] == "ENVIRONMENT"]
            environment = dict(text.split("=", 1) for value in values for text in value)
            self.tests[test["name"]] = (test["command"], environment)
        with futures.ThreadPoolExecutor(os.cpu_count()) as pool:
            failed = [name for name in pool.map(self._trace_one, self.tests) if name is not None]
        if failed:
            raise RuntimeError(f"fail without a fault: {' '.join(failed)}")

    def _trace_one(self, name: str) -> str | None:
        record = self.build / f"{name}.reached"
        record.write_bytes(bytes(RECORD))
        passed, self.seconds[name] = self._run(name, {"MUTANT_REACHED": str(record)}, 900)
        for number, flag in enumerate(record.read_bytes()):
            if flag:
                self.reached.setdefault(number, []).append(name)
        record.unlink()
        return None if passed else name

    def _run(self, name: str, extra: dict[str, str], timeout: float) -> tuple[bool, float]:
        """Whether a test passes, and the seconds of processor time that it takes: others on the machine add none."""
        command, environment = self.tests[name]
        process = subprocess.Popen(
            [*command, "--gtest_brief=1", "--gtest_fail_fast"],
            **{"cwd": self.build, "env": os.environ | environment | extra},
            **{"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "stdin": subprocess.DEVNULL},
        )
        timer = threading.Timer(timeout, process.kill)
        timer.start()
        _, status, used = os.wait4(process.pid, 0)
        timer.cancel()
        process.returncode = os.waitstatus_to_exitcode(status)
        return process.returncode == 0, used.ru_utime + used.ru_stime

    def noticed_by(self, number: int, fault: Fault) -> str | None:
        """The first test that fails, or does not end, with a fault: those named like its file come first."""
        own = re.sub(r"\W", "_", os.path.splitext(fault.path)[0])
        tests = self.reached.get(number, [])
        spent = 0.0
        for name in sorted(tests, key=lambda name: (not name.startswith(own), self.seconds[name])):
            spent += self.seconds[name]
            if spent > MOST and not name.startswith(own):
                return None
            if not self._run(name, {"MUTANT": str(number)}, 20 + 10 * self.seconds[name])[0]:
                return name
        return None

    def reach(self, number: int) -> int:
        """How many tests execute the place of a fault."""
        return len(self.reached.get(number, []))
