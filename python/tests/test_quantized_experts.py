"""Weights with scales as ejkernel hands them over, and quantized arrays of tokamax."""

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import quantized_modes as q
from front_end_checks import check_errors
from quantized_modes import SIZES, G, K, M, N, QArray, experts, near
from raggemm.compat import ejkernel, tokamax

LHS, CT = q.floats("M", 0), np.random.default_rng(4).uniform(-1, 1, (M, N)).astype(np.float32)
BIAS = np.random.default_rng(5).normal(size=(G, 1, N)).astype(np.float32)


@pytest.mark.parametrize("blocks", [1, 2, 16])
@pytest.mark.parametrize("dtype", ["int8", "int4", "float8_e4m3fn"])
def test_ejkernels_scales(dtype, blocks):
    data, scale, values = experts(dtype, blocks)
    for transposed in (False, True):
        rhs = data.swapaxes(1, 2) if transposed else data

        def of(lhs, scale, rhs=rhs, transposed=transposed):
            call = ejkernel.grouped_matmul
            out = call(lhs, rhs, SIZES, rhs_scale=scale, rhs_bias=BIAS, transpose_rhs=transposed, use_v3=True)
            return (out * CT).sum(), out

        (dlhs, dscale), out = jax.jit(jax.grad(of, (0, 1), has_aux=True))(LHS, scale)
        want, magnitude = q.product("M", LHS, values)
        bias = np.concatenate([BIAS[:, 0], np.zeros((1, N))])[q.WHERE]
        near(out, want + bias, magnitude + np.abs(bias))
        # Scales of 4 steps of k multiply elements.
        near(dlhs, q.gradient("M", 0, values, CT), q.gradient("M", 0, np.abs(values), np.abs(CT)), 2.0**-7)
        terms, many = (f(q.gradient("M", 1, f(LHS), f(CT)) * data.astype(np.float64)) for f in (np.asarray, np.abs))
        shape = (G, blocks, K // blocks, N)
        near(dscale[:, :, 0], terms.reshape(shape).sum(2), many.reshape(shape).sum(2) + 1e-6)
    np.testing.assert_array_equal(
        ejkernel.grouped_matmul(LHS, data, SIZES, rhs_scale=scale[:, :, 0], use_v3=True),
        ejkernel.grouped_matmul(LHS, data, SIZES, rhs_scale=scale, use_v3=True),
    )


QUANTIZED = [(K // b, n) for b, n in ((K, N), (32, N), (16, N), (K, 2))]


@pytest.mark.parametrize("blocks", QUANTIZED, ids=str)
def test_tokamaxs_scales_of_channels_and_less(blocks):
    count, columns = blocks
    data = q.elements(q.FORMATS["int8"], (G, K, N), 0)[0]
    scale = (2.0 ** np.random.default_rng(1).integers(-10, 11, (G, count, columns))).astype(ml_dtypes.bfloat16)
    dense = data * np.kron(scale.astype(np.float64), np.ones((1, K // count, N // columns)))
    rows, row_scale, row_values = q.operand(q.FORMATS["int8"], "M", 0, 2)
    for lhs, values in ((LHS.astype(ml_dtypes.bfloat16), None), (QArray(rows, row_scale), row_values)):
        out = tokamax.ragged_dot(lhs, QArray(data, scale), group_sizes=SIZES, preferred_element_type=np.float32)
        values = lhs.astype(np.float64) if values is None else values
        near(out, *q.product("M", values, dense), 2.0**-8)
    out = tokamax.ragged_dot(LHS.astype(ml_dtypes.bfloat16), QArray(data, scale), group_sizes=SIZES)
    assert out.dtype == jnp.bfloat16
    assert tokamax.ragged_dot(LHS, QArray(data, scale), group_sizes=SIZES).dtype == np.float32


DATA, SCALE, _ = experts("int8", 1)
ERRORS = [
    (lambda: tokamax.ragged_dot(LHS, QArray(DATA, SCALE[:, 0], None, "nf4"), group_sizes=SIZES), NotImplementedError,
     "^rhs: qtype is nf4"),
    (lambda: tokamax.ragged_dot(LHS, QArray(DATA, SCALE), group_sizes=SIZES), NotImplementedError,
     r"^rhs\.scale: shape is \(3, 1, 1, 32\), must be"),
]  # fmt: skip


@pytest.mark.parametrize("call, error, message", ERRORS, ids=range(len(ERRORS)))
def test_errors(call, error, message):
    check_errors(call, error, message)
