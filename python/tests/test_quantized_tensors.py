"""QuantizedTensors as JAX has them: tangents that are none, pytrees, donation, straight-through gradients."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import raggemm
from arrays import random
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from quantized_operands import close, close_to_oracle, tensor
from raggemm import QuantizedTensor, fake_quantize, gmm

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
formats = pytest.mark.parametrize("name", FORMATS)


def weights(name):
    dtype, shape, zero = FORMATS[name]
    return tensor(dtype, (G, K, N), shape, zero=zero)


def product(x, w):
    return gmm(x, w, SIZES)


def close_to_one(got, want, relative=1e-5):
    """Two computations that may round otherwise."""
    want = np.asarray(want, np.float64)
    close(got, want, np.abs(want).max(initial=0), relative)


def test_donated():
    w = jax.tree.map(jnp.array, weights("zeros"))
    c, want = jnp.zeros((M, N), jnp.float32), product(LHS, weights("zeros"))
    with pytest.warns(UserWarning, match="donated buffers were not usable"):
        out = jax.jit(lambda c, w: gmm(LHS, w, SIZES, existing_out=c), donate_argnums=(0, 1))(c, w)
    assert c.is_deleted()
    same(out, want)


# derivatives, against float64


def derivatives(f, x, s, tangents):
    """Every way to a first and a second derivative of sin(f)."""

    def loss(x, s):
        return jnp.sin(f(x, s)).sum()

    gradient, both = jax.grad(loss, (0, 1)), (x, s)

    def along(x, s):
        return sum(jnp.vdot(a, b) for a, b in zip(gradient(x, s), tangents, strict=True))

    return {
        "jvp": jax.jvp(f, both, tangents)[1],
        "linearize": jax.linearize(f, *both)[1](*tangents),
        "grad": gradient(*both),
        "forward over reverse": jax.jvp(gradient, both, tangents)[1],
        "reverse over reverse": jax.grad(along, (0, 1))(*both),
        "reverse over forward": jax.grad(lambda *both: jax.jvp(loss, both, tangents)[1], (0, 1))(*both),
        "checkpoint": jax.grad(jax.checkpoint(loss), (0, 1))(*both),
    }


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


@formats
def test_pytree(name):
    for w in (weights(name), QuantizedTensor(weights(name).data)):
        paths, tree = jax.tree_util.tree_flatten_with_path({"layer": w})
        files = {jax.tree_util.keystr(path): np.asarray(x) for path, x in paths}
        assert set(files) == {
            f"['layer'].{part}" for part in ("data", "scale", "zero_point") if getattr(w, part) is not None
        }
        restored = jax.tree.unflatten(tree, [files[jax.tree_util.keystr(path)] for path, _ in paths])["layer"]
        same(product(LHS, restored), product(LHS, w))
        assert jax.tree.structure(jax.tree.map(lambda a: a[None], w)) == jax.tree.structure(w)
        shapes = jax.eval_shape(lambda w: w, w)
        assert (shapes.shape, shapes.dtype) == (w.shape, w.dtype)


def test_device_put():
    """One sharding for all parts, or a QuantizedTensor of shardings."""
    mesh = jax.make_mesh((2,), ("x",), axis_types=(AxisType.Auto,))
    w, sharding = weights("scales"), functools.partial(NamedSharding, mesh)
    placed = jax.device_put(w, sharding(P(None, None, "x")))
    assert placed.scale.sharding.spec == placed.data.sharding.spec == P(None, None, "x")
    same(product(LHS, placed), product(LHS, w))
    placed = jax.device_put(w, QuantizedTensor(sharding(P(None, "x")), sharding(P())))
    assert (placed.data.sharding.spec, placed.scale.sharding.spec) == (P(None, "x"), P())
    same(jax.jit(product)(LHS, placed), product(LHS, w))


# fake_quantize


def faked(w):
    return fake_quantize(w, jnp.int4, axes=(), block=(-2, 16))


def test_straight_through():
    """Its value is that of the tensor, its gradient that of the dense product, wherever it stands."""
    w, ct = random(LAYERS, G, K, N), random(M, N)
    values = np.stack([raggemm.dequantize(raggemm.quantize(x, jnp.int4, block=(1, 16))) for x in w])

    def loss(x, w):
        return (product(x, faked(w)) * ct).sum()

    def plain(x, w):
        return (product(x, w) * ct).sum()

    value_and_gradients = jax.value_and_grad(loss, (0, 1))
    want = [jax.value_and_grad(plain, (0, 1))(LHS, v) for v in values]
    _, dw = want[0][1]
    close_to_oracle(dw, LHS, ct, SIZES, ((0,), (0,)), num_actual_groups=G)
    scanned = jax.jit(lambda w: jax.lax.scan(lambda _, w: (None, value_and_gradients(LHS, w)), None, w)[1])
    mesh = jax.make_mesh((3,), ("x",), axis_types=(AxisType.Auto,), devices=jax.devices()[:3])
    sharded = jax.shard_map(
        lambda w: jax.tree.map(lambda a: a[None], value_and_gradients(LHS, w[0])),
        mesh=mesh,
        in_specs=P("x"),
        out_specs=P("x"),
        check_vma=False,
    )
    for run in (
        scanned,
        lambda w: jax.vmap(value_and_gradients, (None, 0))(LHS, w),
        lambda w: jax.vmap(jax.value_and_grad(jax.checkpoint(loss), (0, 1)), (None, 0))(LHS, w),
        jax.jit(sharded),
    ):
        got = run(w)
        for i in range(LAYERS):
            jax.tree.map(lambda a, b, i=i: close_to_one(a[i], b), got, want[i])
    tangent = random(G, K, N, seed=5)
    _, got = jax.jvp(lambda w: product(LHS, faked(w)), (w[0],), (tangent,))
    close_to_oracle(got, LHS, tangent, SIZES)
