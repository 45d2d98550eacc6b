"""gmm on random shards of random problems: its values, its gradients, and vmap over whatever is batched; of arrays and
of QuantizedTensors."""

import functools

import jax
import ml_dtypes
import numpy as np
import oracle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from raggemm import GroupedTensor, gmm

pytestmark = pytest.mark.slow

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
