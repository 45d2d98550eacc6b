"""Tests that wrong shapes and dtypes raise an error when tracing, and wrong values at run time."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from raggemm import GroupedTensor, gmm, grouped_gemm, ragged_dot, tgmm

SIZES = np.array([2, 3], np.int32)
LHS, RHS, OTHER = np.ones((6, 4), np.float32), np.ones((2, 4, 3), np.float32), np.ones((6, 3), np.float32)
ROWS, COLS = GroupedTensor(LHS, first_dims=SIZES), GroupedTensor(LHS.T, last_dims=SIZES)
PACKED = GroupedTensor(np.ones(13, np.float32), SIZES, SIZES, "PACKED")
FORWARD = {"contracting_dims": ((1,), (1,))}
WGRAD = {"contracting_dims": ((0,), (0,))}
C = np.ones((6, 3), np.float32)


def forward(lhs=ROWS, rhs=RHS, **options):
    return grouped_gemm(lhs, rhs, **(FORWARD | options))


def wgrad(**options):
    return grouped_gemm(ROWS, GroupedTensor(OTHER, first_dims=SIZES), **(WGRAD | options))


def uniform(lhs, rhs, **options):
    return grouped_gemm(lhs, rhs, **({"contracting_dims": ((2,), (1,))} | options))


def all_ragged(lhs=PACKED, rhs=PACKED, **options):
    return grouped_gemm(lhs, rhs, contracting_dims=((1,), (0,)), **options)


TRACING = [
    # Dtypes.
    (lambda: forward(rhs=RHS.astype(np.int32)), TypeError, "rhs: dtype is int32, must be float16"),
    (lambda: gmm(LHS.astype(complex), RHS, SIZES), TypeError, "lhs: dtype is complex64"),
    (lambda: gmm(LHS, RHS, SIZES.astype(np.float32)), TypeError, "group_sizes: dtype is float32, must be int32"),
    (lambda: gmm(LHS, RHS, SIZES.astype(np.int16)), TypeError, "group_sizes: dtype is int16"),
    (lambda: gmm(LHS, RHS, SIZES.astype(np.uint64)), TypeError, "group_sizes: dtype is uint64"),
    (lambda: gmm(LHS, RHS, np.array([2, 2**32 + 3])), ValueError, "group_sizes: value 4294967299 at index 1 exceeds"),
    (lambda: gmm(LHS, RHS, [2, -(2**40)]), ValueError, "group_sizes: value -1099511627776 at index 1 exceeds"),
    (lambda: gmm(LHS, RHS, SIZES, group_offset=2**32), ValueError, "group_offset: value 4294967296 at index 0"),
    (lambda: forward(alpha=1j), TypeError, "alpha: dtype is complex64"),
    (lambda: gmm(LHS, RHS, SIZES, np.int32), TypeError, "preferred_element_type: dtype is int32"),
    (lambda: gmm(LHS, RHS, SIZES, group_offset=1.0), TypeError, "group_offset: dtype is float64"),
    (lambda: ragged_dot(LHS, RHS.astype(np.int8), SIZES), TypeError, "lhs: dtype is float32, must be int8 or uint8"),
    (lambda: forward(c=C.astype(np.float16)), TypeError, "c: dtype is float16, must be out's float32"),
    (lambda: forward(alpha=np.ones(2, np.int32)), TypeError, "alpha: dtype is int32"),
    (lambda: forward(c=C, beta=False), TypeError, "beta: dtype is bool"),
    (lambda: forward(bias=np.ones((2, 3), np.int32)), TypeError, "bias: dtype is int32"),
    (lambda: forward(lhs=GroupedTensor(LHS, first_dims=LHS[0])), TypeError, "lhs.first_dims: dtype is float32"),
    # A wrong dtype of existing_out is a ValueError, as in megablox.
    (lambda: gmm(LHS, RHS, SIZES, existing_out=C.astype(np.float16)), ValueError,
     "existing_out: dtype is float16, must be preferred_element_type float32"),
    (lambda: tgmm(LHS.T, OTHER, SIZES, np.float16, existing_out=RHS), ValueError, "existing_out: dtype is float32"),
    # Shapes.
    (lambda: gmm(LHS[0], RHS, SIZES), ValueError, r"lhs: shape is \(4,\), must have 2 axes"),
    (lambda: gmm(LHS, RHS[0], SIZES), ValueError, r"rhs: shape is \(4, 3\), must have 3 axes"),
    (lambda: gmm(LHS, RHS, SIZES[None]), ValueError, r"group_sizes: shape is \(1, 2\), must have 1 axis"),
    (lambda: gmm(LHS, RHS, SIZES, transpose_rhs=True), ValueError, "contracted, but differ: 4 and 3"),
    (lambda: gmm(LHS, RHS, SIZES[:1]), ValueError, "group axis of rhs has 2 groups, more than the 1 of group_sizes"),
    (lambda: tgmm(LHS, OTHER, SIZES), ValueError, "contracted, but differ: 4 and 6"),
    (lambda: gmm(LHS, RHS, SIZES, existing_out=C[1:]), ValueError, r"^existing_out: shape is \(5, 3\), must be"),
    (lambda: forward(c=C[1:]), ValueError, r"^c: shape is \(5, 3\), must be out's \(6, 3\)"),
    (lambda: gmm(LHS, RHS, SIZES, group_offset=SIZES), ValueError, r"group_offset: shape is \(2,\), must be \(\) or"),
    (lambda: forward(bias=np.ones((2, 4), np.float32)), ValueError, r"bias: shape is \(2, 4\), must be \(2, 3\)"),
    (lambda: forward(alpha=np.ones(3, np.float32)), ValueError, r"alpha: shape is \(3,\), must be \(\) or \(2,\)"),
    (lambda: forward(rhs=RHS[:, 1:]), ValueError, r"lhs contracts \(4,\) .*but rhs contracts \(3,\)"),
    (
        lambda: forward(
            lhs=GroupedTensor(np.ones((6, 2, 3)), SIZES), rhs=np.ones((2, 3, 2, 5)), contracting_dims=((1, 2), (1, 2))
        ),
        ValueError,
        r"lhs contracts \(2, 3\) .*but rhs contracts \(3, 2\)",
    ),
    (lambda: forward(lhs=GroupedTensor(LHS, first_dims=SIZES[None])), ValueError, r"lhs.first_dims: shape is \(1, 2\)"),
    (lambda: uniform(RHS, RHS[:1]), ValueError, "group axis of rhs has 1 groups, but the group axis of lhs has 2"),
    (lambda: grouped_gemm(ROWS, GroupedTensor(OTHER, first_dims=SIZES[:1]), **WGRAD), ValueError,
     "rhs.first_dims has 1 groups, but lhs.first_dims has 2"),
    (lambda: gmm(LHS, RHS[:1], SIZES), ValueError,
     "^the group axis of rhs has 1 groups, but group_sizes has 2: the two must be equal, unless group_offset names"),
    (lambda: forward(rhs=RHS[:1]), ValueError, "of rhs has 1 groups, but lhs.first_dims has 2: the two must be"),
    (lambda: wgrad(num_actual_groups=1), ValueError, "num_actual_groups is 1, but lhs.first_dims has 2: the two"),
    (lambda: tgmm(LHS.T, OTHER, SIZES, num_actual_groups=0), ValueError, "is 0, but group_sizes has 2: the two must"),
    # ragged_dot raises TypeError for wrong shapes and numbers of groups, as jax.lax does.
    (lambda: ragged_dot(LHS[0], RHS, SIZES), TypeError, "lhs: shape is"),
    (lambda: ragged_dot(LHS, RHS[:, 1:], SIZES), TypeError, "contracted, but differ: 4 and 3"),
    (lambda: ragged_dot(LHS, RHS[:1], SIZES), TypeError, "rhs has 1 groups, but group_sizes has 2: the two must be"),
    (lambda: ragged_dot(LHS, RHS, SIZES[:1], group_offset=0), TypeError, "rhs has 2 groups, but group_sizes has 1"),
    (lambda: ragged_dot(LHS, RHS, SIZES, group_offset=SIZES), TypeError, "group_offset: shape"),
    # Precisions.
    (lambda: ragged_dot(LHS, RHS, SIZES, "BF16_BF16_F32"), NotImplementedError, "precision: BF16_BF16_F32 is not"),
    (lambda: ragged_dot(LHS, RHS, SIZES, "sharp"), ValueError, "sharp"),
    # Axes.
    (lambda: forward(contracting_dims=((2,), (1,))), ValueError, r"lhs: contracting_dims \(2,\) are out of range"),
    (lambda: forward(contracting_dims=((), (1,))), ValueError, "lhs: contracting_dims names no axis"),
    (lambda: forward(contracting_dims=((1,),)), ValueError, "must be .lhs_axes, rhs_axes."),
    (lambda: forward(contracting_dims=(1, 1)), ValueError,
     r"^contracting_dims must be \(lhs_axes, rhs_axes\), as in \(\(1,\), \(1,\)\), got \(1, 1\)"),
    (lambda: forward(contracting_dims=1), ValueError, "must be .lhs_axes, rhs_axes., .* got 1"),
    (lambda: forward(contracting_dims=((1,), "k")), ValueError, r"^rhs: contracting_dims \('k',\) must be integers"),
    (lambda: forward(contracting_dims=((1,), (0,))), ValueError, "rhs: axis 0 of shape .* is the group axis"),
    (lambda: forward(rhs=np.ones((2, 3, 4, 5)), contracting_dims=((1,), (2,))), ValueError,
     r"rhs: contracting_dims \(2,\) are in the middle"),
    (lambda: forward(rhs=np.ones((2, 2, 2, 3)), contracting_dims=((1,), (2, 1))), ValueError,
     r"rhs: contracting_dims \(2, 1\) are unsorted"),
    (lambda: forward(lhs=np.ones((2, 2, 2)), contracting_dims=((0, -1), (1,))), ValueError,
     r"lhs: contracting_dims \(0, -1\) are not adjacent"),
    # Modes.
    (lambda: forward(contracting_dims=((0,), (1,))), ValueError, "no mode has the dims arrays lhs.first_dims"),
    (lambda: all_ragged(rhs=RHS, out_size=9), ValueError, "no mode .* lhs.first_dims, lhs.last_dims"),
    (lambda: forward(lhs=GroupedTensor(LHS, SIZES, layout="DENSE")), ValueError, "lhs.layout is 'DENSE'"),
    (lambda: forward(out_layout="dense"), ValueError, "out_layout is 'dense'"),
    (lambda: forward(lhs=GroupedTensor(LHS, SIZES, SIZES)), ValueError,
     r"lhs: with first_dims and last_dims data must be 1-D with layout PACKED, got shape \(.*\) with STRIDED"),
    (lambda: grouped_gemm(PACKED, PACKED, contracting_dims=((0,), (0, 1)), out_size=9, out_layout="PACKED"), ValueError,
     r"rhs: contracting_dims \(0, 1\) must be one axis"),
    (lambda: all_ragged(out_layout="PACKED"), ValueError, "all ragged needs out_size"),
    (lambda: all_ragged(out_size=9), ValueError, 'out_layout="PACKED"'),
    (lambda: all_ragged(out_size=-1, out_layout="PACKED"), ValueError, "out_size is -1"),
    (lambda: forward(out_size=3), ValueError, "out_size is for all ragged"),
    (lambda: forward(num_actual_groups=1), ValueError, "num_actual_groups is for ragged K"),
    (lambda: wgrad(num_actual_groups=3), ValueError, r"num_actual_groups is 3, must be in \[0, 2\]"),
    (lambda: wgrad(num_actual_groups=-1), ValueError, "num_actual_groups is -1"),
    (lambda: forward(beta=1.0), ValueError, "beta is given without c"),
    (lambda: grouped_gemm(RHS, COLS, contracting_dims=((1,), (0,)), bias=C), ValueError,
     "bias is for ragged M, ragged K and uniform"),
    (lambda: uniform(RHS, RHS.swapaxes(1, 2), group_offset=1), ValueError, "group_offset is 1, must be 0"),
]  # fmt: skip


@pytest.mark.parametrize("call, error, message", TRACING, ids=range(len(TRACING)))
def test_errors_when_tracing(call, error, message):
    with pytest.raises(error, match=message):
        call()
    with pytest.raises(error, match=message):
        jax.eval_shape(call)


def test_float64_bias_needs_float64_sums(x64):
    with pytest.raises(TypeError, match="bias: dtype is float64"):
        forward(bias=np.ones((2, 3)))
    forward(rhs=RHS.astype(np.float64), bias=np.ones((2, 3)))


def sizes(*values):
    return np.array(values, np.int32)


def gradient_of_ragged_n(sizes, offset=0):
    def sum_of_out(lhs, offset):
        cols = GroupedTensor(LHS.T, last_dims=sizes)
        return grouped_gemm(lhs, cols, contracting_dims=((1,), (0,)), group_offset=offset).sum()

    return jax.jit(jax.grad(sum_of_out))(LHS, offset)


def gradient_of_c(lhs, rhs, c, **options):
    options |= {"contracting_dims": ((1,), (0,)), "out_layout": "PACKED", "beta": 2.0}
    return jax.jit(jax.grad(lambda c: grouped_gemm(lhs, rhs, c=c, **options).sum()))(c)


# Wrong sizes. In 32 bits, 2^16 * 2^16 wraps to the valid number 0. Below, 6 * 715827883 wraps to 2.
WRAPPING = GroupedTensor(np.ones(9, np.float32), sizes(2**16, 1), sizes(2**16, 1), "PACKED")
RUNTIME = [
    (lambda: gmm(LHS, RHS, sizes(-1, 3)), "group_sizes: group 0 has size -1, must be at least 0"),
    (lambda: gmm(LHS, RHS, sizes(3, 4)), "group_sizes: group 1 has size 4 and starts at 3.*exceeds the extent 6"),
    (lambda: gmm(LHS, RHS, sizes(2**31 - 1, 2**31 - 1)), "group_sizes: group 0 has size 2147483647"),
    (lambda: tgmm(LHS.T, OTHER, sizes(7, 0)), "group_sizes: group 0 has size 7.*exceeds the extent 6"),
    (lambda: gmm(LHS, RHS[:1], sizes(2, 3), group_offset=2), r"group_offset: value 2 .*must be in \[0, 1\]"),
    (lambda: gmm(LHS, RHS[:1], sizes(2, 3), group_offset=-1), "group_offset: value -1"),
    (lambda: tgmm(LHS.T, OTHER, SIZES, group_offset=1), r"group_offset: value 1 .*must be in \[0, 0\]"),
    (lambda: grouped_gemm(ROWS, GroupedTensor(OTHER, first_dims=sizes(3, 2)), **WGRAD),
     "lhs.first_dims and rhs.first_dims disagree: group 0 has size 2 and 3"),
    # Gradients without a forward call have a single group, so their errors name group 0.
    (lambda: gradient_of_ragged_n(sizes(8, -2)), "rhs.last_dims: group 0 has size -1, must be at least 0"),
    (lambda: gradient_of_ragged_n(sizes(2**31 - 1, 2**31 - 1, 8)),
     "rhs.last_dims: group 0 has size -1, must be at least 0"),
    (lambda: gradient_of_ragged_n(SIZES, offset=1), r"group_offset: value 1 .*must be in \[0, 0\]"),
    (
        lambda: gradient_of_c(
            LHS, GroupedTensor(LHS.T, None, sizes(715827883, 1), "PACKED"), np.ones((6, 6), np.float32)
        ),
        "rhs.last_dims: group 0 has size -1, must be at least 0",
    ),
    (lambda: gradient_of_c(WRAPPING, WRAPPING, np.ones(9, np.float32), out_size=9),
     "lhs.first_dims: group 0 has size -1, must be at least 0"),
    (lambda: all_ragged(out_size=5, out_layout="PACKED"), "out: group 1 .*exceeds the length 5"),
    (lambda: jax.jit(lambda o: uniform(RHS, RHS.swapaxes(1, 2), group_offset=o))(1),
     r"group_offset: value 1 .*must be in \[0, 0\]"),
    (
        lambda: jax.vmap(lambda w, o: uniform(RHS, w, group_offset=o))(np.ones((3, 2, 3, 5)), sizes(0, 0, 1)),
        r"group_offset: value 1 .*must be in \[0, 0\]",
    ),
    (lambda: jax.vmap(lambda o: uniform(RHS, RHS.swapaxes(1, 2), group_offset=o))(sizes(0, 1, 0)),
     r"group_offset: value 1 at index 1, must be in \[0, 0\]"),
    (lambda: jax.vmap(lambda s: gmm(LHS, RHS, s))(np.stack([sizes(2, 3), sizes(5, 2)])),
     "group_sizes: group 1 of problem 0, replica 1 has size 2"),
    (lambda: jax.vmap(lambda o: gmm(LHS, RHS[:1], SIZES, group_offset=o))(sizes(0, 1, 2)),
     r"group_offset: value 2 at index 2, must be in \[0, 1\]"),
]  # fmt: skip


@pytest.mark.parametrize("call, message", RUNTIME, ids=range(len(RUNTIME)))
def test_errors_at_run_time(call, message):
    with pytest.raises((jax.errors.JaxRuntimeError, ValueError), match=message):
        jax.block_until_ready(call())
    assert (gmm(LHS, RHS, SIZES)[:5] == 4).all()  # the next call works


@pytest.mark.parametrize("has_succeeded", [False, True])
def test_class_of_a_run_time_error(has_succeeded):
    """JAX raises ValueError in a program that has succeeded before, otherwise its own class."""
    program = jax.jit(lambda *args: gmm(*args))
    if has_succeeded:
        program(LHS, RHS, SIZES)
    error = ValueError if has_succeeded else jax.errors.JaxRuntimeError
    with pytest.raises(error, match="INVALID_ARGUMENT: group_sizes: group 0 has size -1, must be at least 0"):
        jax.block_until_ready(program(LHS, RHS, sizes(-1, 3)))


def test_other_platforms_are_refused_by_name():
    with pytest.raises(NotImplementedError, match="platform cpu only, not on tpu"):
        jax.jit(gmm).trace(LHS, RHS, SIZES).lower(lowering_platforms=("tpu",))
    with pytest.raises(NotImplementedError, match="platform cpu only, not on tpu"):
        jax.jit(gmm).trace(LHS, RHS, SIZES).lower(lowering_platforms=("cpu", "tpu"))


def test_wrong_attribute_fails_when_compiled():
    call = jax.ffi.ffi_call("raggemm_grouped_gemm_v1", jax.ShapeDtypeStruct((2,), jnp.float32))
    with pytest.raises(jax.errors.JaxRuntimeError, match='unknown attribute "trans"; allowed: lhs_is_trans'):
        jax.jit(lambda x: call(x, trans=True)).lower(jnp.ones(2)).compile()
