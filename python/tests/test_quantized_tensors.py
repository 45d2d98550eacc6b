"""QuantizedTensors as JAX has them: tangents that are none, pytrees, donation, straight-through gradients."""

import jax
import jax.numpy as jnp
import numpy as np
from arrays import random
from quantized_operands import tensor
from raggemm import QuantizedTensor, gmm

M, G, K, N, LAYERS = 12, 3, 32, 32, 3
SIZES = np.array([5, 0, 4], np.int32)
LHS = random(M, K)
same = np.testing.assert_array_equal
FORMATS = {
    "scales": (jnp.int8, (G, 2, N), False),
    "zeros": (jnp.uint4, (G, 1, N), True),
    "groups": (jnp.float8_e4m3fn, (G,), False),
    "one": (jnp.float4_e2m1fn, (), False),
}


def weights(name):
    dtype, shape, zero = FORMATS[name]
    return tensor(dtype, (G, K, N), shape, zero=zero)


def product(x, w):
    return gmm(x, w, SIZES)


# derivatives, against float64


def test_tangents_that_are_none(x64):
    """float0 of integers, and zeros of float8, which the data of a tensor has no use for."""
    w = weights("zeros")
    none = np.zeros(w.shape, jax.dtypes.float0), w.scale, np.zeros(w.zero_point.shape, jax.dtypes.float0)
    value, tangent = jax.jvp(lambda w: product(LHS, w), (w,), (QuantizedTensor(*none),))
    same(tangent, value)
    gradient = jax.grad(lambda w: product(LHS, w).sum(), allow_int=True)(w)
    assert gradient.data.dtype == gradient.zero_point.dtype == jax.dtypes.float0
    w = tensor(jnp.float8_e4m3fn, (G, K, N), (G, 1, N))
    gradient = jax.grad(lambda w: product(LHS, w).sum())(w)
    assert gradient.data.dtype == jnp.float8_e4m3fn
    assert (np.asarray(gradient.data, np.float32) == 0).all()


def test_scales_that_have_no_derivative():
    """Powers of two without zero or sign are constants: what JAX takes for their tangent of zero is NaN."""
    w = tensor(jnp.float4_e2m1fn, (G, K, N), (G, 1, N), jnp.float8_e8m0fnu)
    tangents = LHS, jnp.zeros_like(w.scale)
    value, tangent = jax.jvp(lambda x, s: product(x, QuantizedTensor(w.data, s)), (LHS, w.scale), tangents)
    same(tangent, value)


# pytrees


# fake_quantize
