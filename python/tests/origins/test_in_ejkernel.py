"""raggemm in ejkernel itself, by register(), on the cases of ejkernel's own tests of its grouped matmuls, which its
package lacks, against NumPy in float64. `./dev test --origins` runs this."""

import functools
import inspect

import ejkernel.kernels
import jax
import jax.numpy as jnp
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
    """In float64, of rhs [G,k,n], scales [G,blocks,1,n] and a bias [G,1,n]; rows of no group are existing_out's."""
    rhs = rhs.astype(np.float64)
    if scale is not None:
        rhs = rhs * np.repeat(scale[:, :, 0].astype(np.float64), rhs.shape[1] // scale.shape[1], axis=1)
    out, start = np.zeros((len(lhs), rhs.shape[2])), 0
    for g, size in enumerate(sizes):
        rows = slice(start, start := start + size)
        out[rows] = lhs[rows].astype(np.float64) @ rhs[g] + (0 if bias is None else bias[g])
    return out + existing_out


def close(got, want, digits=2e-5):
    np.testing.assert_allclose(got, want, rtol=digits, atol=digits * np.abs(want).max())


def kernel(algorithm):
    return kernel_registry.get(algorithm, platform=ejkernel.kernels.Platform.XLA)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("transpose_rhs", [False, True])
@pytest.mark.parametrize("jit", [False, True])
def test_kernels_of_the_registry(algorithm, transpose_rhs, jit):
    sizes = np.array([3, 5, 2], np.int32)
    lhs, rhs = random(0, 10, 7), random(1, 3, 7, 4)
    call = functools.partial(kernel(algorithm), transpose_rhs=transpose_rhs, tiling=None)
    args = lhs, rhs.swapaxes(1, 2) if transpose_rhs else rhs, sizes
    assert custom_calls(jax.jit(call).lower(*args)) == 1
    close((jax.jit(call) if jit else call)(*args), expected(lhs, rhs, sizes))


def test_one_kernel_has_both_names():
    first, second = (inspect.unwrap(kernel(name)) for name in ALGORITHMS[:2])
    assert first is second


@pytest.mark.parametrize("transpose_rhs", [False, True])
@pytest.mark.parametrize("options", [{}, {"use_v2": True}, {"use_v3": True}], ids=["v1", "v2", "v3"])
def test_function(transpose_rhs, options):
    """ejkernel's own function calls what is registered. Where it pads lhs, it does not pad existing_out."""
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


V3 = {  # (rows, sizes, group_offset, k, n)
    "all groups": (64, [20, 44], None, 32, 16),
    "group_offset": (16, [5, 7, 9, 3], 1, 16, 12),
}


@pytest.mark.parametrize("transpose_rhs", [False, True])
@pytest.mark.parametrize("case", V3)
def test_v3_with_scale_bias_and_gradients(case, transpose_rhs):
    rows, sizes, offset, k, n = V3[case]
    lhs, rhs = random(9, rows, k, scale=0.2), random(10, 2, k, n, scale=0.2)
    bias, out, target = random(11, 2, 1, n, scale=0.05), random(12, rows, n, scale=0.05), random(13, rows, n)
    scale = np.random.default_rng(14).uniform(0.5, 1, (2, 4, 1, n)).astype(np.float16)
    sizes, first = np.array(sizes, np.int32), offset or 0
    local = sizes[first : first + 2]
    options = {"transpose_rhs": transpose_rhs, "group_offset": None if offset is None else np.array([1], np.int32)}

    def call(lhs, rhs, out, scale, bias):
        rhs = jnp.swapaxes(rhs, 1, 2) if transpose_rhs else rhs
        options.update(existing_out=out, rhs_scale=scale, rhs_bias=bias)
        return kernel("grouped_matmulv3")(lhs, rhs, sizes, **options)

    args = lhs, rhs, out, scale, bias
    close(call(*args), expected(lhs, rhs, local, scale, bias, out))
    gradients = jax.jit(jax.grad(lambda *args: (call(*args) * target).sum(), range(5)))(*args)
    wide = np.repeat(scale[:, :, 0].astype(np.float64), k // 4, axis=1)
    dlhs, drhs, dbias = np.zeros(lhs.shape), np.zeros(rhs.shape), np.zeros(bias.shape)
    start = 0
    for g, size in enumerate(local):
        some = slice(start, start := start + size)
        dlhs[some] = target[some].astype(np.float64) @ (rhs[g] * wide[g]).T
        drhs[g] = lhs[some].astype(np.float64).T @ target[some]
        dbias[g, 0] = target[some].sum(0)
    dscale = (drhs * rhs).reshape(2, 4, k // 4, n).sum(2, keepdims=True)
    for got, want, digits in zip(
        gradients, (dlhs, drhs * wide, target, dscale, dbias), (2e-5, 2e-5, 0, 2e-3, 2e-5), strict=True
    ):
        assert got.shape == want.shape
        close(got.astype(np.float32), want, digits)
