"""Tests that run-time errors use the argument names of the called function, also under transforms."""

import functools

import jax
import numpy as np
import pytest
import raggemm
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from raggemm import GroupedTensor, gmm, grouped_gemm, ragged_dot, tgmm
from raggemm.compat import ejkernel, lax, maxtext, megablox, tokamax, tops
from raggemm.compat import transformer_engine as te

LHS, RHS, OTHER = np.ones((8, 4), np.float32), np.ones((2, 4, 12), np.float32), np.ones((8, 12), np.float32)
WRONG = np.array([-3, 4], np.int32)
FORWARD, WGRAD = ((1,), (1,)), ((0,), (0,))


def rows(x, sizes):
    return GroupedTensor(x, first_dims=sizes)


# {name: (function of lhs, rhs and sizes, name of its argument for the sizes)}
FORWARDS = {
    "gmm": (gmm, "group_sizes"),
    "ragged_dot": (ragged_dot, "group_sizes"),
    "grouped_gemm": (lambda x, w, s: grouped_gemm(rows(x, s), w, contracting_dims=FORWARD), "lhs.first_dims"),
    "ejkernel": (ejkernel.grouped_matmul, "group_sizes"),
    "lax": (lax.ragged_dot, "group_sizes"),
    "maxtext": (maxtext.gmm, "group_sizes"),
    "megablox": (megablox.gmm, "group_sizes"),
    "tokamax": (lambda x, w, s: tokamax.ragged_dot(x, w, group_sizes=s), "group_sizes"),
    "te.grouped_dense": (te.grouped_dense, "group_sizes"),
    "te.grouped_gemm": (lambda x, w, s: te.grouped_gemm(rows(x, s), w, contracting_dims=FORWARD), "lhs.first_dims"),
}  # fmt: skip


def check_error(call, *args, message):
    with pytest.raises(
        (jax.errors.JaxRuntimeError, ValueError), match=f"^INVALID_ARGUMENT: {message} has size -3, must"
    ):
        jax.block_until_ready(jax.jit(call)(*args))


@pytest.mark.parametrize("name", FORWARDS)
def test_sizes_of_every_front_end(name):
    call, sizes = FORWARDS[name]
    check_error(call, LHS, RHS, WRONG, message=f"{sizes}: group 0")
    # A forward call would raise the error first. linear_transpose runs none.
    check_error(jax.linear_transpose(lambda x: call(x, RHS, WRONG), LHS), OTHER, message=f"{sizes}: group 0")
    check_error(jax.linear_transpose(lambda w: call(LHS, w, WRONG), RHS), OTHER, message=f"{sizes}: group 0")
    both = np.stack([[8, 0], WRONG]).astype(np.int32)
    check_error(jax.vmap(call, (None, None, 0)), LHS, RHS, both, message=f"{sizes}: group 0 of problem 0, replica 1")
    weights = np.stack([RHS, RHS])
    check_error(jax.vmap(call, (None, 0, 0)), LHS, weights, both, message=f"{sizes}: group 0 of problem 1, replica 0")


def test_sizes_of_both_operands():
    message = "lhs.first_dims: group 0"
    check_error(
        lambda x, y, s: grouped_gemm(rows(x, s), rows(y, s), contracting_dims=WGRAD), LHS, OTHER, WRONG, message=message
    )
    for call in (lambda x, y, s: tgmm(x.T, y, s), tops.tgmm):
        check_error(call, LHS, OTHER, WRONG, message="group_sizes: group 0")


def test_sizes_under_the_override():
    with raggemm.override_ragged_dot():
        check_error(lambda *args: jax.lax.ragged_dot(*args), LHS, RHS, WRONG, message="group_sizes: group 0")


def lowered_text(call, *args):
    return jax.jit(call).lower(*args).as_text()


def test_names_attribute():
    """The attribute `names` has the argument names that differ from those of the custom call."""
    sizes = np.array([3, 4], np.int32)
    assert 'names = "lhs_first=group_sizes,out_first=group_sizes"' in lowered_text(gmm, LHS, RHS, sizes)
    accumulated = lowered_text(functools.partial(tgmm, existing_out=RHS), LHS.T, OTHER, sizes)
    assert 'names = "lhs_last=group_sizes,rhs_first=group_sizes,c=existing_out"' in accumulated
    partial_sum = lowered_text(lambda *args: maxtext.gmm(*args, partial_sum=OTHER), LHS, RHS, sizes)
    assert ',c=partial_sum"' in partial_sum
    with_c = lowered_text(
        lambda *args: grouped_gemm(*args, contracting_dims=((2,), (1,)), c=RHS[:, :3]), RHS[:, :3, :4], RHS
    )
    assert 'operands = "c"' in with_c
    assert "names" not in with_c
    general = lowered_text(lambda x, s: grouped_gemm(rows(x, s), RHS, contracting_dims=FORWARD, c=OTHER), LHS, sizes)
    assert 'names = "lhs_first=lhs.first_dims,out_first=lhs.first_dims"' in general


def test_names_of_a_partitioned_call(partitioning):
    mesh = jax.make_mesh((4,), ("x",), axis_types=(AxisType.Auto,))
    weights = jax.device_put(RHS, NamedSharding(mesh, P(None, None, "x")))
    program = jax.jit(gmm).lower(LHS, weights, np.array([3, 4], np.int32)).compile().as_text()
    assert "f32[8,3]" in program  # Each device has three columns.
    assert 'names = "lhs_first=group_sizes,out_first=group_sizes"' in program
