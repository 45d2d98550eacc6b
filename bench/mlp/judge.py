"""Times whole MLPs of experts: raggemm through JAX, beside the fastest systems for CPUs, in turns.

Each system runs in a process of its own (worker.py) and gets the same quantized weights, rows and routing. Before a
system is timed, some of its results are compared with sums in float64 over the dequantized weights. Then the systems
take turns. While one runs, all others are stopped. A time is the median of all calls, with the sort by expert and the
weighted sum of each token's rows. A ratio is the median of the ratios of all rounds.

Systems may repack weights before the first call. raggemm's weights are prepacked for rounded rows, and stay as JAX
stores them for exact rows.

Weights are cold: at least 1 GiB of other weights is read between two uses of an expert. Memory is on huge pages.
"""

import argparse
import itertools
import json
import os
import pathlib
import re
import select
import signal
import statistics
import subprocess
import sys
from typing import Any

import numpy as np
from install import install
from layer import FORMATS, MODELS, Layer

ROOT = pathlib.Path(__file__).resolve().parents[2]
# For each system: the folder of its installation, and the rows that it takes for each format. "exact": rows stay
# bfloat16 or float32. "32": rows are rounded to int8 in blocks of 32. "row": whole rows are rounded to int8.
SYSTEMS: dict[str, tuple[str, dict[str, tuple[str, ...]]]] = {
    "raggemm": (
        "",
        {
            "int4-32": ("exact", "32", "row"),
            "mxfp4": ("exact", "32"),
            "int8": ("exact", "row"),
            "int8-32": ("exact", "32"),
        },
    ),
    "ggml": ("ggml", {form: ("32",) for form in ("int4-32", "mxfp4", "int8-32")}),
    "ik_llama.cpp": ("ik_llama.cpp", {form: ("32",) for form in ("int4-32", "mxfp4", "int8-32")}),
    "sglang": ("torch", {"int4-32": ("row",), "mxfp4": ("exact",), "int8": ("row",)}),
    "zendnn": ("torch", {"int8": ("row",)}),
}
# Largest distance from the expected results over their length. Rows that are rounded to int8 are about 1 % off.
TOLERANCE = {"exact": 0.01, "32": 0.03, "row": 0.05}
SECONDS_TO_BUILD, SECONDS_TO_ANSWER = 900, 300
# Limits for warnings. A thread that waits for a core means that other programs run.
LEAST_HUGE_PAGES, MOST_WAITED = 0.9, 0.05


class Worker:
    """The process of a system. It is stopped, unless it has a request."""

    def __init__(self, name: str, peers: pathlib.Path, model: str, form: str, threads: int):
        folder = SYSTEMS[name][0]
        python = peers / folder / "bin/python" if folder == "torch" else sys.executable
        self.name, self._log = name, peers / f"worker-{name}.log"
        # glibc asks for huge pages for each large allocation.
        environment = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1", "OMP_NUM_THREADS": str(threads)}
        command = [str(python), str(pathlib.Path(__file__).with_name("worker.py")), name, str(peers), model, form]
        command.append(str(threads))
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=os.environ | environment,
            )
        self.built = self._read(SECONDS_TO_BUILD)

    def _read(self, seconds: float) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = ""
        if select.select([self._process.stdout], [], [], seconds)[0]:
            line = self._process.stdout.readline()
        elif self._process.poll() is None:
            self._process.kill()
            return {"error": f"no answer within {seconds} seconds"}
        if line:
            self._process.send_signal(signal.SIGSTOP)  # Its threads might wait actively for work.
            return json.loads(line)
        code = self._process.wait()
        last = (self._log.read_text(errors="replace").strip().splitlines() or [""])[-1]
        return {"error": f"ended by {signal.Signals(-code).name}" if code < 0 else f"ended with {code}: {last}"[:200]}

    def ask(self, **request: Any) -> dict[str, Any]:
        if self._process.poll() is not None:
            return {"error": self.built.get("error", "ended after an earlier error")}
        assert self._process.stdin is not None
        self._process.send_signal(signal.SIGCONT)
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return self._read(SECONDS_TO_ANSWER)

    def end(self) -> None:
        self._process.kill()
        self._process.wait()


Cell = dict[str, Any]  # One system's result for a model, format, rows and number of tokens.


def distance(out: Any, expected: np.ndarray) -> float:
    return float(np.linalg.norm(np.asarray(out) - expected) / np.linalg.norm(expected))


def measure(workers: list[Worker], layer: Layer, rows: str, tokens: int, options: argparse.Namespace) -> list[Cell]:
    """Checks and times systems in turns. Returns a cell for each."""
    expected, cells = layer.expected(tokens), []
    turns: dict[str, list[list[float]]] = {}
    for worker in workers:
        answer = worker.ask(rows=rows, tokens=tokens, seconds=0)
        cell: Cell = {"system": worker.name}
        if "out" in answer:
            cell["distance"] = distance(answer["out"], expected)
            if not cell["distance"] < TOLERANCE[rows]:
                cell["error"] = f"WRONG: {cell['distance']:.2g} off"
        else:
            cell["error"] = answer["error"]
        cells.append(cell)
        turns[worker.name] = []
    for turn, i in itertools.product(range(options.rounds), range(len(workers))):
        at = (i + turn) % len(workers)
        if "error" not in cells[at]:
            answer = workers[at].ask(rows=rows, tokens=tokens, seconds=options.seconds)
            cells[at] |= {"error": answer["error"]} if "error" in answer else {}
            turns[workers[at].name].append(answer.get("ms", []))
            cells[at]["waited"] = max(answer.get("waited", 0), cells[at].get("waited", 0))
            cells[at]["huge_pages"] = min(answer.get("huge_pages", 1), cells[at].get("huge_pages", 1))
    ours = [statistics.median(ms) for ms in turns.get("raggemm", []) if ms]
    for cell in cells:
        medians = [statistics.median(ms) for ms in turns[cell["system"]] if ms]
        if "error" not in cell:
            cell["ms"] = statistics.median(itertools.chain(*turns[cell["system"]]))
            if len(ours) == len(medians):
                # The speed of memory changes from second to second, so medians over all rounds might not compare.
                pairs = zip(medians, ours, strict=True)
                cell["ratio"] = statistics.median(theirs / of_us for theirs, of_us in pairs)
    return cells


def judge(model: str, form: str, reasons: dict[str, str], options: argparse.Namespace) -> tuple[list[Cell], list[str]]:
    """Measures all systems on one format. Returns the cells, and what each system says about itself."""
    layer, workers, cells, about = Layer(model, form), [], [], []
    try:
        for name in options.systems:
            if form in SYSTEMS[name][1] and not reasons.get(name):
                workers.append(Worker(name, options.peers, model, form, options.threads))
                built = workers[-1].built
                about.append(f"{name}, {model}, {form}: {built.get('error') or built['about']}")
        for rows in TOLERANCE:
            able = [worker for worker in workers if rows in SYSTEMS[worker.name][1][form]]
            for tokens in options.tokens if able else ():
                found = measure(able, layer, rows, tokens, options)
                keys = {"model": model, "format": form, "rows": rows, "tokens": tokens}
                cells += [keys | cell for cell in found]
                print(f"measured {model}, {form}, {rows} rows, {tokens} tokens", file=sys.stderr, flush=True)
    finally:
        for worker in workers:
            worker.end()
    return cells, about


def table(cells: list[Cell], exact: bool) -> str:
    """Returns the table of exact or rounded rows. Each cell has a time, an error, and the time over raggemm's."""
    cells = [cell for cell in cells if (cell["rows"] == "exact") == exact]
    names = [name for name in SYSTEMS if any(cell["system"] == name for cell in cells)]
    lines: dict[tuple, dict[str, Cell]] = {}
    for cell in cells:
        key = tuple(cell[name] for name in ("model", "format", "rows", "tokens"))
        lines.setdefault(key, {})[cell["system"]] = cell
    text = f"{'model':<14} {'format':<8} {'rows':<6} {'tokens':>6}" + "".join(f" | {name:^25}" for name in names)
    text += "\n" + " " * 37 + "".join(f" | {'ms':>9} {'error':>8} {'/ ours':>6}" for _ in names)
    for (model, form, rows, tokens), found in lines.items():
        rows = {"exact": "exact", "row": "whole"}.get(rows, rows)
        text += f"\n{model:<14} {form:<8} {rows:<6} {tokens:>6}"
        for name in names:
            cell = found.get(name, {})
            error = f"{100 * cell['distance']:.2f} %" if "distance" in cell else ""
            if "ms" not in cell:
                text += f" | {'failed' if 'error' in cell else '-':>9} {error:>8} {'':>6}"
                continue
            ratio = f"{cell['ratio']:.2f}" if "ratio" in cell and name != "raggemm" else ""
            text += f" | {cell['ms']:>9.3f} {error:>8} {ratio:>6}"
    title = "Exact rows: each system multiplies rows of bfloat16" if exact else "Rounded rows: rows are rounded to int8"
    return f"{title}\n\n{text if lines else 'nothing measured'}\n"


def warnings(cells: list[Cell]) -> list[str]:
    """Returns a warning for each system with other pages, and one for all times on a busy machine."""
    found, timed = [], [cell for cell in cells if "ms" in cell]
    for name in SYSTEMS:
        least = min((cell["huge_pages"] for cell in timed if cell["system"] == name), default=1)
        if least < LEAST_HUGE_PAGES:
            found.append(f"WARNING: {name} has only {least:.0%} of its memory on huge pages")
    if busy := sum(cell["waited"] > MOST_WAITED for cell in timed):
        found.append(f"WARNING: other programs used the cores during {busy} of {len(timed)} measurements")
    return found


def cpu_name() -> str:
    fields = dict(
        re.findall(r"^(model name|cpu family|model)\s*: (.*)$", pathlib.Path("/proc/cpuinfo").read_text(), re.M)
    )
    if "model name" not in fields:
        return os.uname().machine
    return f"{fields['model name']} (family {fields['cpu family']}, model {fields['model']})"


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="./dev bench --mlp", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )

    def some_of(known: Any) -> Any:
        def names(text: str) -> list[str]:
            if unknown := set(found := text.split(",")) - set(known):
                raise argparse.ArgumentTypeError(f"{', '.join(unknown)}: must be among {', '.join(known)}")
            return found

        return names

    def counts(text: str) -> list[int]:
        if not re.fullmatch(r"[1-9]\d*(,[1-9]\d*)*", text):
            raise argparse.ArgumentTypeError(f"{text}: must be positive integers with commas between them")
        return [int(number) for number in text.split(",")]

    cache = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "raggemm/mlp"
    default = {"models": "qwen3-30b-a3b,gpt-oss-20b", "formats": "int4-32,mxfp4,int8"}
    for option, known in (("models", MODELS), ("formats", FORMATS), ("systems", SYSTEMS)):
        text = f"some of {','.join(known)}; default: %(default)s"
        parser.add_argument(f"--{option}", type=some_of(known), default=default.get(option, ",".join(known)), help=text)
    parser.add_argument("--tokens", type=counts, default="1,8,64,512", help="tokens of a call; default: %(default)s")
    parser.add_argument("--rounds", type=int, default=5, help="turns of each system; default: %(default)s")
    parser.add_argument("--seconds", type=float, default=1, help="seconds of a turn; default: %(default)s")
    parser.add_argument("--threads", type=int, default=2, help="threads of each system; default: %(default)s")
    folder = "folder for the other systems (6 GB), outside of the repository; default: %(default)s"
    parser.add_argument("--peers", type=pathlib.Path, default=cache, metavar="DIR", help=folder)
    report = ROOT / "build/bench/mlp.json"
    parser.add_argument("--json", type=pathlib.Path, default=report, metavar="FILE", help="default: %(default)s")
    options = parser.parse_args(arguments)
    if options.rounds < 1 or not options.seconds > 0 or not 1 <= options.threads <= len(os.sched_getaffinity(0)):
        parser.error("--rounds must be at least 1, --seconds positive, and --threads at most the number of cores")
    options.peers = options.peers.resolve()
    return options


def main(arguments: list[str]) -> int:
    options = parse(arguments)
    options.peers.mkdir(parents=True, exist_ok=True)
    folders = {SYSTEMS[name][0] for name in options.systems} - {""}
    installed = {"": ""} | {folder: install(options.peers, folder) for folder in sorted(folders)}
    reasons = {name: installed[SYSTEMS[name][0]] for name in options.systems}
    cells: list[Cell] = []
    about = [f"{name}: {reason}" for name, reason in reasons.items() if reason]
    for model, form in itertools.product(options.models, options.formats):
        found, said = judge(model, form, reasons, options)
        cells, about = cells + found, about + said
    keys = ("system", "model", "format", "rows", "tokens")
    failures = [", ".join(str(cell[key]) for key in keys) + f": {cell['error']}" for cell in cells if "error" in cell]
    machine = {"cpu": cpu_name(), "threads": options.threads, "rounds": options.rounds, "seconds": options.seconds}
    options.json.parent.mkdir(parents=True, exist_ok=True)
    report = {"machine": machine, "systems": about, "failures": failures, "warnings": warnings(cells), "cells": cells}
    options.json.write_text(json.dumps(report, indent=1) + "\n")
    print(f"{machine['cpu']}, {options.threads} threads, huge pages, cold weights\n")
    print(table(cells, True), table(cells, False), sep="\n")
    print("\n".join([*about, "", *failures, *warnings(cells), f"report: {options.json}"]))
    return any(cell["system"] == "raggemm" and "error" in cell for cell in cells)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
