"""Tests that a vmap of moe_mlp is one call, has the bits of a loop, and reports errors of single batch elements."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import raggemm
from arrays import sampled
from hypothesis import given, settings
from hypothesis import strategies as st
from moe_batches import (
    BATCH,
    ROUTING,
    ROWS,
    TOKENS,
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


@settings(max_examples=3)
@given(OPTIONS, st.integers(0, 2**32 - 1), st.sets(st.sampled_from(ROUTED)), st.booleans())
def test_any_batch_is_one_call(options, seed, batched, batch_weights):
    """A vmap and its gradient make as many calls as a single problem. All weights are batched, or none."""
    random = np.random.default_rng(seed)
    problems, run = [arguments(random, **options) for _ in range(BATCH)], runs(**options)
    names = problems[0].keys()
    batched = ({*batched} & names) | {name for name in names if batch_weights and is_weight(name)} or {"x"}
    batch, axes = batch_of(problems, batched)
    got = jax.jit(jax.vmap(run, (axes,)))(batch)
    one = jax.jit(run)
    for b in range(BATCH):
        same(got[b], one(part(batch, batched, b)))
    assert counts(jax.vmap(run, (axes,)), batch) == counts(run, problems[0])

    ct = random.normal(size=got.shape).astype(got.dtype)
    floats = options["w"] in ("float32", "bfloat16")
    pull = gradient(run, {"x", "row_weights"} & names | {n for n in names if batch_weights and floats and is_weight(n)})
    got = jax.jit(jax.vmap(pull, (axes, 0)))(batch, ct)
    one = jax.jit(pull)
    for b in range(BATCH):
        want = one(part(batch, batched, b), ct[b])
        if options["rows"] == "output":
            same(part(got, got, b), want)
        else:
            jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=0.02, atol=0.02), part(got, got, b), want)
    assert counts(jax.vmap(pull, (axes, 0)), batch, ct) == counts(pull, problems[0], ct[0])


# Limits of one call.


def test_batches_beyond_int32_are_grouped_gemms():
    values, axes, run = case(ROUTING)
    for rows, calls in ((2**31 // BATCH - 1, 1), (2**31 // BATCH, 1), (2**31 // BATCH + 1, 0), (2**30, 0)):
        row_tokens = jax.ShapeDtypeStruct((BATCH, rows), np.int32)
        changes = {"row_tokens": row_tokens, "row_weights": jax.ShapeDtypeStruct(row_tokens.shape, np.float32)}
        assert counts(jax.vmap(run, (axes,)), values | changes)[0] == calls
    tokens = {"x": jax.ShapeDtypeStruct((BATCH, 2**30, *values["x"].shape[2:]), np.float32)}
    assert counts(jax.vmap(run, (axes,)), values | tokens)[0] == 0


INT32_MAX = 2**31 - 1
ALL_IN_ONE, IS_ROW_7 = [0, 0, 30, 0, 0], np.arange(ROWS) == 7
# {name: (batched arguments, wrong values, error with shared weights, error with batched weights)}
WRONG = {
    "a size": (("group_sizes",), {"group_sizes": [[9, 0, 1, 0, 0], [0, 5, -1, 2, 0], [0, 0, 3, 0, 0]]},
        "group_sizes: group 2 has size -1", "group_sizes: group 7 has size -1"),
    "a size that other problems compensate": (
        ("group_sizes",), {"group_sizes": [[-40, 0, 0, 0, 0], [40, 0, 0, 0, 0], [0] * 5]},
        "group_sizes: group 0 has size -40", "group_sizes: group 0 has size -40"),
    "a sum": (("group_sizes",), {"group_sizes": [[0] * 5, [0, 20, 0, 21, 0], [0] * 5]},
        "group_sizes: group 3 has size 21 and starts at 100", "group_sizes: group 8 has size 21 and starts"),
    "large sizes": (("group_sizes",), {"group_sizes": [[0] * 5, [3, INT32_MAX, INT32_MAX, 0, 0], [0] * 5]},
        f"group_sizes: group 1 has size {INT32_MAX}", f"group_sizes: group 6 has size {INT32_MAX}"),
    "a token of another problem": ((), {"group_sizes": ALL_IN_ONE, "row_tokens": np.where(IS_ROW_7, TOKENS, 0)},
        *[r"row_tokens: value \d+ at index 7, must be in \[0, 18\)"] * 2),
    "a negative token": ((), {"group_sizes": ALL_IN_ONE, "row_tokens": np.where(IS_ROW_7, -1, 0)},
        *[r"row_tokens: value -1 at index 7, must be in \[0, 18\)"] * 2),
    "an offset": ((), {"group_offset": 3},
        "group_offset: value 3 at index 0, must", "group_offset: value 7 at index 0, must"),
    "one of the offsets": (("group_offset",), {"group_offset": [0, 3, 0]},
        "group_offset: value 3 at index 0, must", "group_offset: value 7 at index 0, must"),
    "a negative offset": (("group_offset",), {"group_offset": [1, -1, 4]},
        *["group_offset: value -1 at index 0, must"] * 2),
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "batch_weights"), sampled([*itertools.product(WRONG, (False, True))], 3, unpack=True), ids=str
)
def test_wrong_values(name, batch_weights):
    """With on_error="nan", a wrong value makes the results of all problems of the batch NaN."""
    batched, changes, *messages = WRONG[name]
    values, axes, run = case(("x", *batched, *WEIGHTS * batch_weights), offset="group_offset" in changes)
    values |= {key: np.array(x, np.int32) for key, x in changes.items()}
    functions = jax.vmap(run, (axes,)), jax.vmap(gradient(run, ("x", "row_weights")), (axes, 0))
    for args, f in zip(((values,), (values, values["x"])), functions, strict=True):
        with pytest.raises((ValueError, jax.errors.JaxRuntimeError), match=messages[batch_weights]):
            jax.block_until_ready(jax.jit(f)(*args))
        with raggemm.options(on_error="nan"):
            assert all(np.isnan(x).all() for x in jax.tree.leaves(jax.jit(f)(*args)))
