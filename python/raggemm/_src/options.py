"""How calls are computed: the options that are in effect where a program is lowered, and the attributes they become.

They are the value of a context of jax.make_user_context, which JAX has in the keys of its caches for traces, lowered
and compiled programs: a function compiled with some options is not found with others, and no cache is cleared.
"""

import contextlib
import operator
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import jax

from raggemm._src import library


class _Options(NamedTuple):
    """None: nothing said. Texts as in proto/config.proto, but for on_error in small letters."""

    threads: int | None = None
    isa: str | None = None
    executor: str | None = None
    on_error: str | None = None
    bf16_sums: str | None = None


_in_effect = jax.make_user_context(_Options())


def check_not_staged(context: str) -> None:
    """Raises RuntimeError in a function that is being traced: what counts is where it is lowered, which is later."""
    with jax.transfer_guard("allow"):
        is_staged = isinstance(jax.lax.full((), 0), jax.core.Tracer)
    if is_staged:
        raise RuntimeError(
            f"{context} is entered in a function that is being traced, which jax lowers only after that: "
            "enter it around the call of what jit (or scan, cond, ...) compiles"
        )


def _match_choice(name: str, value: Any, allowed: Iterable[str]) -> str:
    """The one of `allowed` that value is, whatever its case."""
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
    """How the calls are computed that are lowered within it. All but bf16_sums leave the bits of results as they are.

        with raggemm.options(isa="AVX2", threads=1):
            loss, gradients = jax.jit(jax.value_and_grad(model))(weights)

    What is None is what an enclosing options() says, else the default; case does not matter. The context is that of
    one thread.

    What counts is where a program is lowered, usually the first call of a jitted function: enter it around that call;
    inside of a function that is being traced it raises RuntimeError. A backward pass has the options of the place where
    it is lowered itself: with jit around the gradient those of the forward pass, but `vjp(ct)` or an eager jax.grad
    computes its backward pass where it stands. Calls that override_ragged_dot() lowers have the options too. JAX'
    caches tell programs with different options apart, so that no stale one is used; exported and ahead-of-time
    programs keep the options that they were lowered with.

    Args:
      threads: at most so many for one call; 0 is RAGGEMM_THREADS, else all that the executor has.
      isa: one of those that raggemm.describe() lists, as "AVX2"; "AUTO" is RAGGEMM_ISA, else the widest,
        unless a narrower one is clearly faster in a short measurement.
      executor: "POOL" (XLA's threads), "OPENMP" or "SERIAL"; "AUTO" is RAGGEMM_EXECUTOR, else POOL.
      on_error: what becomes of a call that fails when running, say for its group sizes.
        - "raise": an error. The default on one device.
        - "log": the same, and the message is written to stderr at once. The default where JAX has several CPU devices:
          those that wait in a collective for the one that failed end the process before the error arrives.
        - "nan": the message is written to stderr, the result is all NaN, and the program goes on. For data and memory
          only: an instruction set that is not there, or a wrong environment variable, stays an error.
      bf16_sums: how bf16 with bf16 is summed, each with the same bits on every CPU: "TILES" as AMX does it, "PAIRS" as
        VDPBF16PS of AVX-512, "FMA" as f32 is, "MMLA" as BFMMLA of aarch64, which takes long elsewhere. "AUTO" is
        RAGGEMM_BF16_SUMS, else what the CPU that runs the program does: on x86 TILES with AMX, else PAIRS; on aarch64
        MMLA with BF16, else FMA. Name one for bits that are the same on all of them.

    Raises:
      ValueError: for a value that is not known, or an instruction set that this CPU has not; it lists what is usable.
      RuntimeError: see above.
    """
    given = {"threads": threads, "isa": isa, "executor": executor, "on_error": on_error, "bf16_sums": bf16_sums}
    checked: dict[str, Any] = {name: _check_option(name, value) for name, value in given.items() if value is not None}
    check_not_staged("raggemm.options()")
    with _in_effect(_in_effect.value._replace(**checked)):
        yield


def _cpu_devices() -> int:
    try:
        return jax.device_count("cpu")
    except RuntimeError:  # lowered for a platform that is not here
        return 1


def bf16_rule() -> str:
    """Returns the rule by which a call that is lowered now sums bf16 with bf16 in this process, as "PAIRS".

    ValueError if the environment names an unknown rule.
    """
    named = _in_effect.value.bf16_sums
    if named not in (None, "AUTO"):
        return named
    facts = library.description()
    if not facts["bf16"]:
        raise ValueError(facts["error"])
    return facts["bf16"]["arithmetic"].upper()


def attributes() -> dict[str, str | int]:
    """The attributes of a custom call that is lowered now: those that differ from proto/config.proto's defaults."""
    current = _in_effect.value
    on_error = current.on_error or ("log" if _cpu_devices() > 1 else "raise")
    words = current._replace(on_error=on_error)._asdict()
    return {name: value for name, value in words.items() if value not in (None, 0, "AUTO", "raise")}
