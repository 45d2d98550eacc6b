"""Tests derivatives: values against numeric derivatives, dtypes, and that no unused product is computed."""

import functools

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from arrays import random as random_of
from arrays import sampled
from cases import BY_NAME, CASES
from jax.test_util import check_grads
from program_text import calls
from raggemm import GroupedTensor, gmm, grouped_gemm, tgmm
from raggemm._src import ad
from raggemm._src.call import OPTIONAL, OperandRole

SIZES = np.array([3, 0, 2, 4], np.int32)
M, K, N, G = 11, 5, 6, 4

pytestmark = pytest.mark.usefixtures("x64")


random = functools.partial(random_of, dtype=np.float64)
LHS, RHS, OTHER = random(M, K), random(G, K, N, seed=1), random(M, N, seed=2)


def assert_close(got, want):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-11, atol=1e-11), got, want)


def float64_case(case):
    operands = case.operands()
    dims = operands.pop("dims")
    operands = {name: x.astype(np.float64) for name, x in operands.items()}
    return operands, jax.jit(lambda operands: case.run({**operands, "dims": dims}))


@pytest.mark.parametrize("case", sampled(CASES, 7), ids=str)
def test_every_operand_in_every_mode_and_storage(case):
    operands, function = float64_case(case)
    check_grads(function, (operands,), order=1, modes=("fwd", "rev"))


SECOND_ORDER_CASES = "M-nt-STRIDED", "K-nn-PACKED", "N-shared-nn-STRIDED-PACKED", "uniform-tn", "all-nt"


@pytest.mark.parametrize("name", sampled(SECOND_ORDER_CASES, 5))
def test_second_order(name):
    operands, function = float64_case(BY_NAME[name])
    check_grads(function, (operands,), order=2, modes=("fwd", "rev"))


def test_group_offset():
    """Gradients of calls that process a part of the groups add up to the whole gradient."""
    whole = jax.jit(jax.grad(lambda x, w: jnp.sin(gmm(x, w, SIZES, np.float64)).sum(), (0, 1)))(LHS, RHS)
    dlhs, drhs = [], []
    for offset in (0, 2):
        shard = functools.partial(gmm, group_sizes=SIZES, preferred_element_type=np.float64, group_offset=offset)
        gradient = jax.grad(lambda x, w, shard=shard: jnp.sin(shard(x, w)).sum(), (0, 1))
        dx, dw = jax.jit(gradient)(LHS, RHS[offset:][:2])
        dlhs.append(dx)
        drhs.append(dw)
    assert_close((sum(dlhs), jnp.concatenate(drhs)), whole)
    # The gradient of an lhs with last_dims is a ragged-N product, which supports no group_offset.
    for layout in ("STRIDED", "PACKED"):

        def columns(x, w, layout=layout):
            lhs = GroupedTensor(x, last_dims=SIZES, layout=layout)
            return grouped_gemm(lhs, w, contracting_dims=((0,), (1,)), group_offset=1)

        check_grads(jax.jit(columns), (LHS.T, RHS[:2]), order=1)
    weights = functools.partial(tgmm, preferred_element_type=np.float64, group_offset=1, num_actual_groups=2)
    check_grads(jax.jit(lambda x, y: weights(x, y, SIZES)), (LHS.T, OTHER), order=1)


def test_existing_out():
    """The gradient of existing_out is the cotangent, with 0 in the rows that gmm overwrites."""
    ct = random(M, N, seed=3)
    ct_with_nan = ct.copy()
    ct_with_nan[3] = np.nan
    for cotangent in (ct, ct_with_nan):
        _, vjp = jax.vjp(lambda c: gmm(LHS, RHS[:2], SIZES, np.float64, group_offset=1, existing_out=c), OTHER)
        want = cotangent.copy()
        want[3:5] = 0
        np.testing.assert_array_equal(vjp(cotangent)[0], want)
    _, vjp = jax.vjp(lambda c: tgmm(LHS.T, OTHER, SIZES, np.float64, existing_out=c), RHS)
    np.testing.assert_array_equal(vjp(RHS)[0], RHS)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32, np.float64], ids=str)
def test_gradients_have_the_dtypes_of_their_operands(dtype):
    lhs, rhs, c, bias = (
        LHS.astype(dtype),
        RHS.astype(np.float32),
        random(M, N, dtype=np.float32),
        np.ones((G, N), dtype),
    )
    alpha, beta = np.ones(G, ml_dtypes.bfloat16), np.float32(0.5)

    def loss(lhs, rhs, c, bias, alpha, beta):
        x = GroupedTensor(lhs, first_dims=SIZES)
        options = {"c": c, "bias": bias, "alpha": alpha, "beta": beta, "preferred_element_type": np.float32}
        return grouped_gemm(x, rhs, contracting_dims=((1,), (1,)), **options).sum()

    operands = (lhs, rhs, c, bias, alpha, beta)
    for gradient, operand in zip(jax.eval_shape(jax.grad(loss, range(6)), *operands), operands, strict=True):
        assert (gradient.dtype, gradient.shape) == (operand.dtype, operand.shape)


def test_nan_of_c_outside_the_groups_is_not_in_the_tangent_of_beta():
    c = OTHER.copy()
    c[SIZES.sum() :] = np.nan

    def f(beta):
        lhs = GroupedTensor(LHS, first_dims=SIZES)
        return grouped_gemm(lhs, RHS, contracting_dims=((1,), (1,)), c=c, beta=beta)

    _, tangent = jax.jvp(f, (np.ones(G),), (np.ones(G),))
    np.testing.assert_array_equal(tangent, np.where(np.isnan(c), 0, c))


def test_sizes_and_offset_get_float0():
    _, vjp = jax.vjp(lambda x, w, s, o: gmm(x, w, s, group_offset=o), LHS, RHS[:3], jnp.array(SIZES), jnp.array(1))
    *_, dsizes, doffset = vjp(jnp.ones((M, N), np.float32))
    assert dsizes.dtype == doffset.dtype == jax.dtypes.float0


def test_gradients_compute_no_unused_products():
    def loss(x, w):
        return jnp.sin(gmm(x, w, SIZES, np.float64)).sum()

    assert calls(loss, LHS, RHS).total() == 1
    assert calls(jax.grad(loss), LHS, RHS).total() == 2
    assert calls(jax.grad(loss, (0, 1)), LHS, RHS).total() == 3


def test_every_float_operand_has_a_tangent_rule():
    assert [x.name for x in OPTIONAL if x.role in (OperandRole.ALPHA, OperandRole.ADDEND)] == [*ad._TANGENTS]
