"""Batches of moe_mlp: one call, with the bits of a loop, and what is not one."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from moe_batches import (
    BATCH,
    ROUTING,
    WEIGHTS,
    arguments,
    batch_of,
    case,
    counts,
    gradient,
    is_weight,
    part,
    runs,
    same,
)
from moe_mlps import GATES

close = functools.partial(jax.tree.map, functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-4))
ROUTED = ("x", "row_tokens", "group_sizes", "row_weights", "row_slots", "group_offset")
OPTIONS = st.fixed_dictionaries(
    {
        "gate": st.sampled_from(GATES),
        "x": st.sampled_from((np.float32, jnp.bfloat16)),
        "w": st.sampled_from(("float32", "bfloat16", "packed", "int8", "packed int8", "int8 with one scale")),
        "transposes": st.tuples(st.booleans(), st.booleans()),
        "rows": st.sampled_from(("output", "output", "input", "slots")),
        "save": st.sampled_from(("inputs", "activations")),
        **dict.fromkeys(("biases", "weighted", "offset"), st.booleans()),
    }
)


@settings(max_examples=20)
@given(OPTIONS, st.integers(0, 2**32 - 1), st.sets(st.sampled_from(ROUTED)), st.booleans())
def test_any_batch_is_one_call(options, seed, batched, own):
    """Of all weights, or none, and of whatever else there is; so are gradients by x, row_weights and own weights."""
    random = np.random.default_rng(seed)
    problems, run = [arguments(random, **options) for _ in range(BATCH)], runs(**options)
    names = problems[0].keys()
    batched = ({*batched} & names) | {name for name in names if own and is_weight(name)} or {"x"}
    whole, axes = batch_of(problems, batched)
    got = jax.jit(jax.vmap(run, (axes,)))(whole)
    one = jax.jit(run)
    for b in range(BATCH):
        same(got[b], one(part(whole, batched, b)))
    assert counts(jax.vmap(run, (axes,)), whole) == counts(run, problems[0])

    ct = random.normal(size=got.shape).astype(got.dtype)
    floats = options["w"] in ("float32", "bfloat16")
    pull = gradient(run, {"x", "row_weights"} & names | {n for n in names if own and floats and is_weight(n)})
    got = jax.jit(jax.vmap(pull, (axes, 0)))(whole, ct)
    one = jax.jit(pull)
    for b in range(BATCH):
        want = one(part(whole, batched, b), ct[b])
        if options["rows"] == "output":
            same(part(got, got, b), want)
        else:
            jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=0.02, atol=0.02), part(got, got, b), want)
    assert counts(jax.vmap(pull, (axes, 0)), whole, ct) == counts(pull, problems[0], ct[0])


@pytest.mark.parametrize("save", ["inputs", "activations"])
@pytest.mark.parametrize("batched", [ROUTING, ROUTING + WEIGHTS], ids=["shared", "own"])
def test_the_gradient_of_a_batch_is_one_call(batched, save):
    values, axes, run = case(batched, save=save)
    names = ("x", "row_weights", *WEIGHTS)
    pull, of_batch = gradient(run, names), gradient(jax.vmap(run, (axes,)), names)
    ct = np.random.default_rng(1).normal(size=values["x"].shape).astype(np.float32)
    assert counts(of_batch, values, ct) == [1, 1, 0, 0]
    got, each = jax.jit(of_batch)(values, ct), [jax.jit(pull)(part(values, batched, b), ct[b]) for b in range(BATCH)]
    want = jax.tree.map(lambda *x: np.stack(x), *each)
    for name in got:
        if name in batched:
            same(got[name], want[name])
        else:
            close(got[name], want[name].sum(0))


@pytest.mark.parametrize("dtype", [np.int64, np.uint32])
def test_types_of_integers(dtype, x64):
    values, axes, run = case(ROUTING)
    wide = values | {name: values[name].astype(dtype) for name in ("row_tokens", "group_sizes")}
    same(jax.vmap(run, (axes,))(wide), jax.vmap(run, (axes,))(values))


# Batches that are grouped GEMMs.


def test_beyond_int32():
    """Of rows that no machine holds only shapes are asked."""
    values, axes, run = case(ROUTING)
    for rows, calls in ((2**31 // BATCH - 1, 1), (2**31 // BATCH, 1), (2**31 // BATCH + 1, 0), (2**30, 0)):
        many = jax.ShapeDtypeStruct((BATCH, rows), np.int32)
        changes = {"row_tokens": many, "row_weights": jax.ShapeDtypeStruct(many.shape, np.float32)}
        assert counts(jax.vmap(run, (axes,)), values | changes)[0] == calls
    tokens = {"x": jax.ShapeDtypeStruct((BATCH, 2**30, *values["x"].shape[2:]), np.float32)}
    assert counts(jax.vmap(run, (axes,)), values | tokens)[0] == 0


# Batches of batches, of none and of one, elsewhere, and on several devices.
