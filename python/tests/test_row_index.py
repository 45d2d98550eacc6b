import jax
import jax.numpy as jnp
import numpy as np
import pytest
from arrays import random
from program_text import custom_calls
from raggemm import GroupedTensor, QuantizedTensor, grouped_gemm

SIZES = np.array([3, 0, 2, 4], np.int32)
T, M, K, N, G = 5, 11, 8, 6, 4
FORWARD = {"contracting_dims": ((1,), (1,))}
X, RHS, BIAS = random(T, K), random(G, K, N, seed=1), random(G, N, seed=2)
INDEX = np.array([4, 0, 0, 1, 4, 2, 2, 2, 0, -7, 99], np.int32)  # The last two rows are in no group.


def indexed(x, rhs, index=INDEX, sizes=SIZES, **options):
    return grouped_gemm(GroupedTensor(x, sizes), rhs, **FORWARD, row_index=index, **options)


def gathered(x, rhs, index=INDEX, sizes=SIZES, **options):
    """Computes the product without row_index."""
    return grouped_gemm(GroupedTensor(x[np.clip(index, 0, len(x) - 1)], sizes), rhs, **FORWARD, **options)


@pytest.mark.parametrize("dtype", [np.float32, jnp.bfloat16, np.float16, np.float64])
@pytest.mark.parametrize("index_dtype", [np.int32, np.int64, np.uint32])
def test_results_have_the_bits_of_gathered_rows(dtype, index_dtype, x64):
    x, rhs, index = X.astype(dtype), RHS.astype(dtype), INDEX.astype(index_dtype)
    got = indexed(x, rhs, index, bias=BIAS)
    assert got.shape == (M, N)
    np.testing.assert_array_equal(got, gathered(x, rhs, bias=BIAS))
    np.testing.assert_array_equal(jax.jit(indexed)(x, rhs, index, bias=BIAS), got)


def test_with_other_options():
    c, gate, offset = random(M, N, seed=3), random(M, N, seed=4), np.array([1], np.int32)
    options = {"c": c, "gate": gate, "activation": "silu", "group_offset": offset}
    np.testing.assert_array_equal(indexed(X, RHS[:2], **options), gathered(X, RHS[:2], **options))
    tensors = random(T, 2, K // 2), random(G, 2, K // 2, 3, 2, seed=1)
    lhs = GroupedTensor(tensors[0], SIZES)
    got = grouped_gemm(lhs, tensors[1], contracting_dims=((1, 2), (1, 2)), row_index=INDEX)
    assert got.shape == (M, 3, 2)
    np.testing.assert_array_equal(got.reshape(M, N), indexed(tensors[0].reshape(T, K), tensors[1].reshape(G, K, N)))
    weights = QuantizedTensor(np.arange(-96, 96, dtype=np.int8).reshape(G, K, N), np.full((G, 1, N), 0.01, np.float32))
    np.testing.assert_array_equal(indexed(X, weights), gathered(X, weights))
    long = random(T, 700), random(G, 700, N)
    np.testing.assert_array_equal(indexed(*long), gathered(*long))


# Derivatives.


def test_the_gradient_of_rows_is_summed_in_float32():
    """The sum of 256 and seven ones is rounded once. bfloat16 additions would keep 256."""
    weights = np.array([256, 1, 1, 1, 1, 1, 1, 1], jnp.bfloat16)[:, None, None]
    sizes, index = np.ones(8, np.int32), np.zeros(8, np.int32)
    options = {"preferred_element_type": np.float32}
    x = np.ones((1, 1), jnp.bfloat16)
    gradient = jax.grad(lambda x: indexed(x, weights, index, sizes, **options).sum())(x)
    assert gradient.dtype == jnp.bfloat16 and gradient == jnp.bfloat16(263)


def test_nan_stays_in_its_rows():
    x = X.copy()
    x[3] = np.nan  # No row of out uses row 3 of x.
    x[1] = np.nan  # Row 3 of out, in group 2, uses row 1 of x.
    out = np.asarray(indexed(x, RHS))
    assert np.isnan(out[3]).all() and np.isfinite(np.delete(out, 3, 0)).all()
    d_x, d_rhs = jax.grad(lambda *args: indexed(*args).sum(), (0, 1))(x, RHS)
    assert np.isfinite(d_x).all() and not np.asarray(d_x)[3].any()
    assert np.isnan(d_rhs[2]).all() and np.isfinite(np.delete(d_rhs, 2, 0)).all()


# Transforms.


def test_one_custom_call_without_a_gather():
    lowered = jax.jit(indexed).lower(X, RHS, INDEX)
    assert custom_calls(lowered) == 1
    assert " gather(" not in lowered.compile().as_text()


# Errors.


def check_run_time_error(message, *args, **options):
    with pytest.raises((ValueError, jax.errors.JaxRuntimeError), match=message):
        jax.block_until_ready(jax.jit(indexed)(*args, **options))


@pytest.mark.parametrize("value", [-1, T, 2**31 - 1, -(2**31)])
def test_wrong_indices(value):
    index = INDEX.copy()
    index[4] = value
    check_run_time_error(rf"row_index: value {value} at index 4, must be in \[0, 5\), the rows of lhs", X, RHS, index)


@pytest.mark.parametrize("value", [-1, T])
@pytest.mark.parametrize("argnum", [0, 1], ids=["lhs", "rhs"])
def test_wrong_indices_of_gradients(argnum, value):
    gradient = jax.jit(jax.grad(lambda x, w, index: indexed(x, w, index).sum(), argnum))
    index = INDEX.copy()
    index[[4, -1]] = value
    with pytest.raises((ValueError, jax.errors.JaxRuntimeError), match=f"row_index: value {value} at index 4, must be"):
        jax.block_until_ready(gradient(X, RHS, index))
    index[4] = INDEX[4]
    np.testing.assert_array_equal(gradient(X, RHS, index), gradient(X, RHS, INDEX))


ERRORS = [
    (GroupedTensor(X, SIZES), RHS, ((1,), (1,)), INDEX.astype(np.float32), TypeError, "row_index: dtype is float32"),
    (GroupedTensor(X, SIZES), RHS, ((1,), (1,)), INDEX[None], ValueError, r"row_index: shape is \(1, 11\), must be"),
    (GroupedTensor(X.T, None, SIZES), RHS, ((0,), (1,)), INDEX, ValueError, "row_index is for ragged M, with"),
    (random(G, T, K), RHS, ((2,), (1,)), INDEX, ValueError, "row_index is for ragged M"),
    (GroupedTensor(X.T, SIZES), GroupedTensor(random(K, N), SIZES), ((0,), (0,)), INDEX, ValueError,
     "row_index is for ragged M"),
    (GroupedTensor(QuantizedTensor(X.astype(np.int8), np.float32(1)), SIZES), RHS, ((1,), (1,)), INDEX, TypeError,
     "row_index is for rows of floats, but lhs has int8"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("lhs", "rhs", "axes", "index", "error", "message"),
    ERRORS,
    ids=["floats", "shape", "transposed", "uniform", "ragged K", "quantized"],
)
def test_errors(lhs, rhs, axes, index, error, message):
    with pytest.raises(error, match=f"^{message}"):
        grouped_gemm(lhs, rhs, contracting_dims=axes, row_index=index)


def test_sizes_beyond_the_indices():
    check_run_time_error(
        r"lhs.first_dims: group 3 has size 4 and starts at 5, which exceeds the extent 8 of row_index",
        X,
        RHS,
        INDEX[:8] * 0,
    )
