"""The opt-in override: jax.lax.ragged_dot lowers to raggemm on CPU.

The first use of the override replaces JAX's lowering rule of the primitive ragged_dot_general for the platform cpu,
with jax.interpreters.mlir.register_lowering. The new rule falls back to JAX's private rule. Neither is a stable
interface. A context of jax.make_user_context switches the new rule on and off.

group_offset needs another mechanism. In JAX it is a parameter of the primitive. Parameters must be hashable, and JAX's
rules for shapes, derivatives and lowering reject a group_offset. While the override is on, `bind` of the primitive
passes calls with a group_offset to ragged_dot_general of raggemm.
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

_SIZES = np.array([2, 0, 3], np.int32)  # sizes for six rows, the last of which has no group
_LHS = np.arange(6 * 4, dtype=np.float32).reshape(6, 4) - 11  # small integers have exact sums
_RHS = np.arange(3 * 4 * 5, dtype=np.float32).reshape(3, 4, 5) % 7 - 3
_GROUP_OF_ROW = np.repeat(np.eye(4, 3), [*_SIZES, 1], axis=0)  # [rows, groups]: 1 if the row belongs to the group


def _exact_product(first_group: int = 0) -> np.ndarray:
    return np.einsum("mg,mk,gkn->mn", _GROUP_OF_ROW[:, first_group:], _LHS, _RHS[first_group:])


def _exact_gradients() -> tuple[np.ndarray, np.ndarray]:
    ct = 2 * _exact_product()
    return np.einsum("mg,mn,gkn->mk", _GROUP_OF_ROW, ct, _RHS), np.einsum("mg,mk,mn->gkn", _GROUP_OF_ROW, _LHS, ct)


def _find_difference(what: str, call: Callable[..., Any], operands: Any, want: Any) -> str | None:
    try:
        got = jax.block_until_ready(jax.jit(call)(*operands))
    except Exception as error:  # an untested version of jax may raise any exception
        return f"{what}: {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        if a.shape != b.shape or not np.array_equal(np.asarray(a, np.float64), b):
            return f"{what}: the result is {np.asarray(a).tolist()}, must be {np.asarray(b).tolist()}"
    return None


def _find_fault_of_jax(primitive: Any, expansion: Callable[..., Any]) -> str | None:
    dot = jax.lax.ragged_dot
    if fault := _find_difference("jax.lax.ragged_dot", lambda *x: dot(*x), (_LHS, _RHS, _SIZES), _exact_product()):
        return fault
    equations = [e for e in jax.make_jaxpr(lambda *x: dot(*x))(_LHS, _RHS, _SIZES).eqns if e.primitive is primitive]
    if len(equations) != 1:
        return f"jax.lax.ragged_dot has {len(equations)} equations of {primitive}, must have 1"
    expanded = functools.partial(expansion, **equations[0].params)
    return _find_difference("the lowering of jax.lax.ragged_dot", expanded, (_LHS, _RHS, _SIZES), _exact_product())


def _squares(lhs: jax.Array, rhs: jax.Array) -> jax.Array:
    return (jax.lax.ragged_dot(lhs, rhs, jnp.asarray(_SIZES)) ** 2).sum()


def _batch(lhs: jax.Array, rhs: jax.Array, sizes: jax.Array) -> jax.Array:
    return jax.vmap(jax.lax.ragged_dot)(lhs, rhs, sizes)


def _from_group_2(lhs: jax.Array, rhs: jax.Array, sizes: jax.Array) -> jax.Array:
    return jax.lax.ragged_dot(lhs, rhs, sizes, group_offset=jnp.array([2]))


def _find_fault_of_override(lowered_by: Callable[[], list[str]]) -> str | None:
    """Runs trial products while the override is on. Each must be exact, and lowered by raggemm.

    Returns a message about the first fault, or None. lowered_by: returns "raggemm" or "jax" for each call lowered so
    far.
    """
    trials: list[tuple[str, Callable[..., Any], Any, Any]] = [
        ("ragged_dot", lambda *x: jax.lax.ragged_dot(*x), (_LHS, _RHS, _SIZES), _exact_product()),
        ("its gradients", jax.grad(_squares, (0, 1)), (_LHS, _RHS), _exact_gradients()),
        ("vmap of it", _batch, (_LHS[None], _RHS[None], _SIZES[None]), _exact_product()[None]),
        ("group_offset", _from_group_2, (_LHS, _RHS[2:], _SIZES), _exact_product(2)),
    ]
    for what, call, operands, want in trials:
        before = len(lowered_by())
        if fault := _find_difference(what, call, operands, want):
            return fault
        by = lowered_by()[before:]
        if not by or set(by) != {"raggemm"}:
            return f"{what}: lowered by {', '.join(by) if by else 'jax, past the override'}, must be by raggemm"
    return None


_log = logging.getLogger("raggemm.override")

# Parameters of ragged_dot_general that the lowering rule knows. JAX's rule lowers calls with any other parameter.
_PARAMETERS = {
    "ragged_dot_dimension_numbers",
    "precision",
    "preferred_element_type",  # not read: the result's aval has it
    "group_offset",  # always None in the lowering rule
    "out_sharding",  # not read: the result's aval has it
}


class RaggedDotLowering(NamedTuple):
    """A record of how one ragged_dot or ragged_dot_general was lowered."""

    by: str  # "raggemm" or "jax"
    why: str  # the reason if `by` is "jax", else ""
    operands: str  # such as "float32[6,4] float32[2,4,3] int32[2]", plus " group_offset=int32[]" if given


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


def _explain_fallback(operands: Any, out: Any, params: dict[str, Any]) -> str | None:
    unknown = set(params) - _PARAMETERS
    if unknown:
        return f"unknown parameters {', '.join(sorted(unknown))}"
    lhs, rhs, group_sizes = operands
    if (bad := find_bad_dtype(lhs.dtype, rhs.dtype, out.dtype, narrow=True)) is not None:
        return f"{bad[0]} is {dict(lhs=lhs, rhs=rhs, result=out)[bad[0]].dtype}"
    if group_sizes.dtype.name not in SIZES_DTYPES:
        return f"group_sizes is {group_sizes.dtype}"
    try:
        _precision_attribute(operands, out, params)
    except NotImplementedError as error:
        return str(error)
    return None


def _run_on_cpu(trial: Callable[[], str | None]) -> str | None:
    """Runs the function `trial` on the CPU in a new thread, without the caller's traces, meshes and precisions."""

    def run():
        # The user may have configured a default precision that raggemm does not support.
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
    """The context that switches the override on, and the rule that lowers ragged_dot."""

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
            why = _explain_fallback(ctx.avals_in, out, params)
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
    with _creation:  # a second _Override would replace the lowering rule of the first one
        return _instance()


@contextlib.contextmanager
def override_ragged_dot(enabled: bool = True) -> Iterator[list[RaggedDotLowering]]:
    """Lowers jax.lax.ragged_dot and ragged_dot_general to raggemm on CPU, inside this context.

        with raggemm.override_ragged_dot() as lowerings:
            loss, gradients = jax.jit(jax.value_and_grad(model))(weights)
        print(lowerings)  # [RaggedDotLowering(by='raggemm', ...), ...]

    JAX's own rules define the forward product, both gradients, batch dimensions and vmap. group_offset works (see
    raggemm.compat.lax). An integer or float8 operand next to a float operand is not converted in memory. JAX's rule
    lowers calls on other platforms, and calls that raggemm does not support: float8 results, uint64 sizes, some
    DotAlgorithmPresets, and integers with integers (supported are integers of up to 8 bits with an int32 result).
    Unlike with JAX's rule, negative group sizes and a sum above the number of rows are an error at run time.

    The override uses parts of JAX that may change without notice (see raggemm._src.override). With a jax newer than
    0.12 the first use compares some tiny products with exact results, and warns in the log if they are equal.

    Enter the context around the first call of a jitted function, which usually lowers the program.

    Args:
      enabled: False for JAX's own rule, if enable_ragged_dot_override() is in effect.

    Yields:
      A list of RaggedDotLowering, with an entry for each call that is lowered in this context. A program that JAX has
      compiled before with the override is not lowered again. A call with group_offset gets its entry when it is traced
      or run eagerly; its derivatives get none. The logger "raggemm.override" writes the same at level DEBUG.

    Raises:
      RuntimeError: inside a function that JAX is tracing, or if this version of jax lacks the parts or fails the trial.
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
    """Switches the override on or off in all threads. See override_ragged_dot().

    To see the lowered calls, search the text of a compiled program for raggemm_grouped_gemm_v1.
    """
    versions.set_globally(_override().is_on, checks.check_bool("enabled", enabled))
