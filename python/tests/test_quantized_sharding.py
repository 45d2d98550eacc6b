import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from arrays import random, sampled
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from program_text import collectives as collectives_of
from quantized_operands import close_to_oracle, dense, tensor
from raggemm import gmm

SIZES = np.array([3, 0, 2, 4], np.int32)
M, K, N, G = 12, 128, 32, 4
LHS = random(M, K)
SPECS = {"g": P("x"), "k": P(None, "x"), "n": P(None, None, "x")}


@functools.cache
def mesh(*shape, kind=AxisType.Auto):
    shape = shape or (4,)
    return jax.make_mesh(shape, ("x", "y")[: len(shape)], axis_types=(kind,) * len(shape))


def shard(x, spec, on=None):
    """Shards the arrays of the tensor x by `spec`.

    Arrays stay whole if their rank is not x.ndim. Axes stay whole if devices do not divide them evenly.
    """
    on = on or mesh()

    def place_array(a):
        names = (*spec, *[None] * a.ndim)[: a.ndim] if a.ndim == x.ndim else ()
        extents = zip(names, a.shape, strict=False)
        axes = [name if name and extent % on.shape[name] == 0 else None for name, extent in extents]
        return jax.device_put(a, NamedSharding(on, P(*axes)))

    return jax.tree.map(place_array, x)


def compiled(f, *operands):
    jitted = jax.jit(f)
    return jitted(*operands), collectives_of(jitted.lower(*operands).compile())


def on_one_device(f, *operands):
    return f(*jax.tree.map(np.asarray, operands))


@functools.cache
def weights(shape, dtype=jnp.int8, zero=False):
    return tensor(dtype, (G, K, N), shape, zero=zero)


def product(x, w):
    return gmm(x, w, SIZES)


SCALES = [(), (G,), (G, 1, N), (1, 1, N), (G, 1, 1), (1, K, 1), (G, 4, N), (G, 8, 8)]


@pytest.mark.parametrize("shape", sampled(SCALES, 2), ids=str)
def test_scales_and_zero_points_are_sharded_with_their_weights(shape, partitioning):
    for w in (weights(shape), weights(shape, jnp.uint4, zero=True)):
        for axis, out_spec, expected in (("n", P(None, "x"), set()), ("k", P(), {"all-reduce"})):
            out, collectives = compiled(product, LHS, shard(w, SPECS[axis]))
            assert (collectives, out.sharding.spec) == (expected, out_spec)
            close_to_oracle(out, LHS, dense(w), SIZES)
            if axis == "n":
                np.testing.assert_array_equal(out, on_one_device(product, LHS, w))


@pytest.mark.parametrize("shape, axis", [((G, 2, N), "k"), ((G, 1, 2), "n"), ((G, 4, 2), "n"), ((1, 2, 2), "k")])
def test_blocks_are_not_split(shape, axis, partitioning):
    """Two blocks cannot be divided over four devices, so the weights are gathered."""
    w = weights(shape, jnp.uint8, zero=True)
    out, collectives = compiled(product, LHS, shard(w, SPECS[axis]))
    assert "all-gather" in collectives
    np.testing.assert_array_equal(out, on_one_device(product, LHS, w))


def test_bytes_are_not_split(partitioning):
    """Columns are gathered if each device would have three 4-bit elements per row. These are one and a half bytes."""
    w = tensor(jnp.int4, (G, K, 12), (G, 1, 12))
    for axis, collectives in (("n", {"all-gather"}), ("k", {"all-reduce"})):
        out, found = compiled(product, LHS, shard(w, SPECS[axis]))
        assert found == collectives
        close_to_oracle(out, LHS, dense(w), SIZES)
