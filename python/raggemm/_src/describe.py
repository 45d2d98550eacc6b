import sys
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jaxlib

from raggemm._src import library, options


def _isa(isa: dict[str, Any]) -> str:
    if not isa["usable"]:
        return f"{isa['name']} (not on this CPU)"
    probed = ", ".join(f"{arithmetic} {gflops:.0f}" for arithmetic, gflops in isa["probed_gflops"].items())
    return f"{isa['name']} ({probed} Gflop/s)" if probed else isa["name"]


def _facts() -> Iterator[tuple[str, str]]:
    facts = library.description()
    yield "raggemm", f"{facts['version']}, built for version {facts['ffi_api']} of XLA's FFI"
    yield "jax", f"{jax.__version__}, jaxlib {jaxlib.__version__}, Python {sys.version.split()[0]}"
    yield "CPU", facts["cpu"]
    yield "instruction set", f"{facts['f32']['isa'] or 'none'}: {facts['f32']['reason']}"
    if bf16 := facts["bf16"]:
        yield "bf16 with bf16", f"{bf16['arithmetic']} on {bf16['isa'] or 'none'}: {bf16['reason']}"
    yield "of", ", ".join(map(_isa, facts["isas"]))
    yield "executors", ", ".join(name for name in facts["executors"] if name != "AUTO")
    yield "threads", f"at most {facts['max_threads']} for a call, {facts['openmp_threads']} with OPENMP"
    for name, value in sorted(facts["environment"].items()):
        yield name, "not set" if value is None else value
    yield "options", ", ".join(f"{name}={value}" for name, value in options.attributes().items()) or "defaults"
    if facts["error"]:
        yield "error", facts["error"]


def describe(function: Callable[..., Any] | None = None, /, *args: Any, **kwargs: Any) -> None:
    """Prints the configuration of this process, or the plans of a program's calls.

        raggemm.describe()
        raggemm.describe(jax.jit(jax.grad(loss)), weights, batch)

    Without arguments, describe prints versions, the CPU, the instruction set and why it was chosen, executors, threads,
    the environment variables RAGGEMM_ISA, RAGGEMM_THREADS, RAGGEMM_EXECUTOR and RAGGEMM_BF16_SUMS, and the options.

    With a function, describe calls function(*args, **kwargs) once, waits for the results, and prints the plan of each
    raggemm call that ran meanwhile, on any thread: mode, extents, types, instruction set, executor, threads and tiles.
    moe_mlp computes its rows in pieces. It has plans for the products of the first piece, and none for its gradient.
    """
    if function is None:
        facts = list(_facts())
        width = max(len(name) for name, _ in facts)
        print("\n".join(f"{name:{width}}  {text}" for name, text in facts))
        return
    if not callable(function):
        raise TypeError(f"function is a {type(function).__name__}, must be callable")
    plans = ""
    library.record_plans(True)
    try:
        jax.block_until_ready(function(*args, **kwargs))
    finally:
        library.record_plans(False)
        plans = library.take_plans()
    print(plans.rstrip("\n") or "no plans: no call of raggemm ran, or gradients of moe_mlp alone, which have none")
