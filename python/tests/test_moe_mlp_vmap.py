"""Batches of moe_mlp: one call, with the bits of a loop, and what is not one."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from arrays import random
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P
from moe_batches import (
    BATCH,
    GROUPS,
    HIDDEN,
    INNER,
    LOCAL,
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
from raggemm import nn

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


def test_a_batch_of_layers():
    """With a router, whose gradient needs that of the rows' weights."""
    params, x = nn.init(jax.random.key(0), nn.Shape(HIDDEN, INNER, GROUPS)), random(BATCH, TOKENS, HIDDEN)
    run = lambda params, x: nn.apply(params, x, 2).out  # noqa: E731
    batch = jax.vmap(run, (None, 0))
    assert counts(batch, params, x) == [1, 0, 0, 0]
    for b in range(BATCH):
        same(jax.jit(batch)(params, x)[b], jax.jit(run)(params, x[b]))
    loss = lambda params, f: jnp.sin(f(params, x)).sum()  # noqa: E731
    assert counts(lambda params: jax.grad(loss)(params, batch), params) == [1, 1, 0, 0]
    loop = lambda params, x: jnp.stack([run(params, one) for one in x])  # noqa: E731
    close(jax.grad(loss)(params, batch), jax.grad(loss)(params, loop))


@pytest.mark.parametrize("batched", [ROUTING, ROUTING + WEIGHTS], ids=["shared", "own"])
@pytest.mark.parametrize("offset", [False, True])
def test_rows_of_no_processed_group_may_hold_anything(batched, offset):
    values, axes, run = case(batched + ("group_offset",) * offset, offset=offset)
    sizes, first = values["group_sizes"], values.get("group_offset", jnp.zeros(BATCH, int))
    ends = jnp.pad(jnp.cumsum(sizes, 1), ((0, 0), (1, 0)))
    begin, end = (ends[jnp.arange(BATCH), first + n] for n in (0, LOCAL if offset else GROUPS))
    row = jnp.arange(ROWS)
    inside = (row >= begin[:, None]) & (row < end[:, None])
    assert inside.any() and not inside.all()
    held = {"row_tokens": jnp.where(row % 2, -7, 2**31 - 1), "row_weights": jnp.nan}
    anything = values | {name: jnp.where(inside, values[name], x) for name, x in held.items()}
    f = jax.jit(jax.vmap(gradient(run, ROUTING[::3]), (axes, 0)))
    same(jax.vmap(run, (axes,))(anything), jax.vmap(run, (axes,))(values))
    got = f(anything, values["x"])
    same(got, f(values, values["x"]))
    assert not np.where(inside, 0, got["row_weights"]).any()


@pytest.mark.parametrize("dtype", [np.int64, np.uint32])
def test_types_of_integers(dtype, x64):
    values, axes, run = case(ROUTING)
    wide = values | {name: values[name].astype(dtype) for name in ("row_tokens", "group_sizes")}
    same(jax.vmap(run, (axes,))(wide), jax.vmap(run, (axes,))(values))


# Batches that are grouped GEMMs.


@pytest.mark.parametrize("batched", [("w_up",), ("w_down", "x"), ("b_up",), ("w_up", "w_gate", "b_down")])
def test_where_only_some_weights_are_batched(batched):
    values, axes, run = case(batched)
    assert counts(jax.vmap(run, (axes,)), values)[0] == 0
    got, ct = jax.vmap(run, (axes,))(values), values["x"] if values["x"].ndim == 2 else values["x"][0]
    of_each = gradient(run, ("x", *WEIGHTS))
    gradients = jax.vmap(of_each, (axes, None))(values, ct)
    for b in range(BATCH):
        close(got[b], run(part(values, batched, b)))
        close(part(gradients, gradients, b), of_each(part(values, batched, b), ct))


def test_gradients_of_shared_weights_for_each():
    values, axes, run = case(ROUTING)
    of_each = gradient(run, ("x", *WEIGHTS))
    gradients = jax.vmap(of_each, (axes, 0))(values, values["x"])
    for b in range(BATCH):
        close(part(gradients, gradients, b), of_each(part(values, ROUTING, b), values["x"][b]))


def test_beyond_int32():
    """Of rows that no machine holds only shapes are asked."""
    values, axes, run = case(ROUTING)
    for rows, calls in ((2**31 // BATCH - 1, 1), (2**31 // BATCH, 1), (2**31 // BATCH + 1, 0), (2**30, 0)):
        many = jax.ShapeDtypeStruct((BATCH, rows), np.int32)
        changes = {"row_tokens": many, "row_weights": jax.ShapeDtypeStruct(many.shape, np.float32)}
        assert counts(jax.vmap(run, (axes,)), values | changes)[0] == calls
    tokens = {"x": jax.ShapeDtypeStruct((BATCH, 2**30, *values["x"].shape[2:]), np.float32)}
    assert counts(jax.vmap(run, (axes,)), values | tokens)[0] == 0


@pytest.mark.parametrize("batched", [ROUTING, ROUTING + WEIGHTS], ids=["shared", "own"])
def test_forward_mode_and_second_order(batched):
    values, axes, run = case(batched)
    moved = (*ROUTING[::3], *WEIGHTS)

    def second(values, along):
        f = lambda moved: jnp.sin(run(values | moved)).sum()  # noqa: E731
        given = {name: values[name] for name in moved}
        return jax.jvp(jax.grad(f), (given,), (along,)), jax.jvp(f, (given,), (along,))

    along = {name: jnp.cos(values[name]) for name in moved}
    axes_of = {name: axes[name] for name in moved}
    got = jax.jit(jax.vmap(second, (axes, axes_of)))(values, along)
    for b in range(BATCH):
        want = jax.jit(second)(part(values, batched, b), part(along, batched, b))
        jax.tree.map(lambda x, y, b=b: np.testing.assert_allclose(x[b], y, rtol=1e-3, atol=1e-3), got, want)


# Batches of batches, of none and of one, elsewhere, and on several devices.


@pytest.mark.parametrize("own", [False, True], ids=["shared", "own"])
def test_nested(own):
    """A batch of rows by weights that it shares, or by others in the outer batch."""
    values, inner, run = case(ROUTING)
    many = values | {name: jnp.stack([values[name], values[name][::-1]], 1) for name in ROUTING}
    many |= {name: jnp.stack([values[name], 2 * values[name]]) for name in WEIGHTS if own}
    outer = dict.fromkeys(values) | dict.fromkeys(ROUTING, 1) | dict.fromkeys(WEIGHTS, 0 if own else None)
    pull = gradient(run, ("x",))
    f = jax.vmap(jax.vmap(run, (inner,)), (outer,))
    of_x = jax.vmap(jax.vmap(pull, (inner, 0)), (outer, 1))
    assert counts(f, many) == [1, 0, 0, 0] and counts(of_x, many, many["x"])[1:] == [1, 0, 0]
    got, gradients = jax.jit(f)(many), jax.jit(of_x)(many, many["x"])["x"]
    for i, b in np.ndindex(2, BATCH):
        one = {name: x[b, i] if name in ROUTING else x[i] if own else x for name, x in many.items()}
        same((got[i, b], gradients[i, b]), (run(one), pull(one, one["x"])["x"]))


def test_cotangents_alone():
    """A batch of vectors by one Jacobian, in a batch of those; what is kept is one's then, and the other's."""
    for save in ("inputs", "activations"):
        values, axes, run = case(ROUTING, save=save)
        ct = np.random.default_rng(2).normal(size=(BATCH, 2, TOKENS, HIDDEN)).astype(np.float32)

        def both(values, ct, run=run):
            pull = jax.vjp(lambda x: run(values | {"x": x}), values["x"])[1]
            return jax.vmap(pull)(ct)[0]

        got = jax.jit(jax.vmap(both, (axes, 0)))(values, ct)
        for b, i in np.ndindex(BATCH, 2):
            one = part(values, ROUTING, b)
            same(got[b, i], gradient(run, ("x",))(one, ct[b, i])["x"])


@pytest.mark.parametrize("batched", [ROUTING, ROUTING + WEIGHTS, ("w_up",)], ids=["shared", "own", "some"])
def test_batches_of_one_and_of_none(batched):
    values, axes, run = case(batched)
    names = ("x", *WEIGHTS)
    one, none = ({n: x[:size] if n in batched else x for n, x in values.items()} for size in (1, 0))
    f, pull = jax.vmap(run, (axes,)), jax.vmap(gradient(run, names), (axes, None))
    want = run(part(values, batched, 0))
    assert (counts(f, one), counts(pull, one, want)) == ([1, 0, 0, 0], [1, 1, 0, 0])
    same(f(one)[0], want)
    same(part(pull(one, want), names, 0), gradient(run, names)(part(values, batched, 0), want))
    assert f(none).shape == (0, TOKENS, HIDDEN)
    of_batch = gradient(f, names)(none, jnp.zeros((0, TOKENS, HIDDEN)))
    assert {n: x.shape for n, x in of_batch.items()} == {n: none[n].shape for n in names}
    assert not any(x.any() for x in of_batch.values())


def test_no_tokens_and_no_rows():
    values, axes, run = case(ROUTING)
    sizes = jnp.zeros((BATCH, GROUPS), jnp.int32)
    no_rows = values | {"row_tokens": values["row_tokens"][:, :0], "row_weights": values["row_weights"][:, :0]}
    assert not jax.vmap(run, (axes,))(no_rows | {"group_sizes": sizes}).any()
    no_tokens = values | {"x": values["x"][:, :0]}
    assert jax.vmap(run, (axes,))(no_tokens | {"group_sizes": sizes}).shape == (BATCH, 0, HIDDEN)
    with pytest.raises((ValueError, jax.errors.JaxRuntimeError), match=r"row_tokens: value .*, must be in \[0, 0\)"):
        jax.block_until_ready(jax.jit(jax.vmap(run, (axes,)))(no_tokens))


def test_other_axes():
    values, _, run = case(ROUTING + WEIGHTS)
    moved = {name: jnp.moveaxis(x, 0, -1) for name, x in values.items()}
    same(jax.vmap(run, -1, 1)(moved).swapaxes(0, 1), jax.vmap(run)(values))


@pytest.mark.parametrize("check_vma", [False, True])
@pytest.mark.parametrize("batched", [ROUTING, ROUTING + WEIGHTS], ids=["shared", "own"])
def test_on_several_devices(batched, check_vma):
    """A batch that devices divide, by shard_map around it, by the batch around shard_map, and by explicit axes."""
    random = np.random.default_rng(0)
    values, axes = batch_of([arguments(random) for _ in range(4)], batched)
    run, names = runs(), ("x", *(name for name in WEIGHTS if name in batched))
    pull = gradient(run, names)
    both = lambda values: (run(values), pull(values, values["x"]))  # noqa: E731
    f = jax.vmap(both, (axes,))
    want = jax.jit(f)(values)
    auto, explicit = (
        jax.make_mesh((2,), ("x",), axis_types=(kind,), devices=jax.devices()[:2])
        for kind in (AxisType.Auto, AxisType.Explicit)
    )
    specs = {name: P("x") if name in batched else P() for name in values}
    around = jax.shard_map(f, mesh=auto, in_specs=(specs,), out_specs=P("x"), check_vma=check_vma)
    same(jax.jit(around)(values), want)
    each = jax.shard_map(both, mesh=auto, in_specs=(dict.fromkeys(values, P()),), out_specs=P(), check_vma=check_vma)
    same(jax.jit(jax.vmap(each, (axes,), spmd_axis_name="x"))(values), want)
    with jax.set_mesh(explicit):
        placed = {n: jax.device_put(x, jax.NamedSharding(explicit, specs[n])) for n, x in values.items()}
        same(jax.jit(f)(placed), want)
