"""Tests that results have the same bits for any threads, executor, instruction set, jaxlib, batch, order of groups and
devices.
"""

import zlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import raggemm
from arrays import random
from jax.sharding import PartitionSpec as P
from raggemm import gmm, tgmm
from raggemm._src import library

same = np.testing.assert_array_equal
SIZES = np.array([700, 0, 1, 1300, 40, 1, 2000, 54], np.int32)
M, K, N, G = 4096, 300, 48, 8


def host_isas() -> list[str]:
    return [isa["name"] for isa in library.description()["isas"] if isa["usable"]]


@pytest.fixture(scope="module")
def operands():
    return random(*(M, K), seed=1), random(*(G, K, N), seed=2)


@pytest.mark.parametrize(
    ("dtype", "recorded"),
    [("float16", 2595295062), ("bfloat16", 2535334273), ("float32", 3464670629), ("float64", 249861554)],
)
def test_checksums_match_the_recorded_ones(dtype, recorded, x64):
    """Checksums are the same on every CPU, with every jaxlib, in every release."""
    numbers = np.arange(K * 64, dtype=np.int64) * 2654435761 % 2**32 / 2.0**31 - 1
    lhs, rhs = (
        numbers[: 40 * K].reshape(40, K).astype(dtype),
        numbers[::-1][: 3 * K * 16].reshape(3, K, 16).astype(dtype),
    )
    with raggemm.options(bf16_sums="pairs"):
        out = np.asarray(jax.jit(gmm)(lhs, rhs, np.array([7, 0, 30], np.int32)))
    assert zlib.crc32(out.tobytes()) == recorded


def test_threads_executors_and_instruction_sets(operands):
    lhs, rhs = operands
    want = jax.jit(gmm)(lhs, rhs, SIZES)
    for isa in host_isas():
        for executor, threads in (("POOL", (1, 5)), ("OPENMP", (2, 16)), ("SERIAL", (1,))):
            for count in threads:
                with raggemm.options(isa=isa, executor=executor, threads=count):
                    same(jax.jit(lambda *x: gmm(*x))(lhs, rhs, SIZES), want)


def test_a_row_alone_has_the_bits_of_a_batch(operands):
    lhs, rhs = operands
    batch = jax.jit(gmm)(lhs, rhs, SIZES)
    one_row, groups = jax.jit(gmm), np.repeat(np.arange(G), SIZES)
    for row in (0, 699, 700, 701, 2001, 4095):
        sizes = np.zeros(G, np.int32)
        sizes[groups[row]] = 1
        same(one_row(lhs[row : row + 1], rhs, sizes)[0], batch[row])
    by_rows = jax.vmap(gmm, (0, None, 0))(lhs.reshape(M, 1, K)[:512], rhs, np.eye(G, dtype=np.int32)[groups[:512]])
    same(by_rows[:, 0], batch[:512])


def test_order_of_groups(operands):
    lhs, rhs = operands
    order = np.random.default_rng(0).permutation(G)
    rows = np.split(np.arange(M), np.cumsum(SIZES)[:-1])
    permuted_rows = np.concatenate([rows[g] for g in order])
    out = jax.jit(gmm)(lhs, rhs, SIZES)
    same(jax.jit(gmm)(lhs[permuted_rows], rhs[order], SIZES[order]), out[permuted_rows])
    gradients = jax.jit(tgmm)(lhs.T, out, SIZES)
    same(jax.jit(tgmm)(lhs[permuted_rows].T, out[permuted_rows], SIZES[order]), gradients[order])


def sharded(f, in_specs, out_specs):
    mesh = jax.make_mesh((4,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
    return jax.jit(jax.shard_map(f, mesh=mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False))


def test_experts_on_four_devices(operands):
    lhs, rhs = operands
    cotangent = random(*(M, N), seed=3)

    def out_and_drhs(lhs, rhs, sizes, cotangent, offset):
        out, vjp = jax.vjp(lambda rhs: gmm(lhs, rhs, sizes, group_offset=offset), rhs)
        return out[None], *vjp(cotangent)

    def shard(lhs, rhs, sizes, cotangent):
        return out_and_drhs(lhs, rhs, sizes, cotangent, 2 * jax.lax.axis_index("x"))

    run = sharded(shard, (P(), P("x"), P(), P()), P("x"))
    out, drhs = run(lhs, rhs, SIZES, cotangent)
    want, want_drhs = jax.jit(out_and_drhs)(lhs, rhs, SIZES, cotangent, 0)
    device = np.repeat(np.arange(G) // 2, SIZES)
    for d in range(4):
        same(out[d], np.where((device == d)[:, None], want[0], 0))
    same(drhs, want_drhs)


def test_denormals_under_xla():
    """A call on XLA's threads keeps denormals. XLA's operations before and after the call flush them."""
    tiny = jnp.full((M, 8), 1e-20, jnp.float32)

    def xla_product(x):
        return x * jnp.float32(1e-20)

    def with_call(x, w):
        before = xla_product(x)
        out = gmm(x, w, SIZES)
        return before, out, xla_product(x + 0 * out[:, :1])

    xla_result = jax.jit(xla_product)(tiny)
    before, out, after = jax.jit(with_call)(tiny, jnp.full((G, 8, 16), 1e-20, jnp.float32))
    same(before, xla_result)
    same(after, xla_result)
    want = np.float32(0)
    for _ in range(8):
        want = np.float32(np.float64(np.float32(1e-20)) ** 2 + np.float64(want))
    assert want > 0
    same(out, np.full((M, 16), want))
