"""The opt-in override: programs that call jax.lax.ragged_dot lower to raggemm on CPU, without a change to them.

It replaces the lowering rule that JAX has for the primitive ragged_dot_general on the platform cpu, with
jax.interpreters.mlir.register_lowering, and calls JAX' own rule, which is private, as fallback. Neither is an interface
that JAX promises to keep: with a version of jax that this was not tested with, a trial of small products comes first.

The rule is registered when the override is first used, and stays; whether it does anything is the value of a context
of jax.make_user_context. JAX has that in the keys of its caches for traces, lowered and compiled programs, so a
function compiled with the override is not found without it, nor the other way round, and no cache is cleared.

group_offset goes another way. JAX cannot take it anywhere: it is a parameter of the primitive, which must be hashable,
and its shape, derivative and lowering rules refuse it. So `bind` of the primitive hands calls with a group_offset to
the package's ragged_dot_general while the override is on.
"""

import concurrent.futures
import contextlib
import contextvars
import functools
import logging
import threading
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.interpreters import mlir

from raggemm._src import checks, dimension_numbers, versions
from raggemm._src.arguments import default_precision, precision_attribute
from raggemm._src.dimension_numbers import SIZES_DTYPES, Result, widen_sizes
from raggemm._src.dtypes import find_bad_dtype
from raggemm._src.lax import ragged_dot_general
from raggemm._src.options import check_not_staged

_SIZES = np.array([2, 0, 3], np.int32)  # a row of no group behind
_LHS = np.arange(6 * 4, dtype=np.float32).reshape(6, 4) - 11  # small integers, whose sums are exact
_RHS = np.arange(3 * 4 * 5, dtype=np.float32).reshape(3, 4, 5) % 7 - 3
_GROUP_OF_ROW = np.repeat(np.eye(4, 3), [*_SIZES, 1], axis=0)  # [rows, groups], float64


def _exact_product(first_group: int = 0) -> np.ndarray:
    """Computes the product of the groups from first_group on, in float64."""
    return np.einsum("mg,mk,gkn->mn", _GROUP_OF_ROW[:, first_group:], _LHS, _RHS[first_group:])


def _exact_gradients() -> tuple[np.ndarray, np.ndarray]:
    """Returns the gradients of the sum of the product's squares, in float64."""
    ct = 2 * _exact_product()
    return np.einsum("mg,mn,gkn->mk", _GROUP_OF_ROW, ct, _RHS), np.einsum("mg,mk,mn->gkn", _GROUP_OF_ROW, _LHS, ct)


def _find_disagreement(what: str, call: Callable[..., Any], operands: Any, want: Any) -> str | None:
    """Compiles and runs a function, and returns what is wrong with it, if anything."""
    try:
        got = jax.block_until_ready(jax.jit(call)(*operands))
    except Exception as error:  # whatever a changed jax raises
        return f"{what}: {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        if a.shape != b.shape or not np.array_equal(np.asarray(a, np.float64), b):
            return f"{what}: the result is {np.asarray(a).tolist()}, must be {np.asarray(b).tolist()}"
    return None


def _find_fault_of_jax(primitive: Any, expansion: Callable[..., Any]) -> str | None:
    """Returns what is wrong with the primitive of jax.lax.ragged_dot or with its lowering, if anything."""
    dot = jax.lax.ragged_dot  # before the override
    if fault := _find_disagreement("jax.lax.ragged_dot", lambda *x: dot(*x), (_LHS, _RHS, _SIZES), _exact_product()):
        return fault
    equations = [e for e in jax.make_jaxpr(lambda *x: dot(*x))(_LHS, _RHS, _SIZES).eqns if e.primitive is primitive]
    if len(equations) != 1:
        return f"jax.lax.ragged_dot has {len(equations)} equations of {primitive}, must have 1"
    expanded = functools.partial(expansion, **equations[0].params)
    return _find_disagreement("the lowering of jax.lax.ragged_dot", expanded, (_LHS, _RHS, _SIZES), _exact_product())


def _squares(lhs: jax.Array, rhs: jax.Array) -> jax.Array:
    return (jax.lax.ragged_dot(lhs, rhs, jnp.asarray(_SIZES)) ** 2).sum()


def _batch(lhs: jax.Array, rhs: jax.Array, sizes: jax.Array) -> jax.Array:
    return jax.vmap(jax.lax.ragged_dot)(lhs, rhs, sizes)


def _from_group_2(lhs: jax.Array, rhs: jax.Array, sizes: jax.Array) -> jax.Array:
    return jax.lax.ragged_dot(lhs, rhs, sizes, group_offset=jnp.array([2]))


def _find_fault_of_override(lowered_by: Callable[[], list[str]]) -> str | None:
    """Returns what is wrong with the override, which is on, if anything.

    lowered_by: who lowered each call so far, "raggemm" or "jax".
    """
    trials: list[tuple[str, Callable[..., Any], Any, Any]] = [
        ("ragged_dot", lambda *x: jax.lax.ragged_dot(*x), (_LHS, _RHS, _SIZES), _exact_product()),
        ("its gradients", jax.grad(_squares, (0, 1)), (_LHS, _RHS), _exact_gradients()),
        ("vmap of it", _batch, (_LHS[None], _RHS[None], _SIZES[None]), _exact_product()[None]),
        ("group_offset", _from_group_2, (_LHS, _RHS[2:], _SIZES), _exact_product(2)),
    ]
    for what, call, operands, want in trials:
        before = len(lowered_by())
        if fault := _find_disagreement(what, call, operands, want):
            return fault
        by = lowered_by()[before:]
        if not by or set(by) != {"raggemm"}:
            return f"{what}: lowered by {', '.join(by) if by else 'jax, past the override'}, must be by raggemm"
    return None


_log = logging.getLogger("raggemm.override")

_PARAMETERS = {
    "ragged_dot_dimension_numbers",
    "precision",
    "preferred_element_type",  # the result's aval has it
    "group_offset",  # None here, see above
    "out_sharding",  # the result's aval has it
}


class RaggedDotLowering(NamedTuple):
    """The lowering of one ragged_dot or ragged_dot_general."""

    by: str  # "raggemm" or "jax"
    why: str  # what raggemm does not take, where it is "jax"
    operands: str  # as in "float32[6,4] float32[2,4,3] int32[2]", with " group_offset=int32[]" where it is given


_recorded: contextvars.ContextVar[list[RaggedDotLowering] | None] = contextvars.ContextVar("record", default=None)


def _format_aval(aval: Any) -> str:
    return f"{aval.dtype}[{','.join(map(str, aval.shape))}]"


def _record_lowering(why: str | None, operands: str) -> None:
    lowering = RaggedDotLowering("jax" if why else "raggemm", why or "", operands)
    _log.debug("ragged_dot of %s lowered by %s%s", operands, lowering.by, f": {why}" if why else "")
    if (record := _recorded.get()) is not None:
        record.append(lowering)


def _precision_attribute(operands: Any, out: Any, params: dict[str, Any]) -> str:
    lhs, rhs, _ = operands
    return precision_attribute(default_precision(params["precision"]), lhs.dtype, rhs.dtype, out.dtype)


def _find_reason(operands: Any, out: Any, params: dict[str, Any]) -> str | None:
    """Returns why raggemm does not take a call that JAX takes; None if it takes it."""
    unknown = set(params) - _PARAMETERS
    if unknown:
        return f"unknown parameters {', '.join(sorted(unknown))}"
    lhs, rhs, group_sizes = operands
    if (odd := find_bad_dtype(lhs.dtype, rhs.dtype, out.dtype, narrow=True)) is not None:
        return f"{odd[0]} is {dict(lhs=lhs, rhs=rhs, result=out)[odd[0]].dtype}"
    if group_sizes.dtype.name not in SIZES_DTYPES:
        return f"group_sizes is {group_sizes.dtype}"
    try:
        _precision_attribute(operands, out, params)
    except NotImplementedError as error:
        return str(error)
    return None


def _run_on_cpu(trial: Callable[[], str | None]) -> str | None:
    """Its result in a thread of its own, which has none of the caller's contexts: traces, meshes, precisions."""

    def run():
        # The highest precision is one that raggemm meets, whatever the configuration asks for.
        with jax.default_device(jax.local_devices(backend="cpu")[0]), jax.default_matmul_precision("highest"):
            return trial()

    with concurrent.futures.ThreadPoolExecutor(1) as thread:
        return thread.submit(run).result()


def _raise_fault(fault: str | None) -> None:
    if fault is not None:
        raise RuntimeError(
            f"raggemm's override of ragged_dot was not tested with jax {jax.__version__}, and a trial failed: {fault}"
        )


class _Override:
    """The context, and the rule that looks at it. There is one, made when it is first asked for."""

    def __init__(self):
        primitive, expansion = versions.jax_ragged_dot()
        if not versions.override_was_tested():
            _raise_fault(_run_on_cpu(lambda: _find_fault_of_jax(primitive, expansion)))
        self.is_on = jax.make_user_context(False)
        self._rule_of_jax = mlir.lower_fun(expansion, multiple_results=False)
        mlir.register_lowering(primitive, self._lower, platform="cpu")
        self._bind = primitive.bind
        primitive.bind = self._bind_with_offset
        if not versions.override_was_tested():
            try:
                _raise_fault(_run_on_cpu(self._fault))
            except BaseException:
                primitive.bind = self._bind
                raise
            _log.warning("the override of ragged_dot was not tested with jax %s; a trial passed", jax.__version__)

    def _fault(self) -> str | None:
        record: list[RaggedDotLowering] = []
        _recorded.set(record)
        with self.is_on(True):
            return _find_fault_of_override(lambda: [lowering.by for lowering in record])

    def _bind_with_offset(self, *args, **params):
        offset = params.get("group_offset")
        if not self.is_on.value or offset is None:
            return self._bind(*args, **params)
        out = ragged_dot_general(*args, **params)
        _record_lowering(
            None,
            " ".join(map(_format_aval, map(jax.typeof, args))) + f" group_offset={_format_aval(jax.typeof(offset))}",
        )
        return out

    def _lower(self, ctx, lhs, rhs, group_sizes, **params):
        (out,) = ctx.avals_out
        why = None
        if self.is_on.value:
            why = _find_reason(ctx.avals_in, out, params)
            _record_lowering(why, " ".join(map(_format_aval, ctx.avals_in)))
        if why or not self.is_on.value:
            return self._rule_of_jax(ctx, lhs, rhs, group_sizes, **params)

        result = Result(out.dtype, _precision_attribute(ctx.avals_in, out, params))

        def call(lhs, rhs, group_sizes):
            numbers = params["ragged_dot_dimension_numbers"]
            product = dimension_numbers.ragged_dot_general(
                lhs, rhs, widen_sizes(group_sizes), numbers=numbers, result=result
            )
            return versions.reshard_like(product, out)

        return mlir.lower_fun(call, multiple_results=False)(ctx, lhs, rhs, group_sizes)


_instance = functools.cache(_Override)
_creation = threading.Lock()


def _override() -> _Override:
    with _creation:  # a second one would replace the rule of the first
        return _instance()


@contextlib.contextmanager
def override_ragged_dot(enabled: bool = True) -> Iterator[list[RaggedDotLowering]]:
    """Within it, jax.lax.ragged_dot and ragged_dot_general lower to raggemm on CPU.

        with raggemm.override_ragged_dot() as lowerings:
            loss, gradients = jax.jit(jax.value_and_grad(model))(weights)
        print(lowerings)  # [RaggedDotLowering(by='raggemm', ...), ...]

    Forward, both gradients, batch dimensions and vmap are what JAX' own rules make of them. group_offset works, see
    raggemm.compat.lax. Integers and float8 beside floats are multiplied as they are stored. What raggemm does not take
    (integers with integers but those of up to 8 bits for int32, results of float8, uint64 sizes, some
    DotAlgorithmPresets) and all of it on other platforms is lowered by JAX' own rule. Unlike with that rule, group
    sizes that are negative or exceed the rows are an error when running.

    This registers a lowering rule for a primitive of JAX, and uses parts of JAX that may change without notice
    (raggemm._src.override says which). With a jax newer than 0.12 the first use lowers and runs some tiny products
    and compares them with exact ones: where they agree it is on, and the logger warns, else it raises what it found.

    What counts is where a program is lowered, usually the first call of a jitted function: enter it around that call;
    inside of a function that is being traced it raises RuntimeError. JAX' caches tell programs with the override from
    those without, so neither is ever taken for the other.

    Args:
      enabled: False: JAX' own rule, where enable_ragged_dot_override() is in effect.

    Yields:
      A list that gets an entry whenever a call is lowered here: by whom, and why if by JAX. A program that JAX has
      compiled with the override before is not lowered again. A call with group_offset is entered when it is traced, or
      run eagerly, and its derivatives are not. The logger "raggemm.override" has the same at level DEBUG.

    Raises:
      RuntimeError: with a jax that lacks these parts or fails the trial, or see above.
    """
    check_not_staged("override_ragged_dot()")
    override = _override()
    record: list[RaggedDotLowering] = []
    token = _recorded.set(record)
    try:
        with override.is_on(checks.check_bool("enabled", enabled)):
            yield record
    finally:
        _recorded.reset(token)


def enable_ragged_dot_override(enabled: bool = True) -> None:
    """override_ragged_dot() from now on, in all threads, or no more. To see what was lowered, set the logger
    "raggemm.override" to DEBUG, or look for raggemm_grouped_gemm_v1 in the compiled program's text."""
    versions.set_globally(_override().is_on, checks.check_bool("enabled", enabled))
