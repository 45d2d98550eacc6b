"""Tests the precisions BF16_BF16_F32_X3 and _X6, which compute float32 products from bfloat16 products."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import plans
import pytest
import raggemm
from arrays import random, sampled
from jax.lax import DotAlgorithmPreset
from raggemm import GroupedTensor, compat, override_ragged_dot
from raggemm._src import library

X3, X6 = DotAlgorithmPreset.BF16_BF16_F32_X3, DotAlgorithmPreset.BF16_BF16_F32_X6
ARITHMETICS = {X3: "bf16_x3: 3 products", X6: "bf16_x6: 6 products"}
SIZES = np.array([7, 0, 20, 3], np.int32)
K = 300
LHS, RHS, CT = random(30, K), random(4, K, 40, seed=1), random(30, 40, seed=2)
GROUP = np.repeat(np.arange(4), SIZES)

# Limits of the relative RMS error. For comparison, it is 2e-3 for bfloat16 operands, and 1e-7 for products in float32.
MAX_ERROR = {X3: 1e-5, X6: 4e-7}
MIN_ERROR = {X3: 1e-6, X6: 1e-9}

RAGGED_DOTS = {
    "ragged_dot": raggemm.ragged_dot,
    "compat.lax": compat.lax.ragged_dot,
    "grouped_gemm": lambda lhs, rhs, sizes, **options: raggemm.grouped_gemm(
        GroupedTensor(lhs, sizes), rhs, contracting_dims=((1,), (1,)), **options
    ),
    "TransformerEngine": lambda lhs, rhs, sizes, **options: compat.transformer_engine.grouped_dense(
        lhs, rhs, sizes, **options
    ),
}
OVERRIDDEN = {"the override": jax.lax.ragged_dot}


def error(got, want) -> float:
    want = np.asarray(want, np.float64)
    return np.sqrt(((np.asarray(got, np.float64) - want) ** 2).mean() / (want**2).mean())


def product(lhs, rhs) -> np.ndarray:
    return np.einsum("mk,mkn->mn", np.float64(lhs), np.float64(rhs)[GROUP])


def gradients(lhs, rhs, ct) -> tuple[np.ndarray, np.ndarray]:
    lhs, rhs, ct = (np.float64(x) for x in (lhs, rhs, ct))
    member = np.eye(4)[GROUP]
    return np.einsum("mn,mkn->mk", ct, rhs[GROUP]), np.einsum("mg,mk,mn->gkn", member, lhs, ct)


@pytest.mark.parametrize(
    ("front_end", "rule", "preset"),
    sampled([*itertools.product(RAGGED_DOTS | OVERRIDDEN, ("pairs", "tiles"), (X3, X6))], 3, unpack=True),
    ids=str,
)
def test_forward_and_gradients(front_end, rule, preset):
    function = (RAGGED_DOTS | OVERRIDDEN)[front_end]
    dot = functools.partial(function, precision=preset)

    def result_and_gradients(lhs, rhs):
        out, vjp = jax.vjp(lambda *x: dot(*x, SIZES), lhs, rhs)
        return out, *vjp(CT)

    with raggemm.options(bf16_sums=rule), override_ragged_dot():
        arithmetics = plans.lines("arithmetic", result_and_gradients, LHS, RHS)
        results = jax.jit(result_and_gradients)(LHS, RHS)
    assert len(arithmetics) == 3
    assert all(x.startswith(f"{rule}, {ARITHMETICS[preset]}") for x in arithmetics), arithmetics
    for got, want in zip(results, (product(LHS, RHS), *gradients(LHS, RHS, CT)), strict=True):
        assert got.dtype == np.float32
        assert MIN_ERROR[preset] < error(got, want) < MAX_ERROR[preset]
    bf16 = function(LHS.astype(jnp.bfloat16), RHS.astype(jnp.bfloat16), SIZES)
    assert error(bf16, product(LHS, RHS)) > 100 * MAX_ERROR[X3]


@pytest.mark.parametrize("preset", [X3, X6])
def test_same_bits_on_every_instruction_set(preset):
    results = []
    for isa in [x["name"] for x in library.description()["isas"] if x["usable"]]:
        with raggemm.options(isa=isa):
            results.append(np.asarray(raggemm.ragged_dot(LHS, RHS, SIZES, precision=preset)))
    for result in results[1:]:
        np.testing.assert_array_equal(result, results[0])


def test_the_configured_precision():
    """The option jax_default_matmul_precision applies to ragged_dot, as in jax.lax, but not to grouped_gemm and gmm."""
    with jax.default_matmul_precision("BF16_BF16_F32_X3"):
        for dot, name in ((raggemm.ragged_dot, "bf16_x3"), (raggemm.gmm, "f32"), (RAGGED_DOTS["grouped_gemm"], "f32")):
            (arithmetic,) = plans.lines("arithmetic", lambda *x, dot=dot: dot(*x), LHS, RHS, SIZES)
            assert name in arithmetic


@pytest.mark.parametrize("preset", [X3, X6])
def test_infinities_and_nan_match_float64(preset):
    lhs, rhs = np.abs(LHS) + 1, np.abs(RHS) + 1
    lhs[0, 5], lhs[1, 6], rhs[2, 3, 4] = np.inf, np.nan, -np.inf
    got = np.asarray(raggemm.ragged_dot(lhs, rhs, SIZES, precision=preset))
    want = product(lhs, rhs)
    np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
    np.testing.assert_array_equal(got[np.isinf(want)], want[np.isinf(want)])
    assert np.isinf(want).sum() == 60


@pytest.mark.parametrize("preset", [X3, X6, DotAlgorithmPreset.BF16_BF16_F32_X9, DotAlgorithmPreset.TF32_TF32_F32_X3])
@pytest.mark.parametrize("front_end", RAGGED_DOTS)
def test_unsupported_presets_are_refused_by_name(front_end, preset):
    lhs = LHS.astype(jnp.bfloat16) if preset in ARITHMETICS else LHS
    with pytest.raises(
        NotImplementedError, match=f"precision: {preset.name} is not supported for {lhs.dtype}, float32"
    ):
        jax.eval_shape(lambda *x: RAGGED_DOTS[front_end](*x, precision=preset), lhs, RHS, SIZES)
