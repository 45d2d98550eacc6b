"""QuantizedTensors over several devices: under plain jit with the partitioning rule, shard_map, explicit meshes."""

import functools
import zlib

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import raggemm
from arrays import random
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from program_text import collectives as collectives_of
from quantized_formats import FLOATS, INTEGERS, dtype_of
from quantized_operands import close_to_oracle, dense, tensor
from raggemm import QuantizedTensor, gmm, grouped_gemm, tgmm
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


@pytest.mark.parametrize("shape", SCALES, ids=str)
def test_factors_are_divided_with_their_weights(shape, partitioning):
    for w in (weights(shape), weights(shape, jnp.uint4, zero=True)):
        for axis, out_spec, expected in (("n", P(None, "x"), set()), ("k", P(), {"all-reduce"})):
            out, collectives = compiled(product, LHS, put(w, ALONG[axis]))
            assert (collectives, out.sharding.spec) == (expected, out_spec)
            close_to_oracle(out, LHS, dense(w), SIZES)
            if axis == "n":
                np.testing.assert_array_equal(out, of_one_device(product, LHS, w))


def test_every_format(partitioning):
    """Also int2, which XLA on CPU cannot gather."""
    for name in (*INTEGERS, *FLOATS):
        w = tensor(dtype_of(name), (G, K, N), (G, 4, N))
        out, collectives = compiled(product, LHS, put(w, ALONG["n"]))
        assert collectives == set()
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


def test_factors_that_lie_elsewhere_than_their_data(partitioning):
    w = weights((G, 4, N))
    for data, scale in ((ALONG["n"], P()), (P(), ALONG["n"]), (ALONG["n"], ALONG["k"])):
        placed = QuantizedTensor(put(w.data, data), put(w.scale, scale))
        out, _ = compiled(product, LHS, placed)
        assert out.sharding.spec == P(None, "x")
        np.testing.assert_array_equal(out, of_one_device(product, LHS, w))


def test_both_operands_and_two_axes(partitioning):
    """Of rows with blocks of 16 along K, and weights with blocks of 32: half of both on each device."""
    rows, w = tensor(jnp.int8, (M, K), (M, 8)), weights((G, 4, N))
    placed = put(rows, P(None, "x"), mesh(2, 2)), put(w, P(None, "x", "y"), mesh(2, 2))
    out, collectives = compiled(product, *placed)
    assert (collectives, out.sharding.spec) == ({"all-reduce"}, P(None, "y"))
    close_to_oracle(out, dense(rows), dense(w), SIZES, relative=2.0**-7)  # elements of both are rounded to bfloat16
    rows = tensor(jnp.int8, (M, K), (M, 4))
    out, collectives = compiled(
        lambda x, y: tgmm(QuantizedTensor(x.data.T, x.scale.T), y, SIZES), put(rows, P(None, "x")), LHS
    )
    assert (collectives, out.sharding.spec) == (set(), P(None, "x"))
    close_to_oracle(out, dense(rows), LHS, SIZES, ((0,), (0,)), num_actual_groups=G)


@pytest.mark.parametrize("shape", [(), (G,), (G, 1, N), (1, 1, N), (G, 4, 8)], ids=str)
def test_groups_of_a_uniform_call(shape, partitioning):
    x, w = random(G, 5, K), weights(shape)

    def uniform(x, w):
        return grouped_gemm(x, w, contracting_dims=((2,), (1,)))

    out, collectives = compiled(uniform, x, put(w, P("x")))
    assert (collectives, out.sharding.spec) == (set(), P("x"))
    np.testing.assert_array_equal(out, of_one_device(uniform, x, w))


def test_gradients_of_divided_weights(partitioning):
    w, ct = weights((G, 4, N)), random(M, N)

    def gradients(x, scale, data):
        return jax.grad(lambda x, s: (product(x, QuantizedTensor(data, s)) * ct).sum(), (0, 1))(x, scale)

    placed = put(w, ALONG["n"])
    (dx, dscale), collectives = compiled(gradients, LHS, placed.scale, placed.data)
    assert collectives == {"all-reduce"}  # of the gradient of the rows
    assert dscale.sharding.spec == ALONG["n"]
    close_to_oracle(dx, ct, dense(w), SIZES, ((1,), (2,)))
    want = of_one_device(gradients, LHS, w.scale, w.data)[1]
    np.testing.assert_allclose(dscale, want, rtol=1e-5, atol=1e-5 * np.abs(want).max())


def somewhere(x, rng):
    """Each array of x sharded along random axes of two, where they divide it."""

    def place(a):
        spec = [None] * a.ndim
        for name in ("x", "y"):
            axes = [axis for axis in range(a.ndim) if a.shape[axis] % 2 == 0 and spec[axis] is None]
            if axes and rng.random() < 0.8:
                spec[rng.choice(axes)] = name
        return jax.device_put(a, NamedSharding(mesh(2, 2), P(*spec)))

    return jax.tree.map(place, x)


def uniform(x, w):
    return grouped_gemm(x, w, contracting_dims=((1,), (2,)))


def columns(x, y):
    return tgmm(x, y, SIZES)


EVERYWHERE = {
    "rows": (product, lambda s: (LHS, weights(s)), SCALES),
    "both": (product, lambda s: (tensor(jnp.int8, (M, K), s), weights((G, 4, N))), [(M, 1), (M, 8), (), (G,), (1, K)]),
    "columns": (columns, lambda s: (tensor(jnp.int8, (K, M), s), LHS), [(1, M), (4, M), (), (G,), (4, 1)]),
    "uniform": (
        uniform,
        lambda s: (tensor(jnp.int4, (G, K, 6), s), random(G, N, K)),
        [(G, 4, 6), (G, 1, 2), (1, 2, 3)],
    ),
}


@pytest.mark.parametrize("batched", [(), (0,), (1,), (0, 1)], ids=str)
@pytest.mark.parametrize("name", EVERYWHERE)
def test_wherever_operands_lie(name, batched, partitioning):
    f, make, shapes = EVERYWHERE[name]
    rng = np.random.default_rng(zlib.crc32(f"{name}{batched}".encode()))
    operands = make(shapes[rng.integers(len(shapes))])
    want = np.asarray(f(*operands))
    axes = tuple(0 if i in batched else None for i in range(2))
    stacked = [jax.tree.map(lambda a: np.stack([a] * 4), x) if i in batched else x for i, x in enumerate(operands)]
    placed = [somewhere(x, rng) for x in stacked]
    got = jax.jit(jax.vmap(f, axes) if batched else f)(*placed)
    for part in got if batched else [got]:
        np.testing.assert_allclose(part, want, rtol=1e-5, atol=1e-6 * np.abs(want).max())


# shard_map


def specs_of(w, spec):
    """in_specs of a QuantizedTensor: those of data and of its factors, replicated along axes of one value."""

    def one(a):
        if a.ndim != w.ndim:
            return P(*spec[:1]) if a.ndim else P()
        return P(*[name if extent != 1 else None for name, extent in zip(spec, a.shape, strict=False)])

    return jax.tree.map(one, w)


@pytest.mark.parametrize(
    "shape, check_vma",
    [((), True), ((G,), True), ((G, 1, N), False), ((1, 1, N), True), ((G, 4, 8), True)],
    ids=str,
)
def test_shard_map_over_experts_columns_and_rows(shape, check_vma):
    w, ct = weights(shape, jnp.uint4, zero=True), random(M, N)
    shard_map = functools.partial(jax.shard_map, mesh=mesh(), check_vma=check_vma)

    def experts(x, w):
        offset = jax.lax.axis_index("x")
        return jax.lax.psum(gmm(x, w, SIZES, group_offset=offset), "x")

    over_experts = shard_map(experts, in_specs=(P(), specs_of(w, ("x",))), out_specs=P())
    spec = specs_of(w, (None, None, "x"))
    spec = jax.tree.map(lambda a, s: s if a.ndim == 3 else P(), w, spec)
    over_columns = shard_map(product, in_specs=(P(), spec), out_specs=P(None, "x"))
    sizes = np.array([[2, 0, 1, 0], [0, 3, 0, 0], [0, 0, 0, 1], [1, 1, 1, 0]], np.int32)
    rows = shard_map(lambda x, w, s: gmm(x, w, s[0]), in_specs=(P("x"), P(), P("x")), out_specs=P("x"))

    def whole(x, w):
        return jnp.concatenate([gmm(a, w, s) for a, s in zip(jnp.split(x, 4), sizes, strict=True)])

    for f, one in ((over_experts, product), (over_columns, product), (lambda x, w: rows(x, w, sizes), whole)):

        def gradients(x, scale, f=f):
            return jax.grad(lambda x, s: (f(x, QuantizedTensor(w.data, s, w.zero_point)) * ct).sum(), (0, 1))(x, scale)

        np.testing.assert_array_equal(jax.jit(f)(LHS, w), one(LHS, w))
        want = gradients(LHS, w.scale, one)
        for x, y in zip(jax.jit(gradients)(LHS, w.scale), want, strict=True):
            np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-5 * np.abs(y).max())


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


# explicit meshes


@pytest.mark.parametrize("spec", ALONG.values(), ids=ALONG)
def test_quantize_on_an_explicit_mesh(spec):
    """One scale for each column stays divided; blocks are gathered."""
    w, explicit = random(G, K, N), mesh(kind=AxisType.Explicit)

    def faked(w, options):
        return raggemm.fake_quantize(w, jnp.int8, zero_point=True, **options)

    for options, is_divided in (({"axes": 1}, True), ({"axes": 0, "block": (1, 32)}, False)):
        want = faked(w, options)
        with jax.set_mesh(explicit):
            placed = put(w, spec, explicit)
            q = raggemm.quantize(placed, jnp.int8, zero_point=True, **options)
            gradient = jax.jit(jax.grad(lambda w, o=options: (faked(w, o) ** 2).sum()))(placed)
        assert jax.typeof(q.data).sharding.is_fully_replicated != is_divided
        np.testing.assert_allclose(gradient, 2 * want, rtol=1e-6)
        assert jax.typeof(gradient).sharding.spec == jax.typeof(placed).sharding.spec
