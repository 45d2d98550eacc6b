"""Each transform of JAX on each kind of operands: derivatives against float64, all else against calls one by one."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from arrays import sampled
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from kinds import KINDS, Kind, is_float, parameters
from program_text import calls, copies_of_weights, custom_calls
from raggemm import PackedWeights

DIFFERENTIABLE = [kind for kind in KINDS if kind.is_differentiable]


def each(step=1, turn=0, of=KINDS):
    """Each kind. In the short run, tests that compile much share the kinds: each test has every step-th one."""
    return pytest.mark.parametrize("kind", parameters(of, step, turn), ids=str)


same = functools.partial(jax.tree.map, np.testing.assert_array_equal)
ALLOWED = [
    jax.export.DisabledSafetyCheck.custom_call(f"raggemm_{name}_v1")
    for name in ("grouped_gemm", "moe_mlp", "moe_mlp_backward")
]


def close(got, want, relative=2e-5):
    def one(a, b):
        a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
        np.testing.assert_allclose(a, b, rtol=0, atol=relative * max(np.abs(b).max(initial=0), 1e-30))

    jax.tree.map(one, got, want)


def compare(kind: Kind):
    return same if kind.exact else functools.partial(close, relative=2e-6)


def floats(arrays):
    """The leaves that have derivatives, and what makes them whole again."""
    leaves, tree = jax.tree.flatten(arrays)

    def whole(parts):
        parts = iter(parts)
        return jax.tree.unflatten(tree, [next(parts) if is_float(x) else x for x in leaves])

    return [x for x in leaves if is_float(x)], whole


def curve_of(run, arrays):
    """A function, linear in nothing, of the leaves that have derivatives."""
    _, whole = floats(arrays)

    def curve(parts):
        out = run(whole(parts))
        return jnp.sin(out) * jnp.cos(jnp.arange(out.size, dtype=out.dtype)).reshape(out.shape)

    return curve


def loss_of(run, arrays):
    return lambda parts: curve_of(run, arrays)(parts).sum()


def stacked(*problems):
    return jax.tree.map(lambda *xs: np.stack(xs), *problems)


def at(i, tree):
    return jax.tree.map(lambda a: a[i], tree)


@functools.cache
def gradients(kind, is_other=False):
    """Returns those of a problem of the kind, which many tests compare with."""
    arrays = kind.other if is_other else kind.arrays
    return jax.jit(jax.grad(loss_of(kind.run, arrays)))(floats(arrays)[0])


@each()
def test_one_call_whose_values_are_the_definition(kind):
    compiled = jax.jit(kind.run)
    got = compiled(kind.arrays)
    if kind.exact:
        assert custom_calls(compiled.lower(kind.arrays)) == 1
    with jax.enable_x64(True):
        wide = jax.tree.map(lambda x: np.float64(x) if is_float(x) else x, kind.arrays)
        parts, whole = floats(wide)
        close(got, jax.jit(lambda parts: kind.dense(whole(parts)))(parts), kind.relative)


@pytest.mark.parametrize("kind", sampled(KINDS, 9), ids=str)
def test_without_jit(kind):
    want = jax.jit(kind.run)(kind.arrays)
    with jax.disable_jit():
        same(kind.run(kind.arrays), want)


# Derivatives.


def derivatives(curve, parts, tangents):
    """Of curve, an array, and of its sum."""

    def along(parts):
        return jax.jvp(curve, (parts,), (tangents,))[1]

    def of_gradient(parts):
        return sum(jnp.vdot(a, b) for a, b in zip(gradient(parts), tangents, strict=True))

    gradient = jax.grad(lambda parts: curve(parts).sum())
    return {
        "grad": gradient(parts),
        "checkpoint": jax.grad(lambda parts: jax.checkpoint(curve)(parts).sum())(parts),
        "jvp": along(parts),
        "linearize": jax.linearize(curve, parts)[1](tangents),
        "forward over reverse": jax.jvp(gradient, (parts,), (tangents,))[1],
        "reverse over forward": jax.grad(lambda parts: along(parts).sum())(parts),
        "reverse over reverse": jax.grad(of_gradient)(parts),
    }


@each(2, 1, DIFFERENTIABLE)
def test_derivatives(kind):
    """First and second, each in every way that there is."""
    parts, _ = floats(kind.arrays)
    tangents = [np.float32(np.cos(np.arange(x.size).reshape(x.shape)) * np.abs(x).max()) for x in parts]
    got = jax.jit(functools.partial(derivatives, curve_of(kind.run, kind.arrays)))(parts, tangents)
    with jax.enable_x64(True):
        of_dense = functools.partial(derivatives, curve_of(kind.dense, kind.arrays))
        want = jax.jit(of_dense)(*jax.tree.map(np.float64, (parts, tangents)))
    for x in jax.tree.leaves(got):
        assert x.dtype == np.float32
    for name, wanted in want.items():
        close(got[name], wanted, max(kind.relative, 1e-4))


# Batches.


def subsets(arrays):
    """Each leaf alone, and all: whether it has an axis."""
    count = len(jax.tree.leaves(arrays))
    yield from ([i == j for j in range(count)] for i in range(count))
    yield [True] * count


def chosen(which, some, others):
    """Leaves of some where it says so, else of others."""
    leaves = zip(which, jax.tree.leaves(some), jax.tree.leaves(others), strict=True)
    return jax.tree.unflatten(jax.tree.structure(others), [a if one else b for one, a, b in leaves])


@each(2, 0)
def test_vmap(kind):
    one, many = jax.jit(kind.run), stacked(kind.arrays, kind.other)
    for which in subsets(kind.arrays):
        batched = chosen(which, many, kind.arrays)
        axes = jax.tree.unflatten(jax.tree.structure(kind.arrays), [0 if one else None for one in which])
        over = jax.vmap(kind.run, (axes,))
        if kind.exact:
            assert calls(over, batched).total() == 1
        got = jax.jit(over)(batched)
        for i, problem in enumerate((kind.arrays, kind.other)):
            compare(kind)(got[i], one(chosen(which, problem, kind.arrays)))


@pytest.mark.parametrize("name", ["arrays", "scales", "packed", "row_index", "uniform", "uniform: blocks"])
def test_vmap_of_rows_moves_no_weights(name):
    kind = next(kind for kind in KINDS if kind.name == name)
    axes = jax.tree.map(lambda _: None, kind.arrays) | {"x": jax.tree.map(lambda _: 0, kind.arrays["x"])}
    batched = kind.arrays | {"x": stacked(*[kind.arrays["x"]] * 3)}
    lowered = jax.jit(jax.vmap(kind.run, (axes,))).lower(batched)
    assert custom_calls(lowered) == 1
    assert not copies_of_weights(lowered, jax.tree.leaves(kind.arrays["w"])[0].size)


@each(2, 1)
def test_nested_vmap(kind):
    """Rows and sizes along one axis, weights along the other."""
    many = stacked(kind.arrays, kind.other)
    inner = {name: None if name.startswith("w") else jax.tree.map(lambda _: 0, x) for name, x in kind.arrays.items()}
    outer = {name: jax.tree.map(lambda _: 0, x) if name.startswith("w") else None for name, x in kind.arrays.items()}
    got = jax.jit(jax.vmap(jax.vmap(kind.run, (inner,)), (outer,)))(many)
    for i in range(2):
        for j in range(2):
            problem = {name: at(i if name.startswith("w") else j, x) for name, x in many.items()}
            compare(kind)(got[i, j], jax.jit(kind.run)(problem))


@each(3, 0, DIFFERENTIABLE)
def test_gradients_of_batches(kind):
    """Of a batch the gradient of each problem; of weights that it shares their sum."""
    many = stacked(kind.arrays, kind.other)
    parts, whole = floats(many)
    want = stacked(gradients(kind), gradients(kind, is_other=True))

    def losses(parts):
        return jax.vmap(lambda one: loss_of(kind.run, one)(floats(one)[0]))(whole(parts))

    close(jax.jit(jax.grad(lambda parts: losses(parts).sum()))(parts), want)
    close(jax.jit(jax.vmap(lambda one: jax.grad(loss_of(kind.run, one))(floats(one)[0])))(many), want)

    shared, whole = floats({name: x for name, x in kind.arrays.items() if name.startswith("w")})
    rest = {name: x for name, x in many.items() if name not in whole(shared)}

    def loss(shared, rest):
        arrays = rest | whole(shared)
        return loss_of(kind.run, arrays)(floats(arrays)[0])

    if shared:
        total = jax.jit(jax.grad(lambda shared: jax.vmap(loss, (None, 0))(shared, rest).sum()))(shared)
        each_one = [jax.jit(jax.grad(loss))(shared, at(i, rest)) for i in range(2)]
        close(total, jax.tree.map(np.add, *each_one))


# Loops.


@each(3, 1)
def test_scan_while_and_cond(kind):
    """Over whole problems: what is stacked comes as it was, parts that are None included."""
    many, one = stacked(kind.arrays, kind.other), jax.jit(kind.run)
    want = [one(kind.arrays), one(kind.other)]
    same(
        jax.jit(lambda many: jax.lax.scan(lambda _, arrays: (None, kind.run(arrays)), None, many)[1])(many),
        np.stack(want),
    )

    def summed(many):
        return jax.lax.fori_loop(0, 2, lambda i, total: total + kind.run(at(i, many)), jnp.zeros_like(want[0]))

    same(jax.jit(summed)(many), want[0] + want[1])
    branches = jax.jit(lambda flag: jax.lax.cond(flag, kind.run, lambda x: -kind.run(x), kind.arrays))
    same(branches(True), want[0])
    same(branches(False), -want[0])


@each(3, 2, DIFFERENTIABLE)
def test_gradients_of_scans(kind):
    many = stacked(kind.arrays, kind.other)
    parts, whole = floats(many)
    want = stacked(gradients(kind), gradients(kind, is_other=True))
    for wrap in (lambda f: f, jax.checkpoint):

        def loss(parts, wrap=wrap):
            body = wrap(lambda total, one: (total + loss_of(kind.run, one)(floats(one)[0]), None))
            return jax.lax.scan(body, jnp.float32(0), whole(parts))[0]

        close(jax.jit(jax.grad(loss))(parts), want)


# Programs as bytes.


def reloaded(f, *operands):
    made = jax.export.export(jax.jit(f), disabled_checks=ALLOWED)(*operands)
    return jax.export.deserialize(made.serialize()).call


@each(3, 2)
def test_export(kind):
    same(reloaded(kind.run, kind.arrays)(kind.other), jax.jit(kind.run)(kind.other))
    if kind.is_differentiable:
        parts, _ = floats(kind.arrays)
        gradient = jax.grad(loss_of(kind.run, kind.arrays))
        same(reloaded(gradient, parts)(parts), jax.jit(gradient)(parts))


@each(of=[kind for kind in KINDS if not kind.name.startswith("uniform")])
def test_export_with_rows_that_are_not_known(kind):
    scope = jax.export.SymbolicScope()
    symbols = {extent: jax.export.symbolic_shape(name, scope=scope)[0] for extent, name in kind.rows.items()}
    shapes = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct([symbols.get(extent, extent) for extent in x.shape], x.dtype), kind.arrays
    )
    compare(kind)(reloaded(kind.run, shapes)(kind.arrays), jax.jit(kind.run)(kind.arrays))


# Devices.


def mesh(kind=AxisType.Auto):
    return jax.make_mesh((2,), ("x",), axis_types=(kind,), devices=jax.devices()[:2])


@pytest.mark.parametrize("check_vma", sampled([True, False], 2))
@each(3, 0)
def test_data_parallel(kind, check_vma):
    """A problem on each device, with weights that all have, whose gradient is summed once."""
    shared, whole = floats({name: x for name, x in kind.arrays.items() if name.startswith("w")})
    many = {name: x for name, x in stacked(kind.arrays, kind.other).items() if not name.startswith("w")}

    def on_a_device(rest, shared):
        return kind.run(at(0, rest) | whole(shared))[None]

    sharded = jax.shard_map(on_a_device, mesh=mesh(), in_specs=(P("x"), P()), out_specs=P("x"), check_vma=check_vma)

    def one_by_one(rest, shared):
        return jnp.stack([kind.run(at(i, rest) | whole(shared)) for i in range(2)])

    same(jax.jit(sharded)(many, shared), jax.jit(one_by_one)(many, shared))
    if not kind.is_differentiable:
        return
    parts, all_rest = floats(many)

    def loss(f):
        return lambda parts, shared: jnp.sin(f(all_rest(parts), shared)).sum()

    got, want = (jax.jit(jax.grad(loss(f), (0, 1)))(parts, shared) for f in (sharded, one_by_one))
    close(got, want)


def put(x, axis, devices):
    """x divided along the axis, but for parts that have another shape, one value, or an odd number of them."""

    def place(a):
        divided = np.ndim(a) == x.ndim and a.shape[axis] % 2 == 0 and not isinstance(x, PackedWeights)
        spec = P(*[None] * axis, "x") if divided else P()
        return jax.device_put(a, NamedSharding(devices, spec))

    return jax.tree.map(place, x)


def axes_of(kind):
    return range(kind.arrays[kind.weights].ndim)


@each(3, 2)
def test_partitioning(kind, partitioning):
    """Weights divided along each of their axes."""
    want = jax.jit(kind.run)(kind.arrays)
    for axis in axes_of(kind):
        placed = kind.arrays | {kind.weights: put(kind.arrays[kind.weights], axis, mesh())}
        close(jax.jit(kind.run)(placed), want, kind.relative)
        if kind.is_differentiable:
            gradient = jax.grad(loss_of(kind.run, kind.arrays))
            close(jax.jit(gradient)(floats(placed)[0]), gradients(kind))


@each(3, 1)
def test_explicit_mesh(kind):
    """Operands are gathered; gradients come back divided as these are."""
    want, devices = jax.jit(kind.run)(kind.arrays), mesh(AxisType.Explicit)
    for axis in axes_of(kind):
        with jax.set_mesh(devices):
            placed = kind.arrays | {kind.weights: put(kind.arrays[kind.weights], axis, devices)}
            same(jax.jit(kind.run)(placed), want)
            if not kind.is_differentiable:
                continue
            parts = floats(placed)[0]
            got = jax.jit(jax.grad(loss_of(kind.run, placed)))(parts)
        close(got, gradients(kind))
        for gradient, part in zip(got, parts, strict=True):
            if isinstance(part, jax.Array):
                assert jax.typeof(gradient).sharding.spec == jax.typeof(part).sharding.spec
