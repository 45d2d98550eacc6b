"""Whether the override of ragged_dot does what it should, tried with small products whose results are known.

For a version of jax that it was not tested with: the parts of jax that it rests on may have changed without notice.
"""

import functools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

SIZES = np.array([2, 0, 3], np.int32)  # a row of no group behind
LHS = np.arange(6 * 4, dtype=np.float32).reshape(6, 4) - 11  # small integers, whose sums are exact
RHS = np.arange(3 * 4 * 5, dtype=np.float32).reshape(3, 4, 5) % 7 - 3


def _groups() -> Iterator[tuple[int, slice]]:
    ends = np.cumsum(SIZES)
    for group, (start, end) in enumerate(zip(ends - SIZES, ends, strict=True)):
        yield group, slice(start, end)


def _product(first_group: int = 0) -> np.ndarray:
    """In float64, of the groups from first_group on."""
    out = np.zeros((6, 5))
    for group, rows in _groups():
        if group >= first_group:
            out[rows] = LHS[rows].astype(np.float64) @ RHS[group]
    return out


def _gradients() -> tuple[np.ndarray, np.ndarray]:
    """Of the sum of the product's squares, in float64."""
    ct, dlhs, drhs = 2 * _product(), np.zeros(LHS.shape), np.zeros(RHS.shape)
    for group, rows in _groups():
        dlhs[rows] = ct[rows] @ RHS[group].T
        drhs[group] = LHS[rows].T.astype(np.float64) @ ct[rows]
    return dlhs, drhs


def _disagreement(what: str, call: Callable[..., Any], operands: Any, want: Any) -> str | None:
    """What is wrong with a function that is compiled and run now, if anything."""
    try:
        got = jax.block_until_ready(jax.jit(call)(*operands))
    except Exception as error:  # whatever a changed jax raises
        return f"{what}: {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        if a.shape != b.shape or not np.array_equal(np.asarray(a, np.float64), b):
            return f"{what}: the result is {np.asarray(a).tolist()}, must be {np.asarray(b).tolist()}"
    return None


def fault_of_jax(primitive: Any, expansion: Callable[..., Any]) -> str | None:
    """What is wrong with the primitive of jax.lax.ragged_dot and the function that is its lowering, if anything."""
    dot = jax.lax.ragged_dot  # as it is before the override
    if fault := _disagreement("jax.lax.ragged_dot", lambda *x: dot(*x), (LHS, RHS, SIZES), _product()):
        return fault
    equations = [e for e in jax.make_jaxpr(lambda *x: dot(*x))(LHS, RHS, SIZES).eqns if e.primitive is primitive]
    if len(equations) != 1:
        return f"jax.lax.ragged_dot has {len(equations)} equations of {primitive}, must have 1"
    expanded = functools.partial(expansion, **equations[0].params)
    return _disagreement("the lowering of jax.lax.ragged_dot", expanded, (LHS, RHS, SIZES), _product())


def _squares(lhs: jax.Array, rhs: jax.Array) -> jax.Array:
    return (jax.lax.ragged_dot(lhs, rhs, jnp.asarray(SIZES)) ** 2).sum()


def _batch(lhs: jax.Array, rhs: jax.Array, sizes: jax.Array) -> jax.Array:
    return jax.vmap(jax.lax.ragged_dot)(lhs, rhs, sizes)


def _from_group_2(lhs: jax.Array, rhs: jax.Array, sizes: jax.Array) -> jax.Array:
    return jax.lax.ragged_dot(lhs, rhs, sizes, group_offset=jnp.array([2]))


def fault_of_override(lowered_by: Callable[[], list[str]]) -> str | None:
    """What is wrong with the override, which is on, if anything. lowered_by: who lowered each call so far, "raggemm"
    or "jax"."""
    trials: list[tuple[str, Callable[..., Any], Any, Any]] = [
        ("ragged_dot", lambda *x: jax.lax.ragged_dot(*x), (LHS, RHS, SIZES), _product()),
        ("its gradients", jax.grad(_squares, (0, 1)), (LHS, RHS), _gradients()),
        ("vmap of it", _batch, (LHS[None], RHS[None], SIZES[None]), _product()[None]),
        ("group_offset", _from_group_2, (LHS, RHS[2:], SIZES), _product(2)),
    ]
    for what, call, operands, want in trials:
        before = len(lowered_by())
        if fault := _disagreement(what, call, operands, want):
            return fault
        by = lowered_by()[before:]
        if not by or set(by) != {"raggemm"}:
            return f"{what}: lowered by {', '.join(by) if by else 'jax, past the override'}, must be by raggemm"
    return None
