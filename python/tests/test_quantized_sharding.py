"""QuantizedTensors over several devices: under plain jit with the partitioning rule, shard_map, explicit meshes."""

import functools

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from arrays import random, sampled
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from program_text import collectives as collectives_of
from quantized_operands import close_to_oracle, dense, tensor
from raggemm import QuantizedTensor, gmm
from raggemm.expert_parallel import Routing, by_all_gather, by_all_to_all, on_one_device

SIZES = np.array([3, 0, 2, 4], np.int32)
M, K, N, G = 12, 128, 32, 4
LHS = random(M, K)
ALONG = {"g": P("x"), "k": P(None, "x"), "n": P(None, None, "x")}


@functools.cache
def mesh(*shape, kind=AxisType.Auto):
    shape = shape or (4,)
    return jax.make_mesh(shape, ("x", "y")[: len(shape)], axis_types=(kind,) * len(shape))


def put(x, spec, on=None):
    """x sharded so, but for the axes of a factor that have one value, and those that the devices do not divide."""
    on = on or mesh()

    def place(a):
        names = (*spec, *[None] * a.ndim)[: a.ndim] if a.ndim == x.ndim else ()
        return jax.device_put(
            a,
            NamedSharding(
                on,
                P(
                    *[
                        name if name and extent % on.shape[name] == 0 else None
                        for name, extent in zip(names, a.shape, strict=False)
                    ]
                ),
            ),
        )

    return jax.tree.map(place, x)


def compiled(f, *operands):
    """The result, and the collectives of the program."""
    jitted = jax.jit(f)
    return jitted(*operands), collectives_of(jitted.lower(*operands).compile())


def of_one_device(f, *operands):
    return f(*jax.tree.map(np.asarray, operands))


@functools.cache
def weights(shape, dtype=jnp.int8, zero=False):
    return tensor(dtype, (G, K, N), shape, zero=zero)


def product(x, w):
    return gmm(x, w, SIZES)


SCALES = [(), (G,), (G, 1, N), (1, 1, N), (G, 1, 1), (1, K, 1), (G, 4, N), (G, 8, 8)]


@pytest.mark.parametrize("shape", sampled(SCALES, 2), ids=str)
def test_factors_are_divided_with_their_weights(shape, partitioning):
    for w in (weights(shape), weights(shape, jnp.uint4, zero=True)):
        for axis, out_spec, expected in (("n", P(None, "x"), set()), ("k", P(), {"all-reduce"})):
            out, collectives = compiled(product, LHS, put(w, ALONG[axis]))
            assert (collectives, out.sharding.spec) == (expected, out_spec)
            close_to_oracle(out, LHS, dense(w), SIZES)
            if axis == "n":
                np.testing.assert_array_equal(out, of_one_device(product, LHS, w))


@pytest.mark.parametrize("shape, axis", [((G, 2, N), "k"), ((G, 1, 2), "n"), ((G, 4, 2), "n"), ((1, 2, 2), "k")])
def test_no_block_is_cut(shape, axis, partitioning):
    """Two blocks over four devices: everything is gathered, with the bits of one device."""
    w = weights(shape, jnp.uint8, zero=True)
    out, collectives = compiled(product, LHS, put(w, ALONG[axis]))
    assert "all-gather" in collectives
    np.testing.assert_array_equal(out, of_one_device(product, LHS, w))


def test_no_byte_is_cut(partitioning):
    """Three elements of half a byte for each of four devices."""
    w = tensor(jnp.int4, (G, K, 12), (G, 1, 12))
    for axis, collectives in (("n", {"all-gather"}), ("k", {"all-reduce"})):
        out, found = compiled(product, LHS, put(w, ALONG[axis]))
        assert found == collectives
        close_to_oracle(out, LHS, dense(w), SIZES)


# shard_map


@pytest.mark.parametrize("way, shape", [(by_all_gather, (8,)), (by_all_to_all, (8, 2, 16))])
def test_expert_parallel(way, shape):
    tokens, weight = random(16, 16), np.abs(random(16, 2, seed=2))
    ids = np.stack([np.random.default_rng(i).permutation(8)[:2] for i in range(16)]).astype(np.int32)
    up, down = (tensor(jnp.int8, (8, 16, 16), shape, ml_dtypes.bfloat16) for _ in range(2))

    def layer(way, *options):
        def run(tokens, weight, up, down):
            def experts(rows, sizes, offset):
                hidden = jnp.tanh(gmm(rows, up, sizes, group_offset=offset) * 1e-3)
                return gmm(hidden, down, sizes, group_offset=offset)

            return way(experts, tokens, Routing(ids_of(tokens), weight, 8), *options)

        def ids_of(tokens):
            part = len(tokens)
            first = 0 if part == 16 else jax.lax.axis_index("x") * part
            return jax.lax.dynamic_slice_in_dim(jnp.asarray(ids), first, part)

        return run

    sharded = jax.shard_map(layer(way, "x"), mesh=mesh(), in_specs=P("x"), out_specs=P("x"))

    def with_gradients(f):
        def loss(tokens, weight, scales):
            out = f(tokens, weight, *(QuantizedTensor(q.data, s) for q, s in zip((up, down), scales, strict=True)))
            return (out * tokens).sum(), out

        return jax.jit(jax.grad(loss, (0, 1, 2), has_aux=True))(tokens, weight, (up.scale, down.scale))

    got, want = with_gradients(sharded), with_gradients(layer(on_one_device))
    if way is by_all_to_all:
        np.testing.assert_array_equal(got[1], want[1])
    for x, y in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        y = np.asarray(y, np.float32)
        relative = 1e-5 if x.dtype == np.float32 else 2**-8
        np.testing.assert_allclose(np.asarray(x, np.float32), y, rtol=relative, atol=relative * np.abs(y).max())
