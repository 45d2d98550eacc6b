import functools
import importlib
import inspect
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from arrays import random, sampled
from raggemm.compat import megablox

# `from ... import gmm` would give the package's function gmm, which hides the module.
original = importlib.import_module("jax.experimental.pallas.ops.tpu.megablox.gmm")

SIZES = np.array([9, 0, 4, 7], np.int32)
CASES = 130  # random routings for each shape


LHS, RHS, OUT = random(24, 8), random(4, 8, 8, seed=1), random(24, 8, seed=2)
close = functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-5)


def random_routing(groups, m, seed):
    """Makes CASES random routings of m rows. In a third of them, each row is in a group.

    Returns:
      (group sizes [CASES,groups]; first group of a shard and number of its groups, both [CASES]).
    """
    rng = np.random.default_rng(seed)
    sizes = np.zeros((CASES, groups), np.int32)
    for i in range(CASES):
        p = rng.dirichlet(np.full(groups + 1, 0.3))
        p[-1] *= i % 3 != 0
        sizes[i] = rng.multinomial(m, p / p.sum())[:groups]
    start = rng.integers(0, groups, CASES).astype(np.int32)
    return sizes, start, rng.integers(0, groups - start + 1).astype(np.int32)


def assert_equal_metadata(sizes, start, count, batched=False, **static):
    def both(sizes, start, count):
        args = {"group_sizes": sizes, "start_group": start, "num_nonzero_groups": count}
        return tuple(f(**args, **static) for f in (megablox.make_group_metadata, original.make_group_metadata))

    got, want = jax.jit(jax.vmap(both) if batched else both)(sizes, start, count)
    jax.tree.map(np.testing.assert_array_equal, got, want)
    assert jax.tree.map(lambda x: (x.shape, x.dtype), got) == jax.tree.map(lambda x: (x.shape, x.dtype), want)


ROUTINGS = [*itertools.product([(1, 40, 8), (5, 96, 16), (8, 15, 1), (16, 64, 4)], (True, False))]


@pytest.mark.parametrize("shape, visit_empty_groups", sampled(ROUTINGS, 5, unpack=True), ids=str)
def test_metadata_matches_megablox(shape, visit_empty_groups):
    groups, m, tm = shape
    sizes, start, count = random_routing(groups, m, seed=m)
    assert (sizes == 0).any() and (sizes.sum(1) < m).any() and (sizes.sum(1) == m).any()
    assert groups == 1 or ((start > 0).any() and (count < groups - start).any())
    assert_equal_metadata(sizes, start, count, batched=True, m=m, tm=tm, visit_empty_groups=visit_empty_groups)


def test_metadata_errors():
    args = {"group_sizes": jnp.asarray(SIZES), "start_group": 0, "num_nonzero_groups": 4}
    for f in (megablox.make_group_metadata, original.make_group_metadata):
        with pytest.raises(ValueError, match=r"must be divisible by"):
            f(**args, m=24, tm=7)
    with pytest.raises(ValueError, match="tm is 7, but m = 24"):
        megablox.make_group_metadata(**args, m=24, tm=7)
    with pytest.raises(ValueError, match="tm is 0"):
        megablox.make_group_metadata(**args, m=24, tm=0)
    with pytest.raises(ValueError, match=r"group_sizes: shape is \(2, 2\)"):
        megablox.make_group_metadata(**(args | {"group_sizes": np.ones((2, 2), int)}), m=8, tm=4)
    with pytest.raises(TypeError, match="group_sizes: dtype is float32"):
        megablox.make_group_metadata(**(args | {"group_sizes": np.ones(2, np.float32)}), m=8, tm=4)


@pytest.mark.parametrize("name", ["gmm", "tgmm", "make_group_metadata"])
def test_signatures(name):
    def parameters(f):
        return [(p.name, p.default, p.kind) for p in inspect.signature(f).parameters.values()]

    assert parameters(getattr(megablox, name)) == parameters(getattr(original, name))


def test_group_offset_defaults_to_0():
    got = megablox.gmm(LHS, RHS[:2], SIZES, existing_out=OUT)
    close(got, np.concatenate([LHS[:9] @ RHS[0], OUT[9:]]))
    two_groups = megablox.tgmm(LHS.T, OUT, SIZES, num_actual_groups=2)
    np.testing.assert_array_equal(two_groups, megablox.tgmm(LHS.T, OUT, SIZES)[:2])


def test_arguments_that_only_raggemm_takes():
    want = megablox.gmm(LHS, RHS, SIZES)
    for tiling in ((7, 128, 128), None, lambda m, k, n: None, lambda m, k, n: (m, k, n)):
        np.testing.assert_array_equal(megablox.gmm(LHS, RHS, SIZES, tiling=tiling), want)
    with_offset = megablox.gmm(LHS, RHS[2:], SIZES, group_offset=jnp.array([2]))
    np.testing.assert_array_equal(with_offset[9:20], want[9:20])
    assert (with_offset[:9] == 0).all() and (with_offset[20:] == 0).all()
