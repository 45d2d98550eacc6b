"""QuantizedTensors under JAX' transformations on one device: against float64, and against one call for each element."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import raggemm
from arrays import random
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from program_text import copies_of_weights, custom_calls
from quantized_operands import close, close_to_oracle, dense, tensor
from raggemm import GroupedTensor, QuantizedTensor, fake_quantize, gmm, grouped_gemm, tgmm

M, G, K, N, LAYERS = 12, 3, 32, 32, 3
SIZES = np.array([5, 0, 4], np.int32)
WHERE = np.repeat(np.arange(G), SIZES)
LHS = random(M, K)
same = np.testing.assert_array_equal
ALLOWED = [jax.export.DisabledSafetyCheck.custom_call("raggemm_grouped_gemm_v1")]
FORMATS = {
    "scales": (jnp.int8, (G, 2, N), False),
    "zeros": (jnp.uint4, (G, 1, N), True),
    "groups": (jnp.float8_e4m3fn, (G,), False),
    "one": (jnp.float4_e2m1fn, (), False),
}
formats = pytest.mark.parametrize("name", FORMATS)


def weights(name, seed=0):
    dtype, shape, zero = FORMATS[name]
    q = tensor(dtype, (G, K, N), shape, zero=zero)
    return q if not seed else QuantizedTensor(q.data[::-1], q.scale * np.float32(seed), q.zero_point)


def stacked(tensors):
    return jax.tree.map(lambda *xs: np.stack(xs), *tensors)


def product(x, w):
    return gmm(x, w, SIZES)


def close_to_one(got, want, relative=1e-5):
    """Two computations that may round otherwise."""
    want = np.asarray(want, np.float64)
    close(got, want, np.abs(want).max(initial=0), relative)


# export


def exported(f, *operands):
    """f after a journey through bytes."""
    made = jax.export.export(jax.jit(f), disabled_checks=ALLOWED)(*operands)
    return jax.export.deserialize(made.serialize()).call


@formats
def test_export(name):
    """The tensor is an argument, in its own type; so is a GroupedTensor of one."""
    w = weights(name)
    same(exported(product, LHS, w)(LHS, w), product(LHS, w))

    def gradients(x, w):
        return jax.grad(lambda x, s: product(x, QuantizedTensor(w.data, s, w.zero_point)).sum(), (0, 1))(x, w.scale)

    jax.tree.map(same, exported(gradients, LHS, w)(LHS, w), jax.jit(gradients)(LHS, w))
    if w.data.dtype == np.int8:
        rows = GroupedTensor(tensor(jnp.int8, (M, K), (M, 1)), first_dims=SIZES)
        both = functools.partial(grouped_gemm, contracting_dims=((1,), (1,)))
        same(exported(both, rows, w)(rows, w), both(rows, w))
        assert exported(lambda q: q, w)(w).scale.shape == w.scale.shape


def test_export_with_symbolic_shapes():
    w, m, g, k, n = weights("scales"), *jax.export.symbolic_shape("m, g, 2*k, n")
    shapes = QuantizedTensor(*(jax.ShapeDtypeStruct(s, d) for s, d in (((g, k, n), "int8"), ((g, 2, n), "float32"))))
    operands = jax.ShapeDtypeStruct((m, k), "float32"), shapes, jax.ShapeDtypeStruct((g,), "int32")
    made = jax.export.export(jax.jit(gmm), disabled_checks=ALLOWED)(*operands)
    same(made.call(LHS, w, SIZES), product(LHS, w))


# loops


@pytest.mark.parametrize("name, has_scale", [("scales", True), ("zeros", True), ("groups", True), ("zeros", False)])
def test_scan_over_layers(name, has_scale):
    """Each layer is what stacking got, a scale or zero point of None included; gradients of all scales come stacked."""
    layers = [weights(name, seed) for seed in range(LAYERS)]
    if not has_scale:
        layers = [QuantizedTensor(w.data, None, w.zero_point) for w in layers]
    many, largest = stacked(layers), max(np.abs(dense(w)).max() for w in layers)

    def layer(x, w):
        return jnp.tanh(product(x, w) / largest)

    @functools.partial(jax.jit, static_argnames="wrap")
    def scanned(x, many, wrap):
        return jax.lax.scan(wrap(lambda x, w: (layer(x, w), None)), x, many)[0]

    def looped(x, many):
        return functools.reduce(lambda x, i: layer(x, jax.tree.map(lambda a: a[i], many)), range(LAYERS), x)

    want, transpose = jax.vjp(lambda x, s: looped(x, QuantizedTensor(many.data, s, many.zero_point)), LHS, many.scale)
    for wrap in (lambda f: f, jax.checkpoint):
        got, back = jax.vjp(
            lambda x, s, wrap=wrap: scanned(x, QuantizedTensor(many.data, s, many.zero_point), wrap), LHS, many.scale
        )
        close_to_one(got, want)
        jax.tree.map(
            functools.partial(close_to_one, relative=1e-4), back(jnp.ones_like(want)), transpose(np.ones_like(want))
        )


def test_while_and_cond_carry_a_tensor():
    w = weights("zeros")
    doubled = QuantizedTensor(w.data, 8 * w.scale, w.zero_point)

    def body(_, q):
        return QuantizedTensor(q.data, 2 * q.scale, q.zero_point)

    close_to_one(product(LHS, jax.lax.fori_loop(0, 3, body, jax.tree.map(jnp.asarray, w))), product(LHS, doubled))
    got = jax.jit(lambda flag: product(LHS, jax.lax.cond(flag, lambda: w, lambda: doubled)))
    same(got(True), product(LHS, w))
    same(got(False), product(LHS, doubled))


def test_donated():
    w = jax.tree.map(jnp.array, weights("zeros"))
    c, want = jnp.zeros((M, N), jnp.float32), product(LHS, weights("zeros"))
    with pytest.warns(UserWarning, match="donated buffers were not usable"):
        out = jax.jit(lambda c, w: gmm(LHS, w, SIZES, existing_out=c), donate_argnums=(0, 1))(c, w)
    assert c.is_deleted()
    same(out, want)


# derivatives, against float64


def reference(x, scale, w):
    """The product in plain JAX of float64."""
    zero = 0 if w.zero_point is None else expanded(jnp.float64(w.zero_point), w.shape)
    values = (jnp.float64(np.asarray(w.data, np.float64)) - zero) * expanded(scale, w.shape)
    return jnp.einsum("mk,mkn->mn", x[: len(WHERE)], values[WHERE])


def expanded(factor, shape):
    if factor.ndim == 1:
        return factor[:, None, None]
    for axis in range(factor.ndim):
        factor = jnp.repeat(factor, shape[axis] // factor.shape[axis], axis)
    return factor


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


@pytest.mark.parametrize("name", ["scales", "zeros", "groups"])
def test_derivatives_of_rows_and_scales(name, x64):
    w = weights(name)
    x, s = LHS / 64, np.asarray(w.scale / np.abs(dense(w)).max(), np.float32)
    tangents = random(M, K, seed=1), s * random(*s.shape, seed=2)
    ours = jax.jit(lambda *a: derivatives(lambda x, s: product(x, QuantizedTensor(w.data, s, w.zero_point)), *a))
    got = ours(x, s, tangents)
    want = derivatives(lambda x, s: reference(x, s, w), *jax.tree.map(np.float64, (x, s, tangents)))
    for kind, values in want.items():
        for a, b in zip(jax.tree.leaves(got[kind]), jax.tree.leaves(values), strict=True):
            assert a.dtype == np.float32
            close_to_one(a[: len(b)], b, 1e-4)


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


def test_derivatives_of_quantized_rows(x64):
    rows, w = tensor(jnp.uint8, (M, K), (M, 2), zero=True), random(G, K, N)
    s = np.asarray(rows.scale / np.abs(dense(rows)).max(), np.float32)
    tangents = random(G, K, N, seed=1), s * random(*s.shape, seed=2)
    got = jax.jit(lambda *a: derivatives(lambda w, s: product(QuantizedTensor(rows.data, s, rows.zero_point), w), *a))(
        w, s, tangents
    )

    def of(w, s):
        x = (jnp.float64(rows.data) - expanded(jnp.float64(rows.zero_point), rows.shape)) * expanded(s, rows.shape)
        return jnp.einsum("mk,mkn->mn", x[: len(WHERE)], w[WHERE])

    want = derivatives(of, *jax.tree.map(np.float64, (w, s, tangents)))
    for kind, values in want.items():
        for a, b in zip(jax.tree.leaves(got[kind]), jax.tree.leaves(values), strict=True):
            close_to_one(a[: len(b)], b, 1e-4)


# vmap


def transposed(x, w):
    return grouped_gemm(GroupedTensor(x, last_dims=SIZES), w, contracting_dims=((0,), (1,)))


def columns(x, y):
    return tgmm(x, y, SIZES)


def uniform(x, w):
    return grouped_gemm(x, w, contracting_dims=((2,), (1,)))


BATCHED = {
    "rows": (product, LHS, weights("scales")),
    "zeros": (product, LHS, weights("zeros")),
    "groups": (product, LHS, weights("groups")),
    "both": (product, tensor(jnp.int8, (M, K), (M, 1), zero=True), weights("scales")),
    "both, one row": (product, tensor(jnp.int8, (M, K), (1, 2), zero=True), weights("groups")),
    "transposed": (transposed, tensor(jnp.int8, (K, M), (2, M), zero=True), weights("groups")),
    "transposed, one column": (transposed, tensor(jnp.int8, (K, M), (4, 1)), weights("groups")),
    "columns": (columns, tensor(jnp.int8, (K, M), (K, 1)), random(M, N)),
    "columns, blocks": (columns, tensor(jnp.uint8, (K, M), (4, M), zero=True), random(M, N)),
    "columns, one row": (columns, LHS.T, tensor(jnp.int8, (M, N), (1, N))),
    "uniform": (uniform, random(G, 4, K), weights("scales")),
    "uniform, groups": (uniform, tensor(jnp.int8, (G, 4, K), (G,)), weights("groups")),
    "uniform, both": (uniform, tensor(jnp.int8, (G, 4, K), (1, 2, 1)), weights("zeros")),
    "uniform, blocks": (uniform, tensor(jnp.uint8, (G, 4, K), (G, 1, 2), zero=True), weights("scales")),
}


def batch(x):
    """Three of x that differ in each part: elements, scales, zero points."""
    return jax.tree.map(lambda a: np.stack([a, a[::-1] if a.ndim else a, a]), x)


def batched_parts(x):
    """x or a part of it as vmap sees them: (a batch, in_axes, element i)."""
    many = batch(x)
    yield x, None, lambda i: x
    yield many, 0, lambda i: jax.tree.map(lambda a: a[i], many)
    if isinstance(x, QuantizedTensor):
        for part in ("data", "scale"):
            some = {name: getattr(many if name == part else x, name) for name in ("data", "scale", "zero_point")}
            axes = QuantizedTensor(**{name: 0 if name == part else None for name in some})
            yield (
                QuantizedTensor(**some),
                axes,
                lambda i, some=some, part=part: QuantizedTensor(**some | {part: some[part][i]}),
            )


@pytest.mark.parametrize("name", BATCHED)
def test_vmap_of_every_part(name):
    """Each combination has the bits of one call for each, and is one call."""
    f, *operands = BATCHED[name]
    one = jax.jit(f)
    # Problems that are summed have their scales in one array, where one of all rows becomes one of each.
    compare = close_to_one if name == "columns, one row" else same
    for left, left_axes, left_part in batched_parts(operands[0]):
        for right, right_axes, right_part in batched_parts(operands[1]):
            if (left_axes, right_axes) != (0, 0) and (left_axes is None) == (right_axes is None):
                continue
            run = jax.jit(jax.vmap(f, (left_axes, right_axes)))
            for i, got in enumerate(run(left, right)):
                compare(got, one(left_part(i), right_part(i)))


@pytest.mark.parametrize("name", ["rows", "uniform", "uniform, blocks"])
def test_vmap_of_rows_moves_no_weights(name):
    f, x, w = BATCHED[name]
    lowered = jax.jit(jax.vmap(f, (0, None))).lower(batch(x), w)
    assert custom_calls(lowered) == 1
    assert not copies_of_weights(lowered, G * K * N)


def test_gradients_under_vmap():
    x, w, ct = batch(LHS), weights("zeros"), random(M, N)

    def gradients(x, s, w):
        return jax.grad(lambda x, s: (product(x, QuantizedTensor(w.data, s, w.zero_point)) * ct).sum(), (0, 1))(x, s)

    scales = np.stack([w.scale, 2 * w.scale, -w.scale])
    for axes in ((0, None), (None, 0), (0, 0)):
        got = jax.vmap(lambda x, s: gradients(x, s, w), axes)(
            x if axes[0] == 0 else LHS, scales if axes[1] == 0 else w.scale
        )
        for i in range(3):
            want = gradients(x[i] if axes[0] == 0 else LHS, scales[i] if axes[1] == 0 else w.scale, w)
            jax.tree.map(lambda a, b, i=i: close_to_one(a[i], b), got, want)


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
