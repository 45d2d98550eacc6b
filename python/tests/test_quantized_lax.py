"""Tests QuantizedTensors, and quantized types without scales, in compat.lax and in overridden jax.lax."""

import functools
import itertools

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import quantized_modes as q
import raggemm
from arrays import sampled
from program_text import custom_calls
from quantized_modes import SIZES, G, K, M, N
from quantized_operands import dense
from ragged_dots import FORMS, Form
from raggemm import QuantizedTensor
from raggemm.compat import lax

LHS = q.floats("M", 0)


def tensor(shape, dtype, seed, with_zero):
    """Returns a random QuantizedTensor with blocks of random shape, and its exact float32 values."""
    random = np.random.default_rng(seed)
    info = ml_dtypes.iinfo(dtype)
    data = random.integers(info.min, info.max + 1, shape).astype(dtype)
    counts = [random.choice([count for count in range(1, n + 1) if n % count == 0]) for n in shape]
    scale = (2.0 ** random.integers(-10, 11, counts)).astype(np.float32)
    zero = random.integers(info.min, info.max + 1, counts).astype(dtype)
    q = QuantizedTensor(data, scale, zero if with_zero else None)
    return q, dense(q).astype(np.float32)


@pytest.mark.parametrize("side", [0, 1], ids=["lhs", "rhs"])
@pytest.mark.parametrize("form", sampled(FORMS, 7), ids=str)
def test_every_form(form, side):
    seed = FORMS.index(form)
    *matrices, sizes = form.operands()
    dtype = (np.int8, ml_dtypes.int4)[seed % 2]
    given, values = list(matrices), list(matrices)
    given[side], values[side] = tensor(matrices[side].shape, dtype, seed, with_zero=seed % 3 == 0)
    out = lax.ragged_dot_general(*given, sizes, form.numbers)
    assert out.dtype == np.float32
    form.expected(*values, sizes).check(out)


DTYPES = [*(q.FORMATS[f] for f in ("int8", "uint4", "int2", "e4m3", "e5m2", "e2m1"))]


UNSCALED_CASES = [*itertools.product((ml_dtypes.bfloat16, np.float32), DTYPES)]


@pytest.mark.parametrize(("lhs_dtype", "dtype"), sampled(UNSCALED_CASES, 5, unpack=True), ids=str)
def test_unscaled_elements_with_floats(lhs_dtype, dtype):
    """The result has the dtype of jax.lax's result.

    The bits are those of raggemm.ragged_dot with QuantizedTensor(rhs). With N - 1 = 31 columns, rows of 4-bit elements
    end within a byte.
    """
    lhs, rhs = LHS.astype(lhs_dtype), q.elements(dtype, (G, K, N - 1), 1)[0]
    jax_result = jax.lax.ragged_dot(lhs, rhs, SIZES)
    compat_result = lax.ragged_dot(lhs, rhs, SIZES)
    with raggemm.override_ragged_dot() as lowerings:
        call = jax.jit(lambda *x: jax.lax.ragged_dot(*x))
        overridden = call(lhs, rhs, SIZES)
        assert custom_calls(call.lower(lhs, rhs, SIZES)) == 1
    assert {x.by for x in lowerings} == {"raggemm"}
    assert jax_result.dtype == compat_result.dtype == lhs.dtype
    np.testing.assert_array_equal(compat_result, overridden)
    np.testing.assert_array_equal(compat_result, raggemm.ragged_dot(lhs, QuantizedTensor(rhs), SIZES))
    wide = lax.ragged_dot(lhs, rhs, SIZES, preferred_element_type=np.float32)
    want, magnitude = q.product("M", np.asarray(lhs, np.float64), rhs.astype(np.float64))
    np.testing.assert_array_less(np.abs(wide - want), 1e-5 * magnitude + 1e-30)


PAIRS = [("int8", "int4"), ("int4", "int4"), ("uint4", "int2"), ("int4", "uint8")]


@pytest.mark.parametrize("names", sampled(PAIRS, 2), ids=str)
def test_two_integer_operands(names):
    """int32 results of two integer operands are exact. With other result types, the override leaves calls to JAX."""
    for form in (FORMS[0], FORMS[-1], Form("km,kn->gmn, k")):
        *_, sizes = operands = form.operands()
        lhs, rhs = (q.elements(q.FORMATS[f], x.shape, 3)[0] for f, x in zip(names, operands, strict=False))
        call = functools.partial(
            jax.lax.ragged_dot_general,
            ragged_dot_dimension_numbers=form.numbers,
            preferred_element_type=jnp.int32,
        )
        with raggemm.override_ragged_dot() as lowerings:
            overridden = jax.jit(call)(lhs, rhs, sizes)
        assert [x.by for x in lowerings] == ["raggemm"]
        want = form.einsum(lhs.astype(np.int64), rhs.astype(np.int64), sizes)
        assert overridden.dtype == np.int32
        np.testing.assert_array_equal(overridden, want)
        np.testing.assert_array_equal(lax.ragged_dot_general(lhs, rhs, sizes, form.numbers, None, jnp.int32), want)
    lhs, rhs = (q.elements(q.FORMATS[f], shape, 3)[0] for f, shape in zip(names, ((M, K), (G, K, N)), strict=True))
    with raggemm.override_ragged_dot() as lowerings:
        jax.jit(lambda *x: jax.lax.ragged_dot(*x))(lhs, rhs, SIZES)
    assert [x.by for x in lowerings] == ["jax"] and "result is " in lowerings[0].why
