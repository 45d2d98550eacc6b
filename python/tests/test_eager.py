"""Tests that eager calls compile one program per signature, and have the bits and jaxprs of calls inside jit."""

import pathlib
import re
import sys
import traceback

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import raggemm
from arrays import random
from raggemm._src import checks
from raggemm._src.primitive import grouped_gemm_p
from raggemm.compat import lax

SIZES = np.array([3, 0, 2, 4], np.int32)
LHS, RHS = random(12, 8), random(4, 8, 16, seed=1)
ARRAYS = tuple(map(jnp.asarray, (LHS, RHS, SIZES)))
TGMM_ARRAYS = (jnp.asarray(LHS).T, jnp.asarray(random(12, 16, seed=2)), jnp.asarray(SIZES))
NUMBERS = jax.lax.RaggedDotDimensionNumbers((((1,), (1,)), ((), ())), [0], [0])
CALLS = {
    "gmm": (raggemm.gmm, ARRAYS),
    "tgmm": (raggemm.tgmm, TGMM_ARRAYS),
    "ragged_dot": (raggemm.ragged_dot, ARRAYS),
    "compat.lax.ragged_dot": (lax.ragged_dot, ARRAYS),
    "compat.lax.ragged_dot_general": (lambda *x: lax.ragged_dot_general(*x, NUMBERS), ARRAYS),
}


@pytest.mark.parametrize("name", CALLS)
def test_only_the_first_call_of_a_signature_goes_through_python(monkeypatch, name):
    call, operands = CALLS[name]
    want = call(*operands)

    def fail(*_, **__):
        raise AssertionError("checked again")

    monkeypatch.setattr(checks, "as_array", fail)
    np.testing.assert_array_equal(call(*operands), want)
    with pytest.raises(AssertionError, match="checked again"):
        call(operands[0][:-1], *operands[1:])
    with pytest.raises(AssertionError, match="checked again"):
        call(*map(np.asarray, operands))


@pytest.mark.parametrize("name", CALLS)
def test_eager_calls_have_the_bits_of_jit(name):
    call, operands = CALLS[name]
    np.testing.assert_array_equal(call(*operands), jax.jit(lambda *x: call(*x))(*map(np.asarray, operands)))


def test_unused_arguments_compile_no_new_program(monkeypatch):
    want = raggemm.gmm(*ARRAYS)
    raggemm.gmm(*ARRAYS, jnp.float32)
    monkeypatch.setattr(checks, "as_array", lambda *_: pytest.fail("another program"))
    for _ in range(3):
        np.testing.assert_array_equal(raggemm.gmm(*ARRAYS, jnp.float32, lambda m, k, n: (1, 1, 1)), want)
        np.testing.assert_array_equal(raggemm.gmm(*ARRAYS, tiling=object(), interpret=True), want)


def test_the_configured_precision_selects_another_program():
    with jax.default_matmul_precision("highest"):
        raggemm.ragged_dot(*ARRAYS)
    with jax.default_matmul_precision("BF16_BF16_F32"), pytest.raises(NotImplementedError, match="BF16_BF16_F32"):
        raggemm.ragged_dot(*ARRAYS)


@pytest.mark.parametrize("name", CALLS)
def test_calls_in_a_trace_add_no_inner_jit(name):
    call, operands = CALLS[name]
    assert "jit[" not in str(jax.make_jaxpr(call)(*operands))


def test_a_first_call_runs_the_functions_listed_in_developers_md(monkeypatch):
    package, stacks = pathlib.Path(raggemm.__file__).parent, []

    def record_stack(function):
        def call(*args, **kwargs):
            frames = [
                frame
                for frame, _ in traceback.walk_stack(sys._getframe(1))
                if package in pathlib.Path(frame.f_code.co_filename).parents
            ]
            stacks.append(
                [(frame.f_code.co_name, pathlib.Path(frame.f_code.co_filename).name) for frame in frames][::-1]
            )
            return function(*args, **kwargs)

        return call

    monkeypatch.setattr(grouped_gemm_p, "bind", record_stack(grouped_gemm_p.bind))
    monkeypatch.setattr(jax.ffi, "ffi_call", record_stack(jax.ffi.ffi_call))
    raggemm.gmm(*map(jnp.asarray, (random(11, 7), random(4, 7, 13, seed=1), SIZES)))
    traced, (first, *lowered) = stacks
    assert first == traced[0]
    pages = (folder / "docs/developers.md" for folder in pathlib.Path(__file__).parents)
    page = next(page for page in pages if page.exists()).read_text()
    assert re.findall(r"^\d\. `(\w+)` \(`(\w+\.py)`\)", page, re.MULTILINE) == [*traced, *lowered]
    assert len(traced) + len(lowered) <= 10
