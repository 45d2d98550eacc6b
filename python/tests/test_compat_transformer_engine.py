import types

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from jax.sharding import PartitionSpec
from raggemm import GroupedTensor
from raggemm.compat import transformer_engine as te

M, K, N, G = 11, 6, 8, 3
SIZES = np.array([4, 0, 5], np.int32)
RNG = np.random.default_rng(5)
X, KERNEL, BIAS, OTHER = (RNG.normal(size=s).astype(np.float32) for s in ((M, K), (G, K, N), (G, N), (M, N)))


def stand_in(data, first_dims=None, last_dims=None, shape=None):
    shape = shape or data.shape
    return types.SimpleNamespace(data=data, first_dims=first_dims, last_dims=last_dims, original_shape=shape)


def grouped_tensor(data, first_dims=None, last_dims=None):
    return te.GroupedNoScaleTensor(data, None, first_dims, last_dims, data.shape)


@pytest.mark.parametrize("tensor", [stand_in, grouped_tensor], ids=["stand-in", "raggemm"])
def test_forward_and_wgrad(tensor):
    got = te.grouped_gemm(tensor(X, SIZES), tensor(KERNEL), contracting_dims=((1,), (1,)))
    want = oracle.grouped_gemm(GroupedTensor(X, SIZES), GroupedTensor(KERNEL), contracting_dims=((1,), (1,)))
    want.check(got)
    assert (np.asarray(got)[9:] == 0).all()
    # rhs is transposed by default.
    transposed = KERNEL.swapaxes(1, 2)
    np.testing.assert_array_equal(te.grouped_gemm(tensor(X, SIZES), tensor(transposed)), got)
    dims = ((0,), (0,))
    wgrad = te.grouped_gemm(tensor(X, SIZES), tensor(OTHER, SIZES), contracting_dims=dims)
    oracle.grouped_gemm(GroupedTensor(X, SIZES), GroupedTensor(OTHER, SIZES), contracting_dims=dims).check(wgrad)
    assert (wgrad[1] == 0).all()


def test_last_dims_are_packed():
    sizes = np.array([4, 0, 4], np.int32)
    packed = np.concatenate([KERNEL[0, :, :4].reshape(-1), KERNEL[0, :, 4:].reshape(-1)])
    got = te.grouped_gemm(X, stand_in(packed, None, sizes, (K, N)), contracting_dims=((1,), (0,)))
    np.testing.assert_allclose(got, X @ KERNEL[0], rtol=1e-5, atol=1e-5)


def test_dense_with_bias():
    got = te.grouped_dense(X, KERNEL, SIZES, bias=BIAS)
    arrays = GroupedTensor(X, SIZES), GroupedTensor(KERNEL)
    oracle.grouped_gemm(*arrays, contracting_dims=((1,), (1,)), bias=BIAS).check(got)


def test_kernels_are_gathered_and_gradients_scattered():
    mesh = jax.make_mesh((2,), ("fsdp",), devices=jax.devices()[:2], axis_types=(jax.sharding.AxisType.Auto,))
    specs = PartitionSpec("fsdp"), PartitionSpec(None, "fsdp")
    sizes = np.array([[2, 0, 3], [1, 2, 2]], np.int32)
    x = np.concatenate([X[:5], X[5:10]])

    def shard(x, kernel, sizes):
        return te.grouped_dense(x, kernel, sizes[0], kernel_fsdp_info=("fsdp", 1))

    sharded = jax.shard_map(shard, mesh=mesh, in_specs=(*specs, PartitionSpec("fsdp")), out_specs=specs[0])
    whole = [te.grouped_dense(x[5 * i :][:5], KERNEL, sizes[i]) for i in range(2)]
    np.testing.assert_array_equal(jax.jit(sharded)(x, KERNEL, sizes), np.concatenate(whole))
    got = jax.jit(jax.grad(lambda w: jnp.sin(sharded(x, w, sizes)).sum()))(KERNEL)
    one_by_one = lambda w: [te.grouped_dense(x[5 * i :][:5], w, sizes[i]) for i in (0, 1)]  # noqa: E731
    want = jax.jit(jax.grad(lambda w: sum(jnp.sin(out).sum() for out in one_by_one(w))))(KERNEL)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
