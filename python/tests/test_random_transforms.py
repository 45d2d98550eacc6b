"""gmm on random shards of random problems: its values, its gradients, and vmap over whatever is batched; of arrays and
of QuantizedTensors."""

import dataclasses
import functools

import jax
import ml_dtypes
import numpy as np
import oracle
from hypothesis import given, settings
from hypothesis import strategies as st
from quantized_formats import FLOATS as QUANTIZED_FLOATS
from quantized_formats import INTEGERS, dtype_of
from quantized_operands import close, codes, dense, tensor, values_and_magnitudes
from raggemm import GroupedTensor, QuantizedTensor, gmm

FLOATS = (np.float16, ml_dtypes.bfloat16, np.float32)
BATCH = 2


@st.composite
def shards(draw):
    """(lhs, rhs, group sizes, offset), each for a batch of problems of one shape; whether rhs is transposed; dtype."""
    groups, tail = draw(st.integers(1, 5)), draw(st.integers(0, 3))
    k, n, local = draw(st.integers(0, 9)), draw(st.integers(0, 9)), draw(st.integers(1, groups))
    of_one = st.lists(st.integers(0, 4), min_size=groups, max_size=groups)
    sizes = draw(st.lists(of_one, min_size=BATCH, max_size=BATCH))
    sizes = np.array(sizes, draw(st.sampled_from((np.int32, np.uint32))))
    offsets = draw(st.lists(st.integers(0, groups - local), min_size=BATCH, max_size=BATCH))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    lhs = rng.normal(size=(BATCH, int(sizes.sum(1).max()) + tail, k)).astype(draw(st.sampled_from(FLOATS)))
    transposed = draw(st.booleans())
    rhs = rng.normal(size=(BATCH, local, *((n, k) if transposed else (k, n)))).astype(draw(st.sampled_from(FLOATS)))
    return (lhs, rhs, sizes, np.array(offsets, np.int32)), transposed, draw(st.sampled_from(FLOATS))


def product(lhs, rhs, sizes, axes, offset, **options):
    """The oracle's, where sizes divide the first axis of lhs, and that of rhs where it has only two."""
    rhs = GroupedTensor(rhs, first_dims=sizes) if rhs.ndim == 2 else GroupedTensor(rhs)
    lhs = GroupedTensor(lhs, first_dims=sizes)
    return oracle.grouped_gemm(lhs, rhs, contracting_dims=axes, group_offset=offset, **options)


@settings(max_examples=25)
@given(shards(), st.sets(st.integers(0, 3)))
def test_values_gradients_and_batches(shard, batched):
    args, transposed, out_dtype = shard
    f = jax.jit(functools.partial(gmm_of_shard, transposed=transposed, out_dtype=out_dtype))
    lhs, rhs, sizes, offset = (x[0] for x in args)
    k_axis = 2 if transposed else 1
    out, pull_back = jax.vjp(lambda lhs, rhs: f(lhs, rhs, sizes, offset), lhs, rhs)
    product(lhs, rhs, sizes, ((1,), (k_axis,)), offset, preferred_element_type=out_dtype).check(out)
    dlhs, drhs = pull_back(out)
    cotangent = np.asarray(out)
    product(cotangent, rhs, sizes, ((1,), (3 - k_axis,)), offset, preferred_element_type=lhs.dtype).check(dlhs)
    left, right = (cotangent, lhs) if transposed else (lhs, cotangent)
    local = {"num_actual_groups": rhs.shape[0], "preferred_element_type": rhs.dtype}
    product(left, right, sizes, ((0,), (0,)), offset, **local).check(drhs)

    if batched:
        axes = tuple(0 if i in batched else None for i in range(4))
        got = jax.vmap(f, axes)(*(x if i in batched else x[0] for i, x in enumerate(args)))
        for b in range(BATCH):
            np.testing.assert_array_equal(got[b], f(*(x[b if i in batched else 0] for i, x in enumerate(args))))


def gmm_of_shard(lhs, rhs, sizes, offset, transposed, out_dtype):
    return gmm(lhs, rhs, sizes, out_dtype, group_offset=offset, transpose_rhs=transposed)


@st.composite
def quantized(draw, shape, groups):
    """A QuantizedTensor with factors of any shape that they may have; the first axis has no blocks."""
    name = draw(st.sampled_from((*INTEGERS, *(x for x in QUANTIZED_FLOATS if x != "float8_e5m2"))))

    def factor():
        if (kind := draw(st.sampled_from(("one", "groups", "blocks", "blocks")))) != "blocks":
            return () if kind == "one" else (groups,)
        divisors = ([d for d in (1, 2, 4, extent) if extent % d == 0] for extent in shape[1:])
        return draw(st.sampled_from((1, shape[0]))), *(draw(st.sampled_from(x)) for x in divisors)

    x = tensor(dtype_of(name), shape, factor(), draw(st.sampled_from((np.float32, ml_dtypes.bfloat16))))
    if draw(st.booleans()) and draw(st.booleans()):
        x = dataclasses.replace(x, scale=None)
    if name in INTEGERS and draw(st.booleans()):
        x = dataclasses.replace(x, zero_point=codes(dtype_of(name), factor(), 2))
    return x


@st.composite
def quantized_shards(draw):
    """(lhs, rhs, group sizes, offset), of which lhs, rhs or both are quantized; whether rhs is transposed."""
    groups = draw(st.integers(1, 4))
    sizes = np.array(draw(st.lists(st.integers(0, 4), min_size=groups, max_size=groups)), np.int32)
    local, m = draw(st.integers(1, groups)), int(sizes.sum()) + draw(st.integers(1, 3))
    k, n = draw(st.sampled_from((4, 12, 64))), draw(st.sampled_from((4, 8)))
    transposed, which = draw(st.booleans()), draw(st.sampled_from(("lhs", "rhs", "rhs", "both")))
    shapes = (m, k), (local, n, k) if transposed else (local, k, n)
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    operands = [
        draw(quantized(shape, local))
        if which in (side, "both")
        else rng.uniform(-1, 1, shape).astype(draw(st.sampled_from(FLOATS)))
        for side, shape in zip(("lhs", "rhs"), shapes, strict=True)
    ]
    return (*operands, sizes, np.int32(draw(st.integers(0, groups - local)))), transposed


def floats_of(x):
    """What has derivatives: an array, or a scale."""
    return x.scale if isinstance(x, QuantizedTensor) else x


def with_floats(x, floats):
    return dataclasses.replace(x, scale=floats) if isinstance(x, QuantizedTensor) else floats


def everything(f, lhs, rhs, tangents, ct):
    """out, its tangents along one operand at a time, and the same by the cotangents: <ct, tangent>."""

    def of(left, right):
        return f(with_floats(lhs, left), with_floats(rhs, right))

    floats = floats_of(lhs), floats_of(rhs)
    out, pull_back = jax.vjp(of, *floats)
    along, products = [], []
    for i, (cotangent, tangent) in enumerate(zip(pull_back(ct), tangents, strict=True)):
        if tangent is not None:
            along.append(
                jax.jvp(
                    lambda x, i=i: of(*(x if j == i else y for j, y in enumerate(floats))), (floats[i],), (tangent,)
                )[1]
            )
            products.append((cotangent.astype(np.float32) * tangent.astype(np.float32)).sum())
    return out, along, products


@settings(max_examples=12)
@given(quantized_shards(), st.data())
def test_quantized_operands(shard, data):
    """out is linear in an array and in a scale: what it is with another one in its place is its tangent."""
    (lhs, rhs, sizes, offset), transposed = shard
    axes, local = ((1,), (2 if transposed else 1,)), rhs.shape[0]
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    tangents = [None if x is None else rng.uniform(-1, 1, x.shape).astype(x.dtype) for x in map(floats_of, (lhs, rhs))]
    ct = rng.uniform(-1, 1, (lhs.shape[0], rhs.shape[1 if transposed else 2])).astype(np.float32)

    def run(lhs, rhs, sizes, offset):
        f = functools.partial(gmm_of_shard, sizes=sizes, offset=offset, transposed=transposed, out_dtype=np.float32)
        return everything(f, lhs, rhs, tangents, ct)

    out, along, products = jax.jit(run)(lhs, rhs, sizes, offset)
    row = np.repeat(np.arange(len(sizes)), sizes) - offset
    row = np.append(np.where((row >= 0) & (row < local), row, local), [local] * (len(ct) - len(row)))

    def wanted(left, right):
        left = dense(left, row) if isinstance(left, QuantizedTensor) else left
        right = dense(right) if isinstance(right, QuantizedTensor) else right
        return values_and_magnitudes(left, right, sizes, axes, group_offset=offset)

    is_float32 = [x.dtype == np.float32 for x in (lhs, rhs)]
    relative = 1e-5 if any(is_float32) else 2.0**-7  # elements and scales may be rounded to bfloat16
    close(out, *wanted(lhs, rhs), relative)
    replaced = [(with_floats(lhs, tangents[0]), rhs), (lhs, with_floats(rhs, tangents[1]))]
    replaced = [pair for pair, tangent in zip(replaced, tangents, strict=True) if tangent is not None]
    for got, product, pair in zip(along, products, replaced, strict=True):
        want, magnitude = wanted(*pair)
        close(got, want, magnitude, relative)
        close(product, (want * ct).sum(), (magnitude * np.abs(ct)).sum(), 2.0**-7)

    whole = [lhs, rhs, sizes, offset]
    many = jax.tree.map(lambda a: np.stack([a, a[::-1] if a.ndim else np.zeros_like(a)]), whole)
    batched = jax.tree.map(lambda _: data.draw(st.booleans()), whole)
    if any(jax.tree.leaves(batched)):
        in_axes = jax.tree.map(lambda b: 0 if b else None, batched)
        operands = jax.tree.map(lambda b, a, stack: stack if b else a, batched, whole, many)
        got = jax.jit(jax.vmap(run, in_axes))(*operands)
        for b in range(BATCH):
            one = jax.jit(run)(*jax.tree.map(lambda yes, a, b=b: a[b] if yes else a, batched, operands))
            np.testing.assert_array_equal(got[0][b], one[0])
            for x, y in zip(jax.tree.leaves(got[1:]), jax.tree.leaves(one[1:]), strict=True):
                np.testing.assert_allclose(x[b], y, rtol=0.01, atol=0.01 * np.abs(y).max())
