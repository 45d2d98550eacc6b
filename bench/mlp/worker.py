"""Runs one system in a process of its own: worker.py SYSTEM PEERS MODEL FORMAT THREADS.

Each line of stdin is a request, and each line of stdout an answer, in JSON. The first answer comes when the weights are
in memory.

    {"rows": R, "tokens": T, "seconds": 0}    {"out": checked rows of the first call}
    {"rows": R, "tokens": T, "seconds": S}    {"ms": milliseconds of each call, "waited": share of the time that threads
                                              waited for a core, "huge_pages": share of the memory}
    any request                               {"error": why it failed}
"""

import functools
import importlib
import itertools
import json
import os
import pathlib
import sys
import time
from typing import Any

import numpy as np
from layer import Layer

MODULES = {
    "raggemm": "ours",
    "ggml": "ggml",
    "ik_llama.cpp": "ggml",
    "sglang": "torch_peers",
    "zendnn": "torch_peers",
}


def huge_pages() -> float:
    """Returns the share of this process' anonymous memory that is on huge pages."""
    lines = (line.split() for line in pathlib.Path("/proc/self/smaps_rollup").read_text().splitlines()[1:])
    sizes = {fields[0]: int(fields[1]) for fields in lines}
    return sizes["AnonHugePages:"] / max(1, sizes["Anonymous:"])


def waited() -> float:
    """Returns the milliseconds that this process' threads were ready to run, but waited for a core."""
    files = pathlib.Path("/proc/self/task").glob("*/schedstat")
    return sum(1e-6 * int(file.read_text().split()[1]) for file in files)


class Worker:
    def __init__(self, system: str, peers: str, model: str, form: str):
        self._layer = Layer(model, form)
        module = importlib.import_module(MODULES[system])
        self._system = module.make(system, pathlib.Path(peers), self._layer)
        self.about = self._system.about

    @functools.cache  # noqa: B019  A process has one worker.
    def _calls(self, rows: str, tokens: int) -> Any:
        """Returns an endless iterator of calls whose arguments are in the system's form.

        Runs each copy once, because some systems repack weights in the first call.
        """
        x = self._layer.rows(tokens)
        calls = [self._system.prepare(rows, x, call) for call in self._layer.calls(tokens)]
        for call in calls[: self._layer.copies]:
            call()
        return itertools.cycle(calls)

    def answer(self, rows: str, tokens: int, seconds: float) -> dict[str, Any]:
        if not seconds:
            call = self._system.prepare(rows, self._layer.rows(tokens), self._layer.calls(tokens)[0])
            out = self._system.to_numpy(call())
            return {"out": out[self._layer.checked_rows(tokens)].astype(np.float64).tolist()}
        calls = self._calls(rows, tokens)
        times: list[float] = []
        next(calls)()  # Wakes the threads.
        begin, ready = time.perf_counter(), waited()
        until = begin + seconds
        while time.perf_counter() < until or len(times) < 3:
            call = next(calls)
            start = time.perf_counter()
            call()
            times.append(1e3 * (time.perf_counter() - start))
        share = (waited() - ready) / (1e3 * (time.perf_counter() - begin))
        return {"ms": times, "waited": share, "huge_pages": huge_pages()}


def describe(error: Exception) -> str:
    return f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0]}"[:200]


def main() -> None:
    answers, sys.stdout = sys.stdout, sys.stderr  # Libraries print.

    def write(answer: dict[str, Any]) -> None:
        print(json.dumps(answer), file=answers, flush=True)

    try:
        # All libraries have as many threads as cores.
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: int(sys.argv[5])])
        worker = Worker(*sys.argv[1:5])
    except Exception as error:
        return write({"error": describe(error)})
    write({"about": worker.about})
    for line in sys.stdin:
        try:
            write(worker.answer(**json.loads(line)))
        except Exception as error:
            write({"error": describe(error)})


if __name__ == "__main__":
    main()
