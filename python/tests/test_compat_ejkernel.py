import functools
import inspect
import sys
import types

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from arrays import random
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P
from raggemm import GroupedTensor
from raggemm.compat import ejkernel

SIZES = np.array([3, 0, 2, 4], np.int32)
M, K, N, G = 12, 5, 6, 4
LHS, RHS, COLS, OUT = random(M, K), random(G, K, N, seed=1), random(M, N, seed=2), random(M, N, seed=3)


def expected(**options):
    rows = GroupedTensor(LHS, first_dims=SIZES)
    return oracle.grouped_gemm(rows, GroupedTensor(RHS), contracting_dims=((1,), (1,)), **options)


def test_existing_out_is_added():
    """existing_out is converted to the result's dtype, like in ejkernel's CPU kernel."""
    got = ejkernel.grouped_matmul(LHS, RHS, SIZES, None, OUT)
    expected(c=OUT, beta=np.ones(G)).check(got)
    np.testing.assert_allclose(got, jax.lax.ragged_dot(LHS, RHS, SIZES) + OUT, rtol=1e-5, atol=1e-5)
    half_out = OUT.astype(np.float16)
    np.testing.assert_array_equal(
        ejkernel.grouped_matmul(LHS, RHS, SIZES, None, half_out),
        ejkernel.grouped_matmul(LHS, RHS, SIZES, None, half_out.astype(np.float32)),
    )
    gradient = jax.jit(jax.grad(lambda c: jnp.vdot(COLS, ejkernel.grouped_matmul(LHS, RHS, SIZES, None, c))))(OUT)
    np.testing.assert_array_equal(gradient, COLS)


def test_group_offset_of_v3():
    """Results are those of ejkernel, except for rows in no group."""
    lhs, rhs = np.ones((8, 4), np.float32), np.ones((2, 4, 6), np.float32) * np.array([1, 2], np.float32)[:, None, None]
    bias = np.full((2, 1, 6), 0.5, np.float32)
    sizes, offset = np.array([2, 3, 2, 1], np.int32), np.array([1], np.int32)

    def v3(rhs, bias, offset, existing_out=None, rows=8):
        return ejkernel.grouped_matmul(lhs[:rows], rhs, sizes, offset, existing_out, rhs_bias=bias, use_v3=True)

    want = np.array([4.5, 4.5, 4.5, 8.5, 8.5, 0, 0, 0])[:, None] * np.ones(6)
    np.testing.assert_array_equal(v3(rhs, bias, offset), want)
    np.testing.assert_array_equal(jax.jit(v3)(rhs, bias, offset, np.ones((8, 6), np.float32)), want + 1)
    np.testing.assert_array_equal(v3(rhs, bias, offset, rows=5), want[:5])
    offsets = jax.vmap(v3, (None, None, 0))(rhs, bias, np.array([[2], [0]], np.int32))
    np.testing.assert_array_equal(offsets[0], np.array([4.5, 4.5, 8.5, 0, 0, 0, 0, 0])[:, None] * np.ones(6))
    np.testing.assert_array_equal(offsets[1], np.array([4.5, 4.5, 8.5, 8.5, 8.5, 0, 0, 0])[:, None] * np.ones(6))
    gradients = jax.jit(jax.grad(lambda w, b: v3(w, b, offset).sum(), (0, 1)))(rhs, bias)
    for gradient in gradients:
        np.testing.assert_array_equal(gradient[:, 0], np.array([[3.0], [2.0]]) * np.ones(6))


def test_local_sizes_over_m_are_an_error():
    with pytest.raises((jax.errors.JaxRuntimeError, ValueError), match="group_sizes: group 3 has size 4 and starts"):
        jax.block_until_ready(ejkernel.grouped_matmul(LHS[:5], RHS[2:], SIZES, 2))


def test_shard_map():
    mesh = jax.make_mesh((4,), ("x",), axis_types=(AxisType.Auto,))
    sizes = np.array([1, 0, 2, 0], np.int32)
    specs = {"in_specs": (P("x"), P(), P()), "out_specs": P("x")}
    got = ejkernel.grouped_matmul(LHS, RHS, sizes, mesh=mesh, **specs)
    want = np.concatenate([ejkernel.grouped_matmul(part, RHS, sizes) for part in np.split(LHS, 4)])
    np.testing.assert_array_equal(got, want)
    # out_shard_callback sums the partial results of a sharded contracted axis.
    lhs, rhs = random(M, 8), random(G, 8, N)
    got = ejkernel.grouped_matmul(
        lhs,
        rhs,
        SIZES,
        out_shard_callback=lambda out: jax.lax.psum(out, "x"),
        mesh=mesh,
        in_specs=(P(None, "x"), P(None, "x"), P()),
        out_specs=P(),
    )
    np.testing.assert_allclose(got, ejkernel.grouped_matmul(lhs, rhs, SIZES), rtol=1e-5, atol=1e-5)


class Registry:
    """A stand-in for ejkernel's kernel_registry."""

    def __init__(self, **kernels):
        self.kernels = {name: [(0, function)] for name, function in kernels.items()}

    def list_algorithms(self):
        return sorted(self.kernels)

    def register(self, algorithm, platform, backend, priority=0):
        assert (platform, backend) == ("xla", "any")

        def add(function):
            wrapped = functools.wraps(function)(lambda *a, **k: function(*a, **k))
            self.kernels[algorithm].append((priority, wrapped))
            return function

        return add

    def get(self, algorithm, platform, backend):
        assert (platform, backend) == ("xla", "any")
        return max(self.kernels[algorithm], key=lambda kernel: kernel[0])[1]


@pytest.fixture
def registry(monkeypatch):
    def original_kernel(lhs, rhs, group_sizes, **options):
        return "ejkernel's own"

    registry = Registry(grouped_matmul=original_kernel, grouped_matmulv2=original_kernel, attention=original_kernel)
    module = types.ModuleType("ejkernel.kernels._registry")
    module.kernel_registry = registry
    monkeypatch.setitem(sys.modules, "ejkernel", types.ModuleType("ejkernel"))
    monkeypatch.setitem(sys.modules, "ejkernel.kernels", types.ModuleType("ejkernel.kernels"))
    monkeypatch.setitem(sys.modules, "ejkernel.kernels._registry", module)
    return registry


def test_register(registry, monkeypatch):
    ejkernel.register()
    ejkernel.register()
    assert {name: len(kernels) for name, kernels in registry.kernels.items()} == {
        "grouped_matmul": 2,
        "grouped_matmulv2": 2,
        "attention": 1,
    }
    options = {
        "preferred_element_type": jnp.float32,
        "tiling": (8, 5, 6),
        "group_offset": None,
        "existing_out": OUT,
        "transpose_rhs": False,
        "interpret": False,
        "precision": jax.lax.Precision.DEFAULT,
    }  # the arguments that ejkernel passes
    for algorithm in ("grouped_matmul", "grouped_matmulv2"):
        kernel = registry.get(algorithm, "xla", "any")
        got = kernel(lhs=LHS, rhs=RHS, group_sizes=SIZES, **options)
        np.testing.assert_array_equal(got, ejkernel.grouped_matmul(LHS, RHS, SIZES, None, OUT))
        assert list(inspect.signature(kernel).parameters) == ["lhs", "rhs", "group_sizes", *options]
    monkeypatch.setattr(jax, "default_backend", lambda: "tpu")
    assert kernel(lhs=LHS, rhs=RHS, group_sizes=SIZES, **options) == "ejkernel's own"


def test_register_without_ejkernel(monkeypatch):
    monkeypatch.setitem(sys.modules, "ejkernel", None)
    with pytest.raises(ImportError, match="needs ejkernel, which cannot be imported"):
        ejkernel.register()
