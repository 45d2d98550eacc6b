"""Whole MLPs of experts: raggemm through JAX against SGLang's and AMD's kernels for CPUs, in turns.

    ./dev bench --mlp [--models=NAMES] [--formats=NAMES] [--tokens=NUMBERS] [--turns=N] [--seconds=S]

Each contender runs in a process and an environment of its own (worker.py), on the same weights and routing. Before it
is timed, its results are compared with float64. Contenders take turns, so that slow minutes of memory are everybody's;
a time is the median of all calls, with sorting by expert and the weighted sum of each token's rows, and a ratio the
median of those of each round of turns. int8 is weights alone for raggemm, and weights and rows for the others, which
round the rows as they come.
"""

import argparse
import itertools
import json
import os
import pathlib
import signal
import statistics
import subprocess
import sys
import tempfile

import numpy as np
from layer import BYTES_PER_ELEMENT, FORMATS, MODELS, Layer

CONTENDERS = {"raggemm": FORMATS, "sglang": FORMATS, "zendnn": ("bf16", "int8")}
# Distances over lengths that are right. Rows rounded to int8 are a hundredth off by themselves.
TOLERANCE = {"bf16": 0.01, "int8": 0.06, "mxfp4": 0.01}
# Pages of 2 MiB for everybody's weights, and two threads that stay.
ENVIRONMENT = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1", "OMP_NUM_THREADS": str(os.cpu_count())}


class Worker:
    """A contender's process."""

    def __init__(self, python: str, name: str, form: str, model: str, layer: Layer):
        self.name, self._layer = name, layer
        script = pathlib.Path(__file__).with_name("worker.py")
        command = [python, str(script), name, form, model, str(layer.folder)]
        self._log = layer.folder / f"{name}.log"
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=os.environ | ENVIRONMENT,
            )
        self.error = self._read().get("error")

    def _read(self) -> dict:
        line = self._process.stdout.readline()
        if line:
            return json.loads(line)
        return {"error": (self._log.read_text(errors="replace").strip().splitlines() or ["ended"])[-1][:150]}

    def ask(self, tokens: int, seconds: float) -> list[float]:
        """Milliseconds of each call; none, and `error`, where it failed."""
        if self.error:
            return []
        self._process.send_signal(signal.SIGCONT)
        self._process.stdin.write(json.dumps({"tokens": tokens, "seconds": seconds}) + "\n")
        self._process.stdin.flush()
        answer = self._read()
        # Threads of OpenMP look for work long after a call, on cores that the next contender needs.
        self._process.send_signal(signal.SIGSTOP)
        self.error = answer.get("error")
        return answer.get("ms", [])

    def check(self, form: str, tokens: int) -> float | None:
        """How far off some rows are, None where there are none."""
        self.ask(tokens, 0)
        if self.error:
            return None
        rows = sorted({0, tokens // 2, tokens - 1})
        want = self._layer.expected(form, tokens, rows)
        got = self._layer.load(self.name)[rows].astype(np.float64)
        off = float(np.linalg.norm(got - want) / np.linalg.norm(want))
        if not off < TOLERANCE[form]:
            self.error = f"WRONG: {off:.2g} off with {tokens} tokens"
        return off

    def end(self) -> None:
        self._process.kill()
        self._process.wait()


def gigabytes(layer: Layer, form: str, tokens: int) -> float:
    """The weights of the experts that have rows."""
    active = len(np.unique(layer.load(f"experts{tokens}")))
    return active * layer.model.expert_elements * BYTES_PER_ELEMENT[form] * 1e-9


Times = dict[str, list[list[float]]]  # of each contender that is right, its calls in milliseconds turn by turn


def run(workers: list[Worker], form: str, tokens: int, options: argparse.Namespace) -> Times:
    for worker in workers:
        worker.check(form, tokens)
    times: Times = {worker.name: [] for worker in workers}
    for turn in range(options.turns):
        for i in range(len(workers)):
            worker = workers[(i + turn) % len(workers)]
            times[worker.name].append(worker.ask(tokens, options.seconds))
    return {name: turns for name, turns in times.items() if all(turns)}


def line(model: str, form: str, tokens: int, size: float, times: Times) -> str:
    ms = {name: statistics.median(itertools.chain(*turns)) for name, turns in times.items()}
    ours = ms.get("raggemm")
    fields = [
        f"{model:<14} {form:<6} {tokens:>6}",
        f"{ours:>10.3f} {size / ours * 1e3:>6.1f}" if ours else f"{'-':>17}",
    ]
    for name in list(CONTENDERS)[1:]:
        if not ours or name not in ms:
            fields.append(f"{'-':>17}")
            continue
        # Memory has one speed or another for seconds: medians of two contenders may be of different ones.
        rounds = zip(times[name], times["raggemm"], strict=True)
        ratio = statistics.median(statistics.median(theirs) / statistics.median(of_us) for theirs, of_us in rounds)
        fields.append(f"{ms[name]:>10.3f} {ratio:>6.2f}")
    return "  ".join(fields)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="./dev bench --mlp", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--peers-python", required=True, help=argparse.SUPPRESS)
    parser.add_argument("--models", default=",".join(list(MODELS)[:-1]), help="some of %(default)s")
    parser.add_argument("--formats", default=",".join(FORMATS), help="some of %(default)s")
    parser.add_argument("--tokens", default="1,8,64,512", help="of a call; default: %(default)s")
    parser.add_argument("--turns", type=int, default=5, help="of each contender; default: %(default)s")
    parser.add_argument("--seconds", type=float, default=1, help="of a turn; default: %(default)s")
    options = parser.parse_args()
    forms, tokens = options.formats.split(","), [int(t) for t in options.tokens.split(",")]
    failures: set[str] = set()
    print(f"{'model':<14} {'format':<6} {'tokens':>6}  {'raggemm ms':>10} {'GB/s':>6}", end="")
    print("".join(f"  {name + ' ms':>10} {'/ ours':>6}" for name in list(CONTENDERS)[1:]), flush=True)
    for model in options.models.split(","):
        with tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as folder:
            layer = Layer(pathlib.Path(folder), MODELS[model])
            layer.make(forms, tokens)
            for form in forms:
                names = [name for name, of in CONTENDERS.items() if form in of]
                python = {name: sys.executable if name == "raggemm" else options.peers_python for name in names}
                workers = [Worker(python[name], name, form, model, layer) for name in names]
                for t in tokens:
                    times = run(workers, form, t, options)
                    print(line(model, form, t, gigabytes(layer, form, t), times), flush=True)
                failures |= {f"{w.name} {form} {model}: {w.error}" for w in workers if w.error}
                for worker in workers:
                    worker.end()
    print("\n".join(["", *sorted(failures)]))
    return any(failure.startswith("raggemm") for failure in failures)


if __name__ == "__main__":
    sys.exit(main())
