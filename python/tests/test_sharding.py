"""Several devices under shard_map and on meshes with explicit axes."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from arrays import random
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from raggemm import GroupedTensor, gmm, grouped_gemm

SIZES = np.array([3, 0, 2, 4], np.int32)
M, K, N, G = 12, 8, 8, 4
close = functools.partial(np.testing.assert_allclose, rtol=2e-5, atol=2e-5)
both_checks = pytest.mark.parametrize("check_vma", [True, False])
LHS, RHS = random(M, K), random(G, K, N, seed=1)


def square_mesh(kind=AxisType.Auto):
    return jax.make_mesh((2, 2), ("x", "y"), axis_types=(kind,) * 2)


def gradients(f, count):
    return jax.jit(jax.grad(lambda *args: jnp.sin(f(*args)).sum(), tuple(range(count))))


def check(f, want, operands, count):
    """f and the gradients of its first operands are those of `want`, which knows nothing of devices."""
    close(jax.jit(f)(*operands), want(*operands))
    jax.tree.map(close, gradients(f, count)(*operands), gradients(want, count)(*operands))


# shard_map


@both_checks
def test_data_and_expert_parallel(check_vma):
    """Rows along x; two experts on each device along y, with bias and c, which is added once."""

    def layer(x, w, bias, c, sizes, offset=None):
        lhs, options = GroupedTensor(x, first_dims=sizes), {"bias": bias, "c": c, "group_offset": offset}
        return grouped_gemm(lhs, w, contracting_dims=((1,), (1,)), **options)

    def shard(x, w, bias, c, sizes):
        index = jax.lax.axis_index("y")
        return jax.lax.psum(layer(x, w, bias, jnp.where(index == 0, c, 0), sizes[0], 2 * index), "y")

    sharded = jax.shard_map(
        shard,
        mesh=square_mesh(),
        in_specs=(P("x"), P("y"), P("y"), P("x"), P("x")),
        out_specs=P("x"),
        check_vma=check_vma,
    )

    def whole(x, w, bias, c, sizes):
        parts = zip(jnp.split(x, 2), jnp.split(c, 2), sizes, strict=True)
        return jnp.concatenate([layer(x, w, bias, c, s) for x, c, s in parts])

    operands = random(2 * M, K), RHS, random(G, N, seed=2), random(2 * M, N, seed=3), np.stack([SIZES, SIZES[::-1]])
    check(sharded, whole, operands, 4)


def test_partly_manual_shard_map_and_loops_inside():
    """The compiler's axis beside a manual one; vmap, scan and checkpoint on each device."""

    def shard(x, w, sizes):
        one = jax.checkpoint(lambda x, _: (jnp.sin(jax.vmap(gmm, (0, None, None))(x, w, sizes)), None))
        return jax.lax.scan(one, x, None, length=2)[0]

    specs = {"in_specs": (P("x"), P(), P()), "out_specs": P("x"), "axis_names": {"x"}}
    operands = random(4, M, K), RHS, SIZES
    close_to = [jax.vmap(lambda x, w, s: jnp.sin(gmm(jnp.sin(gmm(x, w, s)), w, s)), (0, None, None))]
    placed = jax.device_put(operands[1], NamedSharding(square_mesh(), P(None, None, "y")))
    check(jax.shard_map(shard, mesh=square_mesh(), **specs), *close_to, (operands[0], placed, SIZES), 2)


# explicit meshes


@pytest.mark.parametrize("spec", [P("x"), P(None, "x"), P("x", "y"), P(None, None, "y"), P(("x", "y"))], ids=str)
def test_explicit_mesh_divides_an_axis_that_collapses(spec):
    explicit, sizes = square_mesh(AxisType.Explicit), np.array([3, 0, 12, 4], np.int32)
    x = random(4, 6, K)

    def f(x, w):
        return grouped_gemm(GroupedTensor(x, first_dims=sizes), w, contracting_dims=((2,), (1,)))

    want = f(x, RHS)
    want_gradients = gradients(f, 2)(x, RHS)
    with jax.set_mesh(explicit):
        placed = [jax.device_put(a, NamedSharding(explicit, s)) for a, s in ((x, spec), (RHS, P(None, None, "y")))]
        np.testing.assert_array_equal(f(*placed), want)
        got = gradients(f, 2)(*placed)
    for gradient, operand, wanted in zip(got, placed, want_gradients, strict=True):
        close(gradient, wanted)
        assert jax.typeof(gradient).sharding.spec == jax.typeof(operand).sharding.spec


def test_explicit_mesh_divides_every_operand_and_a_batch():
    explicit = square_mesh(AxisType.Explicit)
    c, bias, alpha = random(M, N, seed=2), random(G, N, seed=3), random(G)

    def f(x, w, c, bias, alpha):
        options = {"c": c, "bias": bias, "alpha": alpha, "beta": alpha, "group_offset": 0}
        return grouped_gemm(GroupedTensor(x, first_dims=SIZES), w, contracting_dims=((1,), (1,)), **options)

    operands = (LHS, RHS, c, bias, alpha)
    want, batch = gradients(f, 5)(*operands), random(4, M, K)
    want_batched = jax.vmap(gmm, (0, None, None))(batch, RHS, SIZES)
    with jax.set_mesh(explicit):
        specs = (P("x"), P("y"), P(None, "x"), P("x", "y"), P(("x", "y")))
        placed = [jax.device_put(a, NamedSharding(explicit, s)) for a, s in zip(operands, specs, strict=True)]
        jax.tree.map(close, gradients(f, 5)(*placed), want)
        rows, sizes = (jax.device_put(a, NamedSharding(explicit, P(s))) for a, s in ((batch, "x"), (SIZES, "y")))
        np.testing.assert_array_equal(jax.jit(jax.vmap(gmm, (0, None, None)))(rows, RHS, sizes), want_batched)
