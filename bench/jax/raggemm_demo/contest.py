"""A contest: contenders that compute the same, compared with the first before they are timed, in turns."""

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from raggemm_demo.checks import Checks, disagreement
from raggemm_demo.layers import Weights
from raggemm_demo.programs import Limits, Programs, WarmProgram, median_ms

FORWARD, BACKWARD = "forward", "forward+backward"
# Weights and the gradients of two contenders need another part of the memory.
LIMITS = Limits(seconds=10.0, temp_bytes=os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2)


def _errors(got: Any, reference: Any) -> Iterable[tuple[str, float]]:
    """The distances of two results, in units of what right ones may differ by: y, or a loss and its gradients for x,
    for weights, and for whatever else by name."""
    if not isinstance(got, tuple):
        yield "y", disagreement(got, reference)
        return
    # Half of it, for gradients pass more roundings to bfloat16 than y, and a third where cotangents of tokens are
    # rounded before they are those of rows. Gradients of weights are compared expert by expert: a row of one with few
    # tokens may be anything, down to the rounding errors of a zero.
    (loss, (dx, dweights, *more)), (want_loss, (want_dx, want_dweights, *want_more)) = got, reference
    share = 1 / 3 if more else 1 / 2
    yield "loss", disagreement(loss, want_loss)
    yield "gradient of x", share * disagreement(dx, want_dx)
    for name, d, want in zip(Weights._fields, dweights, want_dweights, strict=True):
        yield f"gradient of the {name} weights", share * disagreement(d, want)
    for d, want in zip(more, want_more, strict=True):
        yield "gradient of the router's weights", share * disagreement(d, want)


def checked_programs(title: str, calls: Mapping[str, Sequence[Any]], checks: Checks) -> tuple[Programs, Any]:
    """The contenders, each (function, *its arguments) and compared with the first, and results to write over. They have
    gigabytes, so that the contenders keep none."""
    programs: Programs = {}
    reference = results = None
    for name, (function, *args) in calls.items():
        programs[name] = program = WarmProgram(function, *args, over=results)
        results, program.output = program.output, None
        if reference is None:
            reference, results = results, None
        else:
            checks.add(f"{title}, {name}", _errors(results, reference))
    return programs, results


def measured(programs: Programs, over: Any) -> dict[str, dict[str, Any]]:
    """A part of a report, of programs that write over the same results; ratios are times over the first one's."""
    ms = median_ms(programs, over)
    first = next(iter(ms.values()))
    return {
        name: {
            "ms": ms[name],
            "ratio": ms[name] / first,
            "temp_bytes": program.temp_bytes,
            "compile_seconds": program.compile_seconds,
        }
        for name, program in programs.items()
    }


def table(contenders: Mapping[str, Mapping[str, Any]], first: str, notes: Mapping[str, str]) -> str:
    """What measured gives; notes stand behind the lines of some."""
    lines = [f"{'':22}  {'ms':>8}  {first:>9}  {'temp MiB':>8}  {'compile s':>9}"]
    for name, of in contenders.items():
        ms, temp = f"{of['ms']:.{0 if of['ms'] >= 100 else 1}f}", f"{of['temp_bytes'] / 2**20:.1f}"
        line = f"{name:22}  {ms:>8}  {of['ratio']:9.2f}  {temp:>8}  {of['compile_seconds']:9.2f}  {notes.get(name, '')}"
        lines.append(line.rstrip())
    return "\n".join(lines)
