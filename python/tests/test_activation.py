import functools
import itertools

import jax
import jax.numpy as jnp
import moe_oracle
import numpy as np
import pytest
from arrays import random, sampled
from cases import CASES
from program_text import calls
from raggemm import Activation, GroupedTensor, combine, grouped_gemm, moe_mlp
from raggemm._src.activations import apply_activation
from raggemm._src.library import tables

# Activations, with their default numbers and with other numbers.
ACTIVATIONS = [
    *(Activation(row["name"]) for row in tables()["activations"]),
    Activation("quick_gelu", alpha=1),
    Activation("swiglu_oai", 0.5, 1.5),
    Activation("swiglu_clamped", limit=np.float64(0.75)),
]
PAIRS = [(x, gated) for x in ACTIVATIONS for gated in (True, False) if gated or not x.needs_gate]
SIZES = np.array([3, 0, 2, 4], np.int32)
M, K, N, G = 11, 8, 6, 4
FORWARD = {"contracting_dims": ((1,), (1,))}
LHS, RHS, GATE = random(M, K), random(G, K, N, seed=1), 4 * random(M, N, seed=3)


def rows(x, sizes=SIZES):
    return GroupedTensor(x, first_dims=sizes)


def layer(lhs, rhs, gate=None, bias=None, activation="silu", sizes=SIZES, **options):
    return grouped_gemm(rows(lhs, sizes), rhs, **FORWARD, bias=bias, activation=activation, gate=gate, **options)


@pytest.mark.parametrize("case", sampled(CASES[::2], 3), ids=str)
def test_every_mode_and_storage(case):
    """The number of a case selects its activation and result dtype."""
    number = CASES.index(case)
    activation, gated = PAIRS[number % len(PAIRS)]
    operands = case.operands()
    if number % 3 == 0:
        operands = {name: operands[name] for name in ("lhs", "rhs", "dims")}
    expected = case.expected(operands)
    inside = expected.bound > 0
    gate = random(*expected.want.shape, seed=5) if gated else None
    dtype = np.float32 if "c" in operands else (jnp.bfloat16, np.float16, np.float32)[number % 3]
    options = {"activation": activation, "preferred_element_type": dtype}
    got = np.asarray(case.run(operands | options | ({"gate": gate} if gated else {})))
    assert got.dtype == dtype
    gate64 = None if gate is None else np.float64(gate)
    want = np.where(inside, moe_oracle.activated(np, activation, gate64, expected.want), expected.want)
    slope = 1.13 * (1 if gate is None else np.maximum(1, np.abs(gate64)))
    if activation.name == "relu2":
        slope = 2 * (np.abs(expected.want) + expected.bound) if gate is None else np.maximum(1, gate64**2)
    rounding = float(jnp.finfo(dtype).eps) + 1e-5
    error = np.abs(got.astype(np.float64) - want)
    assert (error <= slope * expected.bound + rounding * np.abs(want) + 1e-6).all(), error.max()
    np.testing.assert_array_equal(got[~inside], want[~inside].astype(dtype))


@pytest.mark.parametrize(
    ("pair", "dtype"), sampled([*itertools.product(PAIRS, (jnp.bfloat16, np.float32))], 7, unpack=True)
)
def test_separate_calls_have_the_bits_of_moe_mlp(pair, dtype):
    activation, gated = pair
    tokens, hidden, inner = 7, 40, 24
    rng = np.random.default_rng(3)
    x, up, gate, down = (
        rng.normal(size=shape).astype(dtype)
        for shape in ((tokens, hidden), (G, hidden, inner), (G, hidden, inner), (G, inner, hidden))
    )
    row_tokens, weights = rng.integers(0, tokens, M).astype(np.int32), rng.normal(size=M).astype(np.float32)
    bias = rng.normal(size=(G, inner)).astype(np.float32)

    def product(lhs, rhs, out, **options):
        return grouped_gemm(rows(lhs), rhs, **FORWARD, preferred_element_type=out, **options)

    def separate_calls():
        v = product(x, gate, np.float32, row_index=row_tokens) if gated else None
        a = product(x, up, dtype, row_index=row_tokens, bias=bias, activation=activation, gate=v)
        d = product(a, down, np.float32)
        return combine(d, row_tokens, tokens, weights, SIZES, dtype)

    w_gate = gate if gated else None
    fused = moe_mlp(x, row_tokens, weights, SIZES, up, down, w_gate=w_gate, b_up=bias, activation=activation)
    for f in (separate_calls, jax.jit(separate_calls)):
        np.testing.assert_array_equal(np.asarray(f()).view(np.uint8), np.asarray(fused).view(np.uint8))


# Derivatives.


@pytest.mark.parametrize("name", sampled(["silu", "gelu", "gelu_tanh", "quick_gelu"], 2))
def test_small_derivatives_are_accurate(name):
    """For x from -5 to -2.5, digits of 1 + tanh(x) cancel in float32."""
    x = np.linspace(-5, -2.5, 61, dtype=np.float32)
    got = jax.jit(jax.vmap(jax.grad(functools.partial(apply_activation, Activation(name), None))))(x)
    with jax.enable_x64(True):
        want = jax.jit(jax.vmap(jax.grad(lambda x: moe_oracle.activated(jnp, name, None, x))))(np.float64(x))
    np.testing.assert_allclose(got, want, rtol=2e-5)


def test_forward_pass_of_a_gradient_has_one_product():
    """A ragged M call computes the product. A uniform call with K = 0 then only applies the activation."""
    found = calls(lambda x: jax.vjp(lambda x: layer(x, RHS), x)[0], LHS)
    assert found == {"RAGGED_M": 1, "UNIFORM": 1}


# NaN and infinity.


def test_nan_and_infinity_do_not_spread():
    gate, lhs = GATE.copy(), LHS.copy()
    gate[9:] = np.nan  # Rows from 9 on are in no group.
    gate[4, 2] = np.nan
    lhs[1] = np.inf
    out = np.asarray(layer(lhs, RHS, gate))
    clean = np.asarray(layer(LHS, RHS, GATE))
    unchanged = np.ones((M, N), bool)
    unchanged[4, 2] = unchanged[1] = False
    np.testing.assert_array_equal(out[unchanged], clean[unchanged])
    assert np.isnan(out[4, 2])
    assert not out[9:].any()
    d_gate, d_lhs = jax.grad(lambda gate, lhs: layer(lhs, RHS, gate).sum(), (0, 1))(gate, LHS)
    assert not np.asarray(d_gate)[9:].any()
    assert np.isnan(d_gate[4, 2]) and np.isfinite(np.delete(d_gate, 4, 0)).all()
    assert np.isfinite(np.delete(d_lhs, 4, 0)).all()


# Errors.


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"activation": "tanh"}, ValueError, "activation is 'tanh', must be one of 'silu', 'gelu', 'gelu_tanh', "),
        ({"activation": "SILU"}, ValueError, "activation is 'SILU', must be one of"),
        ({"activation": None, "gate": GATE}, ValueError, "gate is given without activation"),
        ({"activation": "swiglu_oai"}, ValueError, "activation: 'swiglu_oai' needs gate"),
        ({"gate": GATE[:5]}, ValueError, r"gate: shape is \(5, 6\), must be out's \(11, 6\)"),
        ({"gate": GATE.astype(np.int32)}, TypeError, "gate: dtype is int32, must be float16, bfloat16 or float32"),
        ({"activation": Activation("swiglu_clamped")}, ValueError, "activation: 'swiglu_clamped' needs gate"),
    ],
    ids=str,
)
def test_errors(options, error, message):
    with pytest.raises(error, match=f"^{message}"):
        layer(LHS, RHS, **options)


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"name": "tanh"}, ValueError, "activation is 'tanh', must be one of 'silu', 'gelu', "),
        ({"name": "silu", "alpha": 2}, ValueError, "alpha is 2, but 'silu' takes no alpha"),
        ({"name": "swiglu_clamped", "alpha": 1.0}, ValueError, "alpha is 1.0, but 'swiglu_clamped' takes no alpha"),
        ({"name": "quick_gelu", "limit": 7}, ValueError, "limit is 7, but 'quick_gelu' takes no limit"),
        ({"name": "swiglu_oai", "limit": 0}, ValueError, "limit is 0, must be positive and finite in float32"),
        ({"name": "swiglu_oai", "alpha": -1.5}, ValueError, "alpha is -1.5, must be positive and finite in float32"),
        ({"name": "swiglu_clamped", "limit": np.nan}, ValueError, "limit is nan, must be positive and finite"),
        ({"name": "swiglu_clamped", "limit": 1e39}, ValueError, r"limit is 1e\+39, must be positive and finite"),
        ({"name": "swiglu_clamped", "limit": 1e-46}, ValueError, "limit is 1e-46, must be positive and finite"),
        ({"name": "swiglu_clamped", "limit": "7"}, TypeError, "limit is '7', must be a number that is known when"),
    ],
    ids=str,
)
def test_errors_of_numbers(given, error, message):
    with pytest.raises(error, match=f"^{message}"):
        Activation(**given)


def test_activations_need_float32_sums(x64):
    with pytest.raises(TypeError, match="activation: 'silu' is for sums in float32, these are in float64"):
        layer(LHS.astype(np.float64), RHS)
    with pytest.raises(TypeError, match="activation: 'silu' is for sums in float32, these are in int32"):
        layer(LHS.astype(np.int8), RHS.astype(np.int8), preferred_element_type=np.int32)
