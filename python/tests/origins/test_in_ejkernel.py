"""Tests raggemm in ejkernel, after register(), against NumPy in float64.

The cases are from ejkernel's tests, which its package lacks.
"""

import functools
import inspect

import ejkernel.kernels
import jax
import numpy as np
import pytest
from ejkernel.kernels._registry import kernel_registry
from ejkernel.modules.operations import grouped_matmul
from program_text import custom_calls
from raggemm.compat import ejkernel as compat

ALGORITHMS = ("grouped_matmul", "grouped_matmulv2", "grouped_matmulv3")


@pytest.fixture(autouse=True, scope="module")
def registered():
    compat.register()


def random(seed, *shape, scale=1.0):
    return (np.random.default_rng(seed).normal(size=shape) * scale).astype(np.float32)


def expected(lhs, rhs, sizes, scale=None, bias=None, existing_out=0):
    """Computes the product in float64. Shapes: rhs [G,k,n], scale [G,blocks,1,n], bias [G,1,n]."""
    rhs = rhs.astype(np.float64)
    if scale is not None:
        rhs = rhs * np.repeat(scale[:, :, 0].astype(np.float64), rhs.shape[1] // scale.shape[1], axis=1)
    out, start = np.zeros((len(lhs), rhs.shape[2])), 0
    for g, size in enumerate(sizes):
        rows = slice(start, start := start + size)
        out[rows] = lhs[rows].astype(np.float64) @ rhs[g] + (0 if bias is None else bias[g])
    return out + existing_out


def close(got, want, relative=2e-5):
    np.testing.assert_allclose(got, want, rtol=relative, atol=relative * np.abs(want).max())


def kernel(algorithm):
    return kernel_registry.get(algorithm, platform=ejkernel.kernels.Platform.XLA)


def test_v1_and_v2_have_one_kernel():
    first, second = (inspect.unwrap(kernel(name)) for name in ALGORITHMS[:2])
    assert first is second


@pytest.mark.parametrize("transpose_rhs", [False, True])
@pytest.mark.parametrize("options", [{}, {"use_v2": True}, {"use_v3": True}], ids=["v1", "v2", "v3"])
def test_function(transpose_rhs, options):
    """do_padding is off, because padding drops existing_out."""
    sizes = np.array([20, 0, 44], np.int32)
    lhs, rhs, out = random(2, 64, 32), random(3, 3, 32, 16), random(4, 64, 16)
    call = functools.partial(grouped_matmul, transpose_rhs=transpose_rhs, platform="xla", do_padding=False, **options)
    args = lhs, rhs.swapaxes(1, 2) if transpose_rhs else rhs, sizes, None, out
    close(call(*args), expected(lhs, rhs, sizes, existing_out=out))
    assert custom_calls(jax.jit(call).lower(*args)) == 1


def test_function_with_scales():
    sizes = np.array([20, 44], np.int32)
    lhs, rhs = random(5, 64, 32), random(6, 2, 32, 16)
    scale, bias = np.abs(random(7, 2, 4, 1, 16)) + 0.5, random(8, 2, 1, 16)
    got = grouped_matmul(lhs, rhs, sizes, rhs_scale=scale, rhs_bias=bias, use_v3=True, platform="xla")
    close(got, expected(lhs, rhs, sizes, scale, bias))
