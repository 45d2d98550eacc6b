"""jit, control flow, rematerialization, several devices, concurrent calls, shard_map, export."""

import concurrent.futures
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from arrays import random
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from program_text import custom_calls
from raggemm import gmm, ragged_dot
from raggemm.compat import lax

SIZES = np.array([3, 0, 2, 4], np.int32)
M, K, N, G = 12, 6, 6, 4
LHS, RHS = random(M, K), random(G, K, N, seed=1)
close = functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-5)


def layer(x, w, sizes=SIZES):
    return jnp.sin(gmm(x, w, sizes))


def test_jit_is_one_custom_call_with_traced_sizes():
    compiled = jax.jit(lambda *args: gmm(*args))  # of its own, as the cache goes by function
    assert custom_calls(compiled.lower(LHS, RHS, SIZES)) == 1
    np.testing.assert_array_equal(compiled(LHS, RHS, SIZES), gmm(LHS, RHS, SIZES))
    np.testing.assert_array_equal(compiled(LHS, RHS, SIZES[::-1]), gmm(LHS, RHS, SIZES[::-1]))
    assert compiled._cache_size() == 1


def test_attributes_are_readable():
    text = jax.jit(functools.partial(gmm, transpose_rhs=True, existing_out=np.ones((M, N), np.float32))).lower(
        LHS, RHS, SIZES
    )
    for attribute in ("rhs_is_trans = true", 'ragged = "lhs_first,out_first"', 'operands = "c,beta"'):
        assert attribute in text.as_text()


def test_concurrent_calls():
    lhs, rhs = random(400, 64), random(G, 64, 96)
    sizes = [np.random.default_rng(i).multinomial(390, [0.25] * G).astype(np.int32) for i in range(16)]
    want = [np.asarray(gmm(lhs, rhs, s)) for s in sizes]
    compiled = jax.jit(gmm)

    def run(i):
        return np.asarray(compiled(*jax.device_put((lhs, rhs, sizes[i]), jax.devices()[i % 4])))

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        for got, expected in zip(pool.map(run, list(range(16)) * 4), want * 4, strict=True):
            np.testing.assert_array_equal(got, expected)


def mesh(kind=AxisType.Auto):
    return jax.make_mesh((4,), ("x",), axis_types=(kind,))


def test_automatic_sharding_is_right():
    compiled, lhs, rhs = jax.jit(gmm), random(M, 8), random(G, 8, N)
    for rows, weights in ((P("x"), P()), (P(), P("x")), (P(), P(None, "x"))):
        placed = (jax.device_put(x, NamedSharding(mesh(), spec)) for x, spec in ((lhs, rows), (rhs, weights)))
        close(compiled(*placed, SIZES), gmm(lhs, rhs, SIZES))


@pytest.mark.parametrize("rows, weights", [(P("x"), P()), (P(), P("x"))], ids=["rows", "experts"])
def test_explicit_mesh(rows, weights):
    """Operands are gathered; their gradients come back sharded as they are."""
    want = gmm(LHS, RHS, SIZES)
    losses = [lambda x, w: layer(x, w).sum(), lambda x, w: lax.ragged_dot(x, w, SIZES).sum()]
    explicit, gradients = mesh(AxisType.Explicit), [jax.grad(loss, (0, 1)) for loss in losses]
    with jax.set_mesh(explicit):
        lhs, rhs = (jax.device_put(x, NamedSharding(explicit, s)) for x, s in ((LHS, rows), (RHS, weights)))
        np.testing.assert_array_equal(gmm(lhs, rhs, SIZES), want)
        got = [jax.jit(gradient)(lhs, rhs) for gradient in gradients]
        out = jax.jit(lambda x, w: ragged_dot(x, w, SIZES, out_sharding=P("x")))(lhs, rhs)
    for of_both, gradient in zip(got, gradients, strict=True):
        jax.tree.map(close, of_both, gradient(LHS, RHS))
        assert [jax.typeof(x).sharding.spec for x in of_both] == [jax.typeof(x).sharding.spec for x in (lhs, rhs)]
    np.testing.assert_array_equal(out, want)
    assert out.sharding.spec[0] == "x"


def test_export_with_symbolic_shapes():
    m, g, k, n = jax.export.symbolic_shape("m, g, k, n")
    shapes = [jax.ShapeDtypeStruct(s, d) for s, d in (((m, k), "float32"), ((g, k, n), "float32"), ((g,), "int32"))]
    allowed = [jax.export.DisabledSafetyCheck.custom_call("raggemm_grouped_gemm_v1")]
    exported = jax.export.export(jax.jit(gmm), disabled_checks=allowed)(*shapes)
    np.testing.assert_array_equal(exported.call(LHS, RHS, SIZES), gmm(LHS, RHS, SIZES))

    def gradients(x, w, s):
        return jax.grad(lambda x, w: layer(x, w, s).sum(), (0, 1))(x, w)

    exported = jax.export.export(jax.jit(gradients), disabled_checks=allowed)(*shapes)
    jax.tree.map(np.testing.assert_array_equal, exported.call(LHS, RHS, SIZES), gradients(LHS, RHS, SIZES))
