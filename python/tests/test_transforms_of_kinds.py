"""Tests each transform of JAX with each kind of product (kinds.py)."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from arrays import sampled
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from kinds import KINDS, Kind, is_float, parameters
from program_text import EXPORTABLE_CALLS, calls, copies_of_weights, custom_calls
from raggemm import PackedWeights

DIFFERENTIABLE = [kind for kind in KINDS if kind.is_differentiable]


def parametrize_kinds(step=1, turn=0, selected=KINDS):
    """Parametrizes a test by kind. step, turn: see kinds.parameters."""
    return pytest.mark.parametrize("kind", parameters(selected, step, turn), ids=str)


same = functools.partial(jax.tree.map, np.testing.assert_array_equal)


def close(got, want, relative=2e-5):
    def compare_leaf(a, b):
        a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
        np.testing.assert_allclose(a, b, rtol=0, atol=relative * max(np.abs(b).max(initial=0), 1e-30))

    jax.tree.map(compare_leaf, got, want)


def comparison(kind: Kind):
    return same if kind.exact else functools.partial(close, relative=2e-6)


def split_leaves(arrays):
    """Returns the arrays of a pytree that have derivatives, and a function that puts them back."""
    leaves, tree = jax.tree.flatten(arrays)

    def rebuild(primals):
        primals = iter(primals)
        return jax.tree.unflatten(tree, [next(primals) if is_float(x) else x for x in leaves])

    return [x for x in leaves if is_float(x)], rebuild


def nonlinear_function(run, arrays):
    """Returns a function of the arrays that have derivatives. It computes sin(run(arrays)) * constants."""
    _, rebuild = split_leaves(arrays)

    def function(primals):
        out = run(rebuild(primals))
        return jnp.sin(out) * jnp.cos(jnp.arange(out.size, dtype=out.dtype)).reshape(out.shape)

    return function


def loss_of(run, arrays):
    return lambda primals: nonlinear_function(run, arrays)(primals).sum()


def stack_problems(*problems):
    return jax.tree.map(lambda *xs: np.stack(xs), *problems)


def select(i, tree):
    return jax.tree.map(lambda a: a[i], tree)


@functools.cache
def gradients(kind, use_other=False):
    arrays = kind.other if use_other else kind.arrays
    return jax.jit(jax.grad(loss_of(kind.run, arrays)))(split_leaves(arrays)[0])


@parametrize_kinds()
def test_values_match_the_definition_in_one_call(kind):
    compiled = jax.jit(kind.run)
    got = compiled(kind.arrays)
    if kind.exact:
        assert custom_calls(compiled.lower(kind.arrays)) == 1
    with jax.enable_x64(True):
        arrays64 = jax.tree.map(lambda x: np.float64(x) if is_float(x) else x, kind.arrays)
        primals, rebuild = split_leaves(arrays64)
        close(got, jax.jit(lambda primals: kind.dense(rebuild(primals)))(primals), kind.relative)


@pytest.mark.parametrize("kind", sampled(KINDS, 9), ids=str)
def test_without_jit(kind):
    want = jax.jit(kind.run)(kind.arrays)
    with jax.disable_jit():
        same(kind.run(kind.arrays), want)


# Derivatives.


def derivatives(function, primals, tangents):
    """Returns {name of a transform: the first or second derivative of `function` that it computes}."""

    def directional(primals):
        return jax.jvp(function, (primals,), (tangents,))[1]

    def gradient_dot_tangents(primals):
        return sum(jnp.vdot(a, b) for a, b in zip(gradient(primals), tangents, strict=True))

    gradient = jax.grad(lambda primals: function(primals).sum())
    return {
        "grad": gradient(primals),
        "checkpoint": jax.grad(lambda primals: jax.checkpoint(function)(primals).sum())(primals),
        "jvp": directional(primals),
        "linearize": jax.linearize(function, primals)[1](tangents),
        "forward over reverse": jax.jvp(gradient, (primals,), (tangents,))[1],
        "reverse over forward": jax.grad(lambda primals: directional(primals).sum())(primals),
        "reverse over reverse": jax.grad(gradient_dot_tangents)(primals),
    }


@parametrize_kinds(2, 1, DIFFERENTIABLE)
def test_derivatives(kind):
    primals, _ = split_leaves(kind.arrays)
    tangents = [np.float32(np.cos(np.arange(x.size).reshape(x.shape)) * np.abs(x).max()) for x in primals]
    got = jax.jit(functools.partial(derivatives, nonlinear_function(kind.run, kind.arrays)))(primals, tangents)
    with jax.enable_x64(True):
        dense_derivatives = functools.partial(derivatives, nonlinear_function(kind.dense, kind.arrays))
        want = jax.jit(dense_derivatives)(*jax.tree.map(np.float64, (primals, tangents)))
    for x in jax.tree.leaves(got):
        assert x.dtype == np.float32
    for name, want_value in want.items():
        close(got[name], want_value, max(kind.relative, 1e-4))


# Batches.


def batched_subsets(arrays):
    """Yields lists of flags, true for batched arrays: first one array at a time, then all."""
    count = len(jax.tree.leaves(arrays))
    yield from ([i == j for j in range(count)] for i in range(count))
    yield [True] * count


def choose_leaves(is_batched, batched_tree, unbatched_tree):
    leaves = zip(is_batched, jax.tree.leaves(batched_tree), jax.tree.leaves(unbatched_tree), strict=True)
    return jax.tree.unflatten(jax.tree.structure(unbatched_tree), [a if one else b for one, a, b in leaves])


@parametrize_kinds(2, 0)
def test_vmap(kind):
    one, batch = jax.jit(kind.run), stack_problems(kind.arrays, kind.other)
    for is_batched in batched_subsets(kind.arrays):
        batched = choose_leaves(is_batched, batch, kind.arrays)
        axes = jax.tree.unflatten(jax.tree.structure(kind.arrays), [0 if one else None for one in is_batched])
        over = jax.vmap(kind.run, (axes,))
        if kind.exact:
            assert calls(over, batched).total() == 1
        got = jax.jit(over)(batched)
        for i, problem in enumerate((kind.arrays, kind.other)):
            comparison(kind)(got[i], one(choose_leaves(is_batched, problem, kind.arrays)))


@pytest.mark.parametrize("name", ["arrays", "scales", "packed", "row_index", "uniform", "uniform: blocks"])
def test_vmap_over_rows_copies_no_weights(name):
    kind = next(kind for kind in KINDS if kind.name == name)
    axes = jax.tree.map(lambda _: None, kind.arrays) | {"x": jax.tree.map(lambda _: 0, kind.arrays["x"])}
    batched = kind.arrays | {"x": stack_problems(*[kind.arrays["x"]] * 3)}
    lowered = jax.jit(jax.vmap(kind.run, (axes,))).lower(batched)
    assert custom_calls(lowered) == 1
    assert not copies_of_weights(lowered, jax.tree.leaves(kind.arrays["w"])[0].size)


@parametrize_kinds(2, 1)
def test_nested_vmap(kind):
    """The inner vmap batches rows and sizes. The outer vmap batches weights."""
    batch = stack_problems(kind.arrays, kind.other)
    inner = {name: None if name.startswith("w") else jax.tree.map(lambda _: 0, x) for name, x in kind.arrays.items()}
    outer = {name: jax.tree.map(lambda _: 0, x) if name.startswith("w") else None for name, x in kind.arrays.items()}
    got = jax.jit(jax.vmap(jax.vmap(kind.run, (inner,)), (outer,)))(batch)
    for i in range(2):
        for j in range(2):
            problem = {name: select(i if name.startswith("w") else j, x) for name, x in batch.items()}
            comparison(kind)(got[i, j], jax.jit(kind.run)(problem))


@parametrize_kinds(3, 0, DIFFERENTIABLE)
def test_gradients_of_batches(kind):
    batch = stack_problems(kind.arrays, kind.other)
    primals, rebuild = split_leaves(batch)
    want = stack_problems(gradients(kind), gradients(kind, use_other=True))

    def losses(primals):
        return jax.vmap(lambda one: loss_of(kind.run, one)(split_leaves(one)[0]))(rebuild(primals))

    close(jax.jit(jax.grad(lambda primals: losses(primals).sum()))(primals), want)
    close(jax.jit(jax.vmap(lambda one: jax.grad(loss_of(kind.run, one))(split_leaves(one)[0])))(batch), want)

    shared, rebuild = split_leaves({name: x for name, x in kind.arrays.items() if name.startswith("w")})
    rest = {name: x for name, x in batch.items() if name not in rebuild(shared)}

    def loss(shared, rest):
        arrays = rest | rebuild(shared)
        return loss_of(kind.run, arrays)(split_leaves(arrays)[0])

    if shared:
        total = jax.jit(jax.grad(lambda shared: jax.vmap(loss, (None, 0))(shared, rest).sum()))(shared)
        single_gradients = [jax.jit(jax.grad(loss))(shared, select(i, rest)) for i in range(2)]
        close(total, jax.tree.map(np.add, *single_gradients))


# Loops.


@parametrize_kinds(3, 1)
def test_scan_fori_loop_and_cond(kind):
    batch, one = stack_problems(kind.arrays, kind.other), jax.jit(kind.run)
    want = [one(kind.arrays), one(kind.other)]
    same(
        jax.jit(lambda batch: jax.lax.scan(lambda _, arrays: (None, kind.run(arrays)), None, batch)[1])(batch),
        np.stack(want),
    )

    def loop_sum(batch):
        return jax.lax.fori_loop(0, 2, lambda i, total: total + kind.run(select(i, batch)), jnp.zeros_like(want[0]))

    same(jax.jit(loop_sum)(batch), want[0] + want[1])
    branches = jax.jit(lambda flag: jax.lax.cond(flag, kind.run, lambda x: -kind.run(x), kind.arrays))
    same(branches(True), want[0])
    same(branches(False), -want[0])


@parametrize_kinds(3, 2, DIFFERENTIABLE)
def test_gradients_of_scans(kind):
    batch = stack_problems(kind.arrays, kind.other)
    primals, rebuild = split_leaves(batch)
    want = stack_problems(gradients(kind), gradients(kind, use_other=True))
    for wrap in (lambda f: f, jax.checkpoint):

        def loss(primals, wrap=wrap):
            body = wrap(lambda total, one: (total + loss_of(kind.run, one)(split_leaves(one)[0]), None))
            return jax.lax.scan(body, jnp.float32(0), rebuild(primals))[0]

        close(jax.jit(jax.grad(loss))(primals), want)


# Export.


def export_and_reload(f, *operands):
    made = jax.export.export(jax.jit(f), disabled_checks=EXPORTABLE_CALLS)(*operands)
    return jax.export.deserialize(made.serialize()).call


@parametrize_kinds(3, 2)
def test_export(kind):
    same(export_and_reload(kind.run, kind.arrays)(kind.other), jax.jit(kind.run)(kind.other))
    if kind.is_differentiable:
        primals, _ = split_leaves(kind.arrays)
        gradient = jax.grad(loss_of(kind.run, kind.arrays))
        same(export_and_reload(gradient, primals)(primals), jax.jit(gradient)(primals))


@parametrize_kinds(selected=[kind for kind in KINDS if not kind.name.startswith("uniform")])
def test_export_with_symbolic_rows(kind):
    scope = jax.export.SymbolicScope()
    symbols = {extent: jax.export.symbolic_shape(name, scope=scope)[0] for extent, name in kind.rows.items()}
    shapes = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct([symbols.get(extent, extent) for extent in x.shape], x.dtype), kind.arrays
    )
    comparison(kind)(export_and_reload(kind.run, shapes)(kind.arrays), jax.jit(kind.run)(kind.arrays))


# Devices.


def mesh(kind=AxisType.Auto):
    return jax.make_mesh((2,), ("x",), axis_types=(kind,), devices=jax.devices()[:2])


@pytest.mark.parametrize("check_vma", sampled([True, False], 2))
@parametrize_kinds(3, 0)
def test_data_parallel(kind, check_vma):
    """Gradients of shared weights are summed over the devices once."""
    shared, rebuild = split_leaves({name: x for name, x in kind.arrays.items() if name.startswith("w")})
    batch = {name: x for name, x in stack_problems(kind.arrays, kind.other).items() if not name.startswith("w")}

    def on_device(rest, shared):
        return kind.run(select(0, rest) | rebuild(shared))[None]

    sharded = jax.shard_map(on_device, mesh=mesh(), in_specs=(P("x"), P()), out_specs=P("x"), check_vma=check_vma)

    def one_by_one(rest, shared):
        return jnp.stack([kind.run(select(i, rest) | rebuild(shared)) for i in range(2)])

    same(jax.jit(sharded)(batch, shared), jax.jit(one_by_one)(batch, shared))
    if not kind.is_differentiable:
        return
    primals, rebuild_rest = split_leaves(batch)

    def loss(f):
        return lambda primals, shared: jnp.sin(f(rebuild_rest(primals), shared)).sum()

    got, want = (jax.jit(jax.grad(loss(f), (0, 1)))(primals, shared) for f in (sharded, one_by_one))
    close(got, want)


def shard(x, axis, devices):
    """Shards the arrays in x along an axis. PackedWeights, odd extents, and arrays of another rank stay whole."""

    def place(a):
        is_sharded = np.ndim(a) == x.ndim and a.shape[axis] % 2 == 0 and not isinstance(x, PackedWeights)
        spec = P(*[None] * axis, "x") if is_sharded else P()
        return jax.device_put(a, NamedSharding(devices, spec))

    return jax.tree.map(place, x)


def weight_axes(kind):
    return range(kind.arrays[kind.weights].ndim)


@parametrize_kinds(3, 2)
def test_partitioning(kind, partitioning):
    want = jax.jit(kind.run)(kind.arrays)
    for axis in weight_axes(kind):
        sharded = kind.arrays | {kind.weights: shard(kind.arrays[kind.weights], axis, mesh())}
        close(jax.jit(kind.run)(sharded), want, kind.relative)
        if kind.is_differentiable:
            gradient = jax.grad(loss_of(kind.run, kind.arrays))
            close(jax.jit(gradient)(split_leaves(sharded)[0]), gradients(kind))


@parametrize_kinds(3, 1)
def test_explicit_mesh(kind):
    want, devices = jax.jit(kind.run)(kind.arrays), mesh(AxisType.Explicit)
    for axis in weight_axes(kind):
        with jax.set_mesh(devices):
            sharded = kind.arrays | {kind.weights: shard(kind.arrays[kind.weights], axis, devices)}
            same(jax.jit(kind.run)(sharded), want)
            if not kind.is_differentiable:
                continue
            primals = split_leaves(sharded)[0]
            got = jax.jit(jax.grad(loss_of(kind.run, sharded)))(primals)
        close(got, gradients(kind))
        for gradient, part in zip(got, primals, strict=True):
            if isinstance(part, jax.Array):
                assert jax.typeof(gradient).sharding.spec == jax.typeof(part).sharding.spec
