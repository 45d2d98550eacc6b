"""The Python tests of a copy of the package with faults: which of them reach a fault, and whether one notices it."""

import json
import os
import pathlib
import subprocess
import sys

import planted
from faults import Fault

HERE = pathlib.Path(__file__).parent
PACKAGE = "python/raggemm"
TESTS = "python/tests"
BATCH = 60  # seconds of tests, as they took without a fault, in one process
MOST = 300  # and for one fault, whose notice the fastest are likelier to take than all others together


class PythonTests:
    """A copy of the package in build/mutants/python, which stays for the next run."""

    def __init__(self, root: pathlib.Path):
        self.root = root
        self.copy = root / "build" / "mutants" / "python"
        self.seconds: dict[str, float] = {}
        self.reached: dict[int, set[str]] = {}  # by fault; "" stands for imports

    def check(self, faults: dict[int, Fault]) -> set[int]:
        """The faults that are no Python."""
        bad = set()
        for number, fault in faults.items():
            try:
                compile(planted.planted(self.root, fault.path, {number: fault}), fault.path, "exec")
            except SyntaxError:
                bad.add(number)
        return bad

    def plant(self, faults: dict[int, Fault]) -> set[int]:
        """Copies the package with these faults."""
        planted.copy(self.root, self.copy, PACKAGE, faults)
        for name, target in (("lib", "build/release/lib"), ("cases", "proto/cases")):
            link = self.copy / PACKAGE / name
            link.unlink(missing_ok=True)
            link.symlink_to(self.root / target)
        return set()

    def _pytest(self, arguments: list[str], environment: dict[str, str], timeout: float) -> int:
        path = os.pathsep.join(str(folder) for folder in (self.copy / "python", HERE))
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments]
        try:
            done = subprocess.run(
                command,
                **{"cwd": self.root, "env": os.environ | environment | {"PYTHONPATH": path}, "timeout": timeout},
                **{"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "stdin": subprocess.DEVNULL},
                check=False,
            )
        except subprocess.TimeoutExpired:
            return 1
        return done.returncode

    def trace(self) -> None:
        """Runs every test once without a fault: its seconds and the faults that it reaches."""
        record = self.copy / "reached"
        record.write_text("")
        run = ["-p", "reached", "-n", str(os.cpu_count()), "--dist=loadfile", TESTS]
        if self._pytest(run, {"MUTANT_REACHED": str(record)}, 3600) != 0:
            raise RuntimeError("Python tests fail without a fault: see ./dev test python/tests")
        for line in record.read_text().splitlines():
            test, seconds, numbers = json.loads(line)
            if test:
                self.seconds[test] = seconds
            for number in numbers:
                self.reached.setdefault(number, set()).add(test)
        record.unlink()

    def noticed_by(self, number: int, fault: Fault) -> str | None:
        """The files whose tests ran when one failed: those named like the fault's come first, then the fastest."""
        stem = pathlib.Path(fault.path).stem.strip("_")
        reached = self.reached.get(number, set())
        tests = sorted(
            self.seconds if "" in reached else reached,
            key=lambda name: (stem not in name.split("::")[0], self.seconds[name]),
        )
        spent = 0.0
        while tests and spent < MOST:
            batch = [tests.pop(0)]
            seconds = self.seconds[batch[0]]
            while tests and seconds + self.seconds[tests[0]] < BATCH:
                batch.append(tests.pop(0))
                seconds += self.seconds[batch[-1]]
            spent += seconds
            if self._pytest(["-x", *batch], {"MUTANT": str(number)}, 60 + 10 * seconds) != 0:
                return " ".join(sorted({name.split("::")[0] for name in batch}))
        return None

    def reach(self, number: int) -> int:
        """How many tests execute the place of a fault."""
        return len(self.reached.get(number, set()) - {""}) or len(self.seconds) * (number in self.reached)
