"""The options of calls. Lowering passes the options in effect to custom calls as attributes.

The options are the value of a jax.make_user_context. So JAX caches programs separately for different options.
"""

import contextlib
import operator
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import jax

from raggemm._src import library


class _Options(NamedTuple):
    """The options in effect, with the values of proto/config.proto. on_error is in lower case. None: not set."""

    threads: int | None = None
    isa: str | None = None
    executor: str | None = None
    on_error: str | None = None
    bf16_sums: str | None = None


_in_effect = jax.make_user_context(_Options())


def check_not_staged(context: str) -> None:
    """Raises RuntimeError if JAX is tracing a function. JAX would lower the function later, outside of the context."""
    with jax.transfer_guard("allow"):
        is_staged = isinstance(jax.lax.full((), 0), jax.core.Tracer)
    if is_staged:
        raise RuntimeError(
            f"{context} is entered in a function that is being traced, which jax lowers only after that: "
            "enter it around the call of the function that jit (or scan, cond, ...) compiles"
        )


def _match_choice(name: str, value: Any, allowed: Iterable[str]) -> str:
    for one in allowed:
        if isinstance(value, str) and value.upper() == one.upper():
            return one
    raise ValueError(f"{name} is {value!r}, must be one of {', '.join(allowed)}")


def _check_isa(value: Any) -> str:
    isas = library.description()["isas"]
    isa = _match_choice("isa", value, ("AUTO", *(x["name"] for x in isas)))
    usable = ["AUTO", *(x["name"] for x in isas if x["usable"])]
    for x in isas:
        if x["name"] == isa and not x["usable"]:
            raise ValueError(f"isa: {isa} is not usable here, because {x['missing']}; usable: {', '.join(usable)}")
    return isa


def _check_threads(value: Any) -> int:
    most = library.description()["max_threads"]
    try:
        threads = -1 if isinstance(value, bool) else operator.index(value)
    except TypeError:
        threads = -1
    if not 0 <= threads <= most:
        raise ValueError(f"threads is {value!r}, must be an integer in [0, {most}]")
    return threads


def _check_option(name: str, value: Any) -> Any:
    match name:
        case "threads":
            return _check_threads(value)
        case "isa":
            return _check_isa(value)
        case "on_error":
            return _match_choice(name, value, ("raise", "log", "nan"))
    return _match_choice(name, value, library.description()["executors" if name == "executor" else name])


@contextlib.contextmanager
def options(
    threads: int | None = None,
    isa: str | None = None,
    executor: str | None = None,
    on_error: str | None = None,
    bf16_sums: str | None = None,
) -> Iterator[None]:
    """Sets the options of calls that are lowered in this context. Only bf16_sums changes the bits of results.

        with raggemm.options(isa="AVX2", threads=1):
            loss, gradients = jax.jit(jax.value_and_grad(model))(weights)

    None keeps the option of the enclosing options(), else its default. Values may be in any case. The context applies
    to one thread.

    The first call of a jitted function usually lowers the program, so enter the context around it. A backward pass,
    too, has the options in effect when it is lowered. With jit around the gradient, they are the options of the forward
    pass. For `vjp(ct)` and an eager jax.grad, they are the options in effect at that time. The options also apply to
    calls that override_ragged_dot() lowers. Exported and ahead-of-time compiled programs keep their options.

    Args:
      threads: maximal number of threads of one call. 0 means RAGGEMM_THREADS, else all threads of the executor.
      isa: instruction set that raggemm.describe() lists, such as "AVX2". "AUTO" means RAGGEMM_ISA, else the CPU's best
        one for the types of the call, unless a lesser one is clearly faster in a short measurement.
      executor: "POOL" (XLA's thread pool), "OPENMP" or "SERIAL". "AUTO" means RAGGEMM_EXECUTOR, else POOL.
      on_error: handling of a call that fails at run time.
        - "raise": raises an error. This is the default on one device.
        - "log": raises an error, and writes the message to stderr at once. This is the default with several CPU
          devices, because devices that wait for the failed one in a collective end the process before the error
          arrives.
        - "nan": writes the message to stderr, fills the result with NaN and goes on. It applies to wrong data and lack
          of memory. A missing instruction set or a wrong environment variable stays an error.
      bf16_sums: rounding rule for products of bfloat16. Each gives the same bits on every CPU: "TILES" rounds as AMX,
        "PAIRS" as VDPBF16PS of AVX-512, "FMA" as float32 arithmetic, "MMLA" as BFMMLA of aarch64. MMLA is slow on other
        CPUs. "AUTO" means RAGGEMM_BF16_SUMS, else the native rule of the CPU that runs the program: TILES with AMX,
        else PAIRS on x86; MMLA with BF16, else FMA on aarch64.

    Raises:
      ValueError: for an unknown value, or an instruction set that this CPU lacks.
      RuntimeError: inside a function that JAX is tracing.
    """
    given = {"threads": threads, "isa": isa, "executor": executor, "on_error": on_error, "bf16_sums": bf16_sums}
    checked: dict[str, Any] = {name: _check_option(name, value) for name, value in given.items() if value is not None}
    check_not_staged("raggemm.options()")
    with _in_effect(_in_effect.value._replace(**checked)):
        yield


def _cpu_devices() -> int:
    try:
        return jax.device_count("cpu")
    except RuntimeError:  # no CPU backend
        return 1


def bf16_rule() -> str:
    """Returns the bf16_sums rule of a call that is lowered now, such as "PAIRS".

    Raises:
      ValueError: if the environment names an unknown rule.
    """
    named = _in_effect.value.bf16_sums
    if named not in (None, "AUTO"):
        return named
    facts = library.description()
    if not facts["bf16"]:
        raise ValueError(facts["error"])
    return facts["bf16"]["arithmetic"].upper()


def attributes() -> dict[str, str | int]:
    current = _in_effect.value
    on_error = current.on_error or ("log" if _cpu_devices() > 1 else "raise")
    values = current._replace(on_error=on_error)._asdict()
    return {name: value for name, value in values.items() if value not in (None, 0, "AUTO", "raise")}
