"""Tests quantize, fake_quantize and quantize_nvfp4 against NumPy in float64."""

import itertools
import math
import re

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from arrays import random, sampled
from hypothesis import given, settings
from hypothesis import strategies as st
from quantized_formats import (
    E4M3,
    E8M0,
    FLOATS,
    HAS_NAN,
    INTEGERS,
    SCALES,
    TINY,
    UNSIGNED,
    broadcast_blocks,
    dtype_of,
    magnitudes,
    nearest,
    reduce_blocks,
)
from raggemm import dequantize, fake_quantize, quantize, quantize_nvfp4

pytestmark = pytest.mark.usefixtures("emitters")

CASES = [
    ({}, (3, 1, 5), None),
    ({"axes": (0, 1, 2)}, (1, 1, 1), None),
    ({"axes": 1}, (3, 1, 5), None),
    ({"axes": (0, -2)}, (1, 1, 5), None),
    ({"axes": ()}, (3, 64, 5), None),
    ({"block": (1, 16)}, (3, 4, 5), None),
    ({"block": (-2, 32), "axes": 2}, (3, 2, 1), None),
    ({"block": ((1, 16), (2, 5))}, (3, 4, 1), None),
]
# jit reduces the time of these tests to a third.
jitted = jax.jit(quantize, static_argnames=("dtype", "axes", "block", "scale_dtype", "zero_point", "bound"))


def check_elements(x, q, name):
    """Checks that each element of q is the number of its type that is nearest to x / scale.

    x / scale may be rounded to float32 first, unless scales are float8_e8m0fnu.
    """
    quotients = np.float64(x) / broadcast_blocks(np.float64(q.scale), x.shape)
    got = np.asarray(q.data, np.float64)
    if q.zero_point is None:
        want = nearest(quotients, name)
    else:
        info, zero = ml_dtypes.iinfo(dtype_of(name)), broadcast_blocks(np.int64(q.zero_point), x.shape)
        want = np.clip(np.rint(quotients) + zero, info.min, info.max) - zero
        got = got - zero
    if q.scale.dtype == E8M0:
        np.testing.assert_array_equal(got, want)
    else:
        assert (np.abs(got - quotients) <= np.abs(want - quotients) + np.abs(quotients) * 2**-22).all()


@pytest.mark.parametrize("name", [*INTEGERS, *FLOATS])
@settings(max_examples=2)
@given(
    case=st.sampled_from(CASES), scale=st.sampled_from(SCALES), seed=st.integers(0, 2**32 - 1), zero=st.booleans(),
    bound=st.sampled_from([None, None, 1.7]), dtype=st.sampled_from(["float32", "bfloat16", "float16"]),
)  # fmt: skip
def test_quantize(name, case, scale, seed, zero, bound, dtype):
    options, counts, shape = case if case[0] or bound is None else ({}, (1, 1, 1), ())
    asymmetric = name in UNSIGNED or (zero and name in INTEGERS)
    rng = np.random.default_rng(seed)
    x = (rng.normal(size=(3, 64, 5)) * 2.0 ** rng.integers(-3, 4, (3, 1, 5))).astype(dtype_of(dtype))
    q = jitted(x, name, scale_dtype=scale, zero_point=asymmetric, bound=bound, **options)
    x = np.float64(x)
    assert (q.dtype, q.scale.dtype) == (dtype_of(name), dtype_of(scale))
    assert q.scale.shape == (counts if shape is None else shape)
    low, high = magnitudes(name)[-1] * -1, magnitudes(name)[-1]
    least, most = reduce_blocks(np.min, x, counts), reduce_blocks(np.max, x, counts)
    if asymmetric:
        low = float(ml_dtypes.iinfo(dtype_of(name)).min)
        least, most = np.minimum(least, 0), np.maximum(most, 0)
    else:
        most = np.maximum(most, -least)
        least = -most
    if bound:
        least, most = np.full(counts, -bound), np.full(counts, bound)
    exact_scale = (most - least) / (high - low)
    got = np.float64(q.scale).reshape(counts)
    if scale == "float8_e8m0fnu":
        assert (exact_scale <= got * (1 + 1e-6)).all() and (got < 2 * exact_scale * (1 + 1e-6)).all()
    else:
        tolerance = {"float32": 2**-22, "bfloat16": 2**-8, "float16": 2**-11, "float8_e4m3fn": 2**-4}[
            scale
        ] * exact_scale
        smallest = {"float16": 2**-24, "float8_e4m3fn": 2**-9}.get(scale, 0)
        assert (
            (np.abs(got - exact_scale) <= np.maximum(tolerance, smallest / 2)) | ((got == 1) & (exact_scale < smallest))
        ).all()
    assert (q.zero_point is not None) == asymmetric
    if asymmetric:
        zero = np.float64(q.zero_point).reshape(counts)
        assert (np.abs(zero - np.clip(low - least / got, low, high)) < 0.501).all()
    check_elements(x, q, name)


@pytest.mark.parametrize("name", [n for n in (*INTEGERS, *FLOATS) if n not in UNSIGNED])
def test_ties_and_their_neighbours(name):
    """Ties, and the float32 numbers next to ties, are rounded in one step."""
    values = magnitudes(name)
    ties = np.float32((values[1:] + values[:-1]) / 2)
    x = np.concatenate([ties, np.nextafter(ties, np.float32(0)), np.nextafter(ties, np.float32(np.inf)), values])
    x = np.float32(np.concatenate([x, -x, [values[-1]]]))
    q = quantize(x, name, axes=0, scale_dtype=E8M0)
    assert q.scale == 1
    np.testing.assert_array_equal(np.asarray(q.data, np.float64), nearest(np.float64(x), name))


def mx_scale_code(absmax, largest):
    """Returns the 8 bits of a block's MX scale, by TransformerEngine's rule."""
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        product = float(np.float32(absmax) * np.float32(1 / largest))
    if math.isnan(product):
        return 255
    if math.isinf(product) or product == 0:
        return 254 if product else 0
    fraction, exponent = math.frexp(product)
    return min(max(exponent - (fraction == 0.5) + 127, 0), 254)


EDGES = [0, 1, 0x400000, 0x400001, 0x7FFFFF, 0x800000, 0x7F7FFFFF, 0x7F800000, 0x7F800001, 0x7FC00000]
EDGES += [(e << 23) + m for e in range(1, 255) for m in (0, 1, 0x3FFFFF, 0x400000, 0x400001, 0x600000, 0x600001)]


@pytest.mark.parametrize("name", FLOATS)
@settings(max_examples=20)
@given(bits=st.lists(st.integers(0, 0x7FFFFFFF), min_size=64, max_size=64))
def test_power_of_two_scales(name, bits):
    x = np.array([*bits, *EDGES], np.uint32).view(np.float32)
    largest = magnitudes(name)[-1]
    want = [mx_scale_code(v if name in HAS_NAN or np.isfinite(v) else np.nan, largest) for v in x]
    for signed in (x, -x):
        q = quantize(signed[:, None], name, axes=1, scale_dtype=E8M0)
        np.testing.assert_array_equal(np.asarray(q.scale).view(np.uint8)[:, 0], want)
    normal = np.isfinite(x) & (x >= TINY)
    quotients = np.float64(x[normal]) / 2.0 ** (np.array(want)[normal] - 127.0)
    np.testing.assert_array_equal(np.asarray(q.data, np.float64)[normal, 0], nearest(-quotients, name))


@pytest.mark.parametrize(
    ("name", "scale", "bound"),
    sampled([*itertools.product((*INTEGERS, *FLOATS), ("float32", "float8_e8m0fnu"), (None, 4.0))], 5, unpack=True),
)
def test_nan_and_infinity_never_become_numbers(name, scale, bound):
    x = random(6, 8)
    options = {"axes": 1, "scale_dtype": dtype_of(scale), "bound": bound}
    clean = quantize(x, name, **options)
    bad = x.copy()
    bad[1, 3], bad[2, 0], bad[4, 7] = np.nan, np.inf, -np.inf
    q = quantize(bad, name, **options)
    out = np.asarray(dequantize(q))
    assert not np.isfinite(out[bad != x]).any()
    others = [0, 3, 5]
    np.testing.assert_array_equal(out[others], np.asarray(dequantize(clean))[others])
    if name not in HAS_NAN:
        assert np.isnan(out[[1, 2, 4]]).all() and (np.asarray(q.data, np.float32)[[1, 2, 4]] == 0).all()
    elif bound is None:
        if scale == "float32":
            assert (np.asarray(q.scale)[[1, 2, 4]] == 1).all() and np.isfinite(out).sum() == x.size - 3
        else:
            assert np.asarray(q.scale).view(np.uint8)[[1, 2, 4], 0].tolist() == [255, 254, 254]
    else:
        np.testing.assert_array_equal(np.asarray(q.scale), np.asarray(clean.scale))
        np.testing.assert_array_equal(out[bad == x], np.asarray(dequantize(clean))[bad == x])
    if name == "float8_e5m2":
        assert (out[2, 0], out[4, 7]) == (np.inf, -np.inf)


@pytest.mark.parametrize("shape", [(), (4,), (8, 64), (2, 3, 8, 4)])
def test_axes_must_be_given_unless_x_has_three_axes(shape):
    x = np.ones(shape, np.float32)
    shape_text, all_axes = (re.escape(str(x)) for x in (shape, tuple(range(len(shape)))))
    message = rf"^axes: must be given for x of shape {shape_text}, .*, such as {all_axes} for one scale"
    for call in (quantize, fake_quantize):
        with pytest.raises(ValueError, match=message):
            call(x, "int8")
    assert quantize(x, "int8", bound=2).scale.shape == ()


def test_nvfp4():
    x = random(2, 64, 3) * np.float32(2.0 ** np.arange(-2, 1))
    x[0, :16, 0] = 0
    q, factor = quantize_nvfp4(x, block=(1, 16))
    assert (q.dtype, q.scale.dtype, q.scale.shape) == (ml_dtypes.float4_e2m1fn, E4M3, (2, 4, 3))
    assert (factor.dtype, factor.shape) == (np.float32, ())
    np.testing.assert_allclose(factor, np.abs(x).max() / (6 * 448), rtol=1e-6)
    scales = reduce_blocks(np.max, np.abs(np.float64(x)), (2, 4, 3)) / 6 / float(factor)
    want = np.where(scales == 0, 1, np.float32(scales).astype(E4M3).astype(np.float64))
    np.testing.assert_array_equal(np.asarray(q.scale, np.float64), want)
    assert np.float64(q.scale).max() == 448
    check_elements(np.float64(x) / float(factor), q, "float4_e2m1fn")
    out = np.asarray(dequantize(q)) * factor
    assert np.abs(out - x).max() < 0.2 * np.abs(x).max()
    assert quantize_nvfp4(np.zeros((2, 16), np.float32), block=(1, 16))[1] == 1


@pytest.mark.parametrize(
    ("name", "dtype"),
    sampled(
        [("int8", "float32"), ("uint8", "bfloat16"), ("float8_e4m3fn", "bfloat16"), ("float4_e2m1fn", "float32")],
        2,
        unpack=True,
    ),
)
def test_straight_through(name, dtype):
    x, ct = random(4, 32).astype(dtype_of(dtype)), random(4, 32, seed=1).astype(dtype_of(dtype))
    for options in ({"block": (1, 8)}, {"bound": 0.75}):
        value, tangent = jax.jit(lambda x, ct, o=options: jax.jvp(lambda x: fake_quantize(x, name, **o), (x,), (ct,)))(
            x, ct
        )
        assert value.dtype == tangent.dtype == x.dtype
        np.testing.assert_array_equal(np.asarray(value), np.asarray(dequantize(quantize(x, name, **options), x.dtype)))
        inside = np.abs(np.float32(x)) <= options.get("bound", np.inf)
        want = np.float32(ct) * inside
        np.testing.assert_array_equal(np.asarray(tangent, np.float32), want)
        gradient = jax.jit(jax.grad(lambda x, o=options: (fake_quantize(x, name, **o) * ct).sum()))(x)
        np.testing.assert_array_equal(np.asarray(gradient, np.float32), want)


def test_quantize_has_no_gradient():
    x = random(4, 32)
    gradient = jax.jit(jax.grad(lambda x: dequantize(quantize(x, jnp.float8_e4m3fn, axes=1)).sum()))(x)
    assert (np.asarray(gradient) == 0).all()
    gradient = jax.jit(jax.grad(lambda x: quantize_nvfp4(x, block=(1, 16))[1]))(x)
    assert (np.asarray(gradient) == 0).all()
