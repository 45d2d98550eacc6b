"""Tests int8 and uint8 operands with int32 results, exact modulo 2^32 as in jax.lax."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import raggemm
from raggemm import GroupedTensor
from raggemm.compat import lax as compat_lax

G, M, K, N = 3, 13, 37, 21
SIZES = np.array([4, 0, 7], np.int32)
PAIRS = list(itertools.product((np.int8, np.uint8), repeat=2))
IDS = ["-".join(t.__name__ for t in pair) for pair in PAIRS]
S32 = {"preferred_element_type": jnp.int32}


def random_integers(dtype, *shape, seed=0):
    limits = np.iinfo(dtype)
    return np.random.default_rng(seed).integers(limits.min, limits.max, shape, dtype, endpoint=True)


def to_int64(x):
    return np.asarray(x).astype(np.int64)


def wrap_to_int32(x):
    return x.astype(np.int32)


def group_rows(sizes):
    ends = np.cumsum(sizes)
    return [slice(end - size, end) for end, size in zip(ends, sizes, strict=True)]


def expected(lhs, rhs, sizes=SIZES, first_group=0):
    out = np.zeros((len(lhs), rhs.shape[2]), np.int64)
    for g, rows in list(enumerate(group_rows(sizes)))[first_group : first_group + len(rhs)]:
        out[rows] = to_int64(lhs[rows]) @ to_int64(rhs[g - first_group])
    return wrap_to_int32(out)


@pytest.mark.parametrize(("lhs_dtype", "rhs_dtype"), PAIRS, ids=IDS)
@pytest.mark.parametrize("function", [raggemm.ragged_dot, raggemm.gmm, compat_lax.ragged_dot])
@pytest.mark.parametrize("use_jit", [False, True])
def test_forward(function, lhs_dtype, rhs_dtype, use_jit):
    lhs, rhs = random_integers(lhs_dtype, M, K), random_integers(rhs_dtype, G, K, N, seed=1)

    def call(*x):
        return function(*x, **S32)

    got = (jax.jit(call) if use_jit else call)(lhs, rhs, SIZES)
    assert got.dtype == jnp.int32
    np.testing.assert_array_equal(got, expected(lhs, rhs))


@pytest.mark.parametrize(("lhs_dtype", "rhs_dtype"), PAIRS, ids=IDS)
def test_tgmm(lhs_dtype, rhs_dtype):
    lhs, rhs = random_integers(lhs_dtype, K, M), random_integers(rhs_dtype, M, N, seed=1)
    before = np.arange(G * K * N, dtype=np.int32).reshape(G, K, N)
    want = wrap_to_int32(np.stack([to_int64(lhs[:, rows]) @ to_int64(rhs[rows]) for rows in group_rows(SIZES)]))
    np.testing.assert_array_equal(raggemm.tgmm(lhs, rhs, SIZES, **S32), want)
    np.testing.assert_array_equal(raggemm.tgmm(lhs, rhs, SIZES, existing_out=before, **S32), want + before)


@pytest.mark.parametrize(("lhs_dtype", "rhs_dtype"), PAIRS, ids=IDS)
def test_sums_wrap_around(lhs_dtype, rhs_dtype):
    k = 70_001
    for left, right in itertools.product(("min", "max"), repeat=2):
        a, b = getattr(np.iinfo(lhs_dtype), left), getattr(np.iinfo(rhs_dtype), right)
        lhs, rhs = np.full((2, k), a, lhs_dtype), np.full((1, k, 3), b, rhs_dtype)
        got = raggemm.ragged_dot(lhs, rhs, np.array([2], np.int32), **S32)
        np.testing.assert_array_equal(got, np.full((2, 3), wrap_to_int32(np.array(int(a) * int(b) * k))))


def test_optional_operands_wrap_around():
    lhs, rhs = random_integers(np.int8, M, K), random_integers(np.int8, G, K, N, seed=1)
    numbers = np.random.default_rng(2)
    c = numbers.integers(-(2**31), 2**31, (M, N)).astype(np.int32)
    bias = numbers.integers(-(2**31), 2**31, (G, N)).astype(np.int32)
    alpha, beta = (numbers.integers(-(2**31), 2**31, G).astype(np.int32) for _ in range(2))
    got = raggemm.grouped_gemm(
        GroupedTensor(lhs, first_dims=SIZES),
        rhs,
        contracting_dims=((1,), (1,)),
        c=c,
        bias=bias,
        alpha=alpha,
        beta=beta,
        **S32,
    )
    want = c.copy()
    for g, rows in enumerate(group_rows(SIZES)):
        product = wrap_to_int32(to_int64(lhs[rows]) @ to_int64(rhs[g]))
        with np.errstate(over="ignore"):
            want[rows] = alpha[g] * product + beta[g] * c[rows] + bias[g]
    np.testing.assert_array_equal(got, want)


LHS, RHS = random_integers(np.int8, M, K), random_integers(np.uint8, G, K, N)
DTYPES = r"with lhs of int8 and rhs of uint8\b"


def gemm(lhs=LHS, **options):
    lhs = GroupedTensor(lhs, first_dims=SIZES)
    return raggemm.grouped_gemm(lhs, RHS, contracting_dims=((1,), (1,)), **options)


ERRORS = {
    "gmm's default": (lambda: raggemm.gmm(LHS, RHS, SIZES), f"dtype is float32, must be int32 {DTYPES}"),
    "tgmm's default": (lambda: raggemm.tgmm(LHS.T, RHS[0, :M], SIZES), f"dtype is float32, must be int32 {DTYPES}"),
    "ragged_dot's default": (lambda: raggemm.ragged_dot(LHS, RHS, SIZES), f"must be int32 {DTYPES}"),
    "jax.lax's default": (lambda: compat_lax.ragged_dot(LHS, RHS, SIZES), f"dtype is int8, must be int32 {DTYPES}"),
    "grouped_gemm's default": (gemm, f"must be int32 {DTYPES}"),
    "uint32": (lambda: gemm(preferred_element_type=jnp.uint32), f"dtype is uint32, must be int32 {DTYPES}"),
    "float rhs": (lambda: raggemm.ragged_dot(LHS, RHS.astype(np.float32), SIZES, **S32),
        r"^rhs: dtype is float32, must be int8 or uint8 with lhs of int8 and rhs of float32\b"),
    "float lhs": (lambda: gemm(LHS.astype(np.float64), **S32),
        "^lhs: dtype is float(32|64), must be int8 or uint8"),
    "int32 result of floats": (lambda: raggemm.gmm(LHS.astype(np.float32), RHS.astype(np.float32), SIZES, **S32),
        "^preferred_element_type: dtype is int32, must be float16, bfloat16, float32 or float64 with"),
    "c": (lambda: gemm(c=np.zeros((M, N), np.float32), **S32), "^c: dtype is float32, must be out's int32"),
    "bias": (lambda: gemm(bias=np.zeros((G, N), np.float32), **S32), r"^bias: dtype is float32, must be int32\b"),
    "alpha": (lambda: gemm(alpha=0.5, **S32), r"^alpha: dtype is float32, must be int32\b"),
    "beta": (lambda: gemm(c=np.zeros((M, N), np.int32), beta=np.ones(G, np.float32), **S32),
        r"^beta: dtype is float32, must be int32\b"),
}  # fmt: skip


@pytest.mark.parametrize("name", ERRORS)
def test_errors_while_tracing(name):
    call, message = ERRORS[name]
    with pytest.raises(TypeError, match=message):
        jax.eval_shape(call)


def test_a_wrong_size_raises_even_with_on_error_nan():
    """Results are int32, which has no NaN."""
    call = jax.jit(lambda *x: raggemm.ragged_dot(*x, **S32))
    for on_error in ("raise", "nan"):
        with raggemm.options(on_error=on_error), pytest.raises(Exception, match="group_sizes"):
            jax.block_until_ready(call(LHS, RHS, np.array([4, -1, 3], np.int32)))
