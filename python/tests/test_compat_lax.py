"""Tests raggemm.compat.lax against float64, and its signatures and errors against jax.lax."""

import functools
import inspect
import re

import jax
import ml_dtypes
import numpy as np
import oracle
import pytest
from arrays import sampled
from program_text import custom_calls
from ragged_dots import FORMS, Form
from raggemm import GroupedTensor, ragged_dot
from raggemm.compat import lax

SIZES = np.array([3, 0, 2], np.int32)
LHS, RHS, _ = Form("mk,gkn->mn, m").operands()


@pytest.mark.parametrize("function", [lax.ragged_dot, lax.ragged_dot_general, ragged_dot], ids=lambda f: f.__module__)
def test_signatures_match_lax(function):
    ours, theirs = (
        [(p.name, p.default, p.kind) for p in inspect.signature(f).parameters.values()]
        for f in (function, getattr(jax.lax, function.__name__))
    )
    assert ours[: len(theirs)] == theirs
    only_ours = ("lhs_quantize", "lhs_block")
    extra = [name for name, *_ in ours[len(theirs) :] if name not in only_ours]
    assert extra in ([], ["out_sharding"])  # Older versions of jax.lax have no out_sharding.


@pytest.mark.parametrize("form", sampled(FORMS, 3), ids=str)
@pytest.mark.parametrize("sizes_per_batch", [True, False], ids=["sizes per batch", "shared sizes"])
def test_every_form(form, sizes_per_batch):
    operands = form.operands(sizes_per_batch=sizes_per_batch)
    call = jax.jit(functools.partial(lax.ragged_dot_general, ragged_dot_dimension_numbers=form.numbers))
    got = call(*operands)
    form.expected(*operands).check(got)
    if sizes_per_batch:
        assert custom_calls(call.lower(*operands)) == 1
        theirs = jax.eval_shape(
            functools.partial(jax.lax.ragged_dot_general, ragged_dot_dimension_numbers=form.numbers), *operands
        )
        assert (got.shape, got.dtype) == (theirs.shape, theirs.dtype)


def test_ragged_dot_with_group_offset():
    want = lax.ragged_dot(LHS, RHS, SIZES)
    oracle.grouped_gemm(GroupedTensor(LHS, first_dims=SIZES), GroupedTensor(RHS), contracting_dims=((1,), (1,))).check(
        want
    )
    assert (want[5:] == 0).all()
    for offset in (2, np.array([2], np.uint32)):
        got = lax.ragged_dot(LHS, RHS[2:], SIZES, group_offset=offset)
        np.testing.assert_array_equal(got[3:], want[3:])
        assert (got[:3] == 0).all()
    gradient = jax.jit(jax.grad(lambda w: lax.ragged_dot(LHS, w, SIZES, group_offset=2).sum()))(RHS[2:])
    np.testing.assert_allclose(gradient[0], np.tile(LHS[3:5].sum(0)[:, None], (1, 5)), rtol=1e-5)
    with pytest.raises((jax.errors.JaxRuntimeError, ValueError), match=r"INVALID_ARGUMENT.*group_offset"):
        lax.ragged_dot(LHS, RHS[1:], SIZES, group_offset=2).block_until_ready()


SUPPORTED_PRECISIONS = [
    None,
    "highest",
    jax.lax.Precision.DEFAULT,
    ("high", "default"),
    "F32_F32_F32",
    jax.lax.DotAlgorithmPreset.DEFAULT,
]
UNSUPPORTED_PRECISIONS = ["BF16_BF16_F32", "F16_F16_F16", "TF32_TF32_F32", jax.lax.DotAlgorithmPreset.F64_F64_F64]


def test_unsupported_precisions_are_refused_by_name():
    want = lax.ragged_dot(LHS, RHS, SIZES)
    for precision in SUPPORTED_PRECISIONS:
        np.testing.assert_array_equal(lax.ragged_dot(LHS, RHS, SIZES, precision), want)
    for precision in UNSUPPORTED_PRECISIONS:
        with pytest.raises(NotImplementedError, match=getattr(precision, "name", precision)):
            lax.ragged_dot(LHS, RHS, SIZES, precision)
    bf16_operands = LHS.astype(ml_dtypes.bfloat16), RHS.astype(ml_dtypes.bfloat16)
    assert lax.ragged_dot(*bf16_operands, SIZES, "BF16_BF16_F32").dtype == ml_dtypes.bfloat16
    with pytest.raises(ValueError, match="sharp"):
        lax.ragged_dot(LHS, RHS, SIZES, "sharp")
    with jax.default_matmul_precision("BF16_BF16_F32"), pytest.raises(NotImplementedError, match="BF16_BF16_F32"):
        lax.ragged_dot(LHS, RHS, SIZES)
    for precisions in (("highest",), ("highest",) * 3):
        with pytest.raises(ValueError, match="must have one for lhs and one for rhs"):
            lax.ragged_dot(LHS, RHS, SIZES, precisions)
    algorithm = jax.lax.DotAlgorithm(np.float32, np.float32, np.float32)
    with pytest.raises(NotImplementedError, match="DotAlgorithm"):
        lax.ragged_dot(LHS, RHS, SIZES, algorithm)


def numbers(contract=((1,), (1,)), batch=((), ()), ragged=(0,), group=(0,)):
    return jax.lax.RaggedDotDimensionNumbers((contract, batch), ragged, group)


SHAPE_ERRORS = {
    "two ragged": (LHS, RHS, SIZES, numbers(ragged=(0, 1))),
    "ragged out of range": (LHS, RHS, SIZES, numbers(ragged=(2,))),
    "sizes without axis": (LHS, RHS, np.int32(3), numbers()),
    "sizes of a wrong batch": (LHS, RHS, np.stack([SIZES, SIZES]), numbers()),
    "wrong number of groups": (LHS, RHS[:2], SIZES, numbers()),
    "no group axis": (LHS, RHS, SIZES, numbers(group=())),
    "group axis is contracted": (LHS, RHS, SIZES, numbers(group=(1,))),
    "group axis with ragged k": (LHS.T, RHS, SIZES, numbers(contract=((0,), (1,)))),
    "contracted extents": (LHS[:, 1:], RHS, SIZES, numbers()),
    "float sizes": (LHS, RHS, SIZES.astype(np.float32), numbers()),
}


@pytest.mark.parametrize("case", SHAPE_ERRORS)
def test_shape_errors_have_the_message_of_lax(case):
    with pytest.raises(TypeError) as theirs:
        jax.eval_shape(lambda *args: jax.lax.ragged_dot_general(*args, SHAPE_ERRORS[case][3]), *SHAPE_ERRORS[case][:3])
    with pytest.raises(TypeError, match=re.escape(str(theirs.value))):
        lax.ragged_dot_general(*SHAPE_ERRORS[case])


REFUSED = [
    ({"rhs": RHS.astype(ml_dtypes.float8_e4m3b11fnuz)}, TypeError, "rhs: dtype is float8_e4m3b11fnuz"),
    ({"lhs": LHS.astype(np.int8), "rhs": RHS.astype(np.int16)}, TypeError, "rhs: dtype is int16, must be float16"),
    ({"lhs": LHS.astype(ml_dtypes.int4), "rhs": RHS.astype(ml_dtypes.int4)}, TypeError,
     "preferred_element_type: dtype is int4"),
    ({"group_offset": 1.0}, TypeError, "group_offset: dtype is float64"),
    ({"group_sizes": SIZES[:2], "group_offset": 0}, TypeError, "rhs group dimension size to be 2, got 3"),
]  # fmt: skip


@pytest.mark.parametrize("change, error, message", REFUSED, ids=[message[:20] for *_, message in REFUSED])
def test_unsupported_arguments_are_refused(change, error, message):
    with pytest.raises(error, match=message):
        lax.ragged_dot(**({"lhs": LHS, "rhs": RHS, "group_sizes": SIZES} | change))
