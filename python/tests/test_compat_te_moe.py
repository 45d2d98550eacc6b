"""Tests TransformerEngine's moe and grouped_dbias against float64."""

import functools
import itertools

import jax
import jax.numpy as jnp
import ml_dtypes
import moe_oracle
import numpy as np
import pytest
import routing_oracle
from arrays import random, sampled
from front_end_checks import check_errors
from program_text import custom_calls
from raggemm.compat import transformer_engine as te

B, S, H, E, INNER, TOP_K = 2, 5, 8, 6, 4, 3
X, GATE = random(B, S, H), random(H, E, seed=1)
WI, WO = random(E, H, 2 * INNER, seed=2) / 3, random(E, INNER, H, seed=3) / 2
BIASES = random(E, INNER, seed=4), random(E, INNER, seed=5), random(E, H, seed=6)
EXPERT_BIAS = random(E, seed=7)
TARGET = random(B, S, H, seed=8)
# {name: (options of moe for its router, the same options for routing_oracle.route)}
ROUTERS = {
    "softmax": ({}, {"score": "softmax"}),
    "softmax first, scaled": ({"use_pre_softmax": True, "scaling_factor": 2.5},
        {"score": "softmax", "pre_softmax": True, "scaling_factor": 2.5}),
    "sigmoid in groups": ({"score_function": "sigmoid", "num_groups": 3, "group_topk": 3},
        {"score": "sigmoid", "renormalize": True, "groups": (3, 3, 1)}),
    "sigmoid with a bias": ({"score_function": "sigmoid", "expert_bias": EXPERT_BIAS},
        {"score": "sigmoid", "renormalize": True, "bias": EXPERT_BIAS}),
}  # fmt: skip
ACTIVATIONS = {
    "silu": functools.partial(moe_oracle.activated, np, "silu", None),
    "gelu": functools.partial(moe_oracle.activated, np, "gelu_tanh", None),
    "relu": functools.partial(moe_oracle.activated, np, "relu", None),
    "linear": lambda x: x,
    "tanh": np.tanh,
}


def run_moe(x=X, gate=GATE, wi=WI, wo=WO, biases=(None, None, None), **options):
    options = {"num_experts": E, "num_experts_per_tok": TOP_K, "ep_axis": "ep"} | options
    return te.moe(x, gate, wi, wo, *biases, **options)


def expected(arrays, activation="silu", early=False, dtype=np.float64, **router):
    """Computes moe in float64. Returns its result [tokens,H] and the chosen experts [tokens,k].

    Args:
      arrays: x, gate, wi, wo and optionally three biases.
      early: True if the router's weights multiply the activations, and therefore not the bias of the second layer.
      dtype: dtype of the router's weights.
    """
    x, gate, wi, wo, *biases = (np.asarray(a, np.float64) for a in arrays)
    tokens = x.reshape(-1, H)
    weights, chosen = routing_oracle.route(tokens @ gate, TOP_K, **({"score": "softmax"} | router))
    weights = weights.astype(dtype).astype(np.float64)
    up_bias, down_bias = (np.concatenate(biases[:2], 1), biases[2]) if biases else (np.zeros((E, 2 * INNER)), None)
    out = np.zeros_like(tokens)
    for t, slot in np.ndindex(chosen.shape):
        e, weight = chosen[t, slot], weights[t, slot]
        products = tokens[t] @ wi[e] + up_bias[e]
        expert_out = (ACTIVATIONS[activation](products[:INNER]) * products[INNER:]) @ wo[e]
        bias = 0 if down_bias is None else down_bias[e]
        out[t] += weight * expert_out + bias if early else weight * (expert_out + bias)
    return out, chosen


def close(got, want, relative=2e-5):
    got, want = np.asarray(got).astype(np.float64), np.asarray(want).reshape(np.shape(got))
    np.testing.assert_allclose(got, want, rtol=relative, atol=relative * np.abs(want).max())


@pytest.mark.parametrize("router", sampled(ROUTERS, 2))
def test_moe_matches_its_definition(router):
    options, oracle_options = ROUTERS[router]
    out, loss, slots = jax.jit(functools.partial(run_moe, biases=BIASES, **options))()
    want, chosen = expected((X, GATE, WI, WO, *BIASES), **oracle_options)
    close(out, want)
    assert loss is None and out.dtype == np.float32
    rows = np.bincount(chosen.reshape(-1), minlength=E)
    assert slots.shape == (1, 1) and slots.dtype == np.int32 and slots == (rows > 0).sum() * 128


@pytest.mark.parametrize(
    ("biases", "activation", "early"),
    sampled([*itertools.product(((), BIASES), ACTIVATIONS, (False, True))], 7, unpack=True),
    ids=lambda x: str(x) if isinstance(x, str | bool) else ("biases" if x else "no biases"),
)
def test_activations_and_early_weights(activation, early, biases):
    options = {"activation_type": activation, "apply_topk_weights_early": early, "biases": biases or (None,) * 3}
    run = jax.jit(functools.partial(run_moe, **options))
    close(run()[0], expected((X, GATE, WI, WO, *biases), activation, early)[0])
    is_fused = activation not in ("linear", "tanh") and not (early and biases)
    products = custom_calls(run.lower())
    assert products == (0 if is_fused else 3)  # Two of grouped_dense, and one of combine.


@pytest.mark.parametrize("early", sampled([True, False], 2), ids=["early", "late"])
def test_gradients(early):
    """The gradient of expert_bias is 0."""
    router = ROUTERS["sigmoid with a bias"]
    arrays = (X, GATE, WI, WO, *BIASES)

    def loss(bias, *arrays):
        *matrices, a, b, c = arrays
        options = router[0] | {"expert_bias": bias, "apply_topk_weights_early": early}
        return (run_moe(*matrices, biases=(a, b, c), **options)[0] * TARGET).sum()

    bias, *got = jax.jit(jax.grad(loss, range(8)))(EXPERT_BIAS, *arrays)
    assert (bias == 0).all()
    for i, gradient in enumerate(got):

        def loss_of_array(a, i=i):
            changed = (*arrays[:i], a, *arrays[i + 1 :])
            return (expected(changed, early=early, **router[1])[0] * TARGET.reshape(-1, H)).sum()

        close(gradient, routing_oracle.gradient(loss_of_array, arrays[i]), 1e-4)


def test_wrong_arguments():
    one_bias, two_biases = BIASES[0], BIASES[:2]
    for wrong, message in [
        ({"x": X[0]}, r"x: shape is \(5, 8\), must be \[batch,sequence,H\]"),
        ({"gate": GATE[:, :5]}, r"gate_kernel: shape is \(8, 5\), must be \(8, 6\)"),
        ({"wi": WI[..., :7]}, r"wi: shape is \(6, 8, 7\), must be \(6, 8, 2 \* intermediate\)"),
        ({"wo": WO[:, :3]}, r"wo: shape is \(6, 3, 8\), must be \(6, 4, 8\)"),
        ({"biases": (one_bias, None, one_bias)}, "wi_1_bias is None, must be given with the other biases"),
        ({"biases": (*two_biases, one_bias)}, r"wo_bias: shape is \(6, 4\), must be \(6, 8\)"),
        ({"num_experts": 0}, "num_experts is 0, must be at least 1"),
        ({"num_experts_per_tok": 0}, "num_experts_per_tok is 0, must be at least 1"),
        ({"num_experts_per_tok": 7}, "num_experts_per_tok is 7, must be at most num_experts, 6"),
        ({"recv_capacity_per_rank": 100}, "recv_capacity_per_rank is 100, must be a multiple of 128"),
        ({"activation_type": "sillu"}, "activation_type is 'sillu', must be 'linear' or a function"),
    ]:
        check_errors(functools.partial(run_moe, **wrong), ValueError, f"^{message}")
    for wrong, message in [
        ({"quantizer_sets": te.QuantizerSet()}, "quantizer_sets is .*, must be a pair: for wi and for wo"),
        ({"quantizer_sets": (None, "fp8")}, r"quantizer_sets\[1\]: is a str, must have x, kernel, dgrad"),
        ({"x": X.astype(ml_dtypes.float8_e5m2)}, "x: dtype is float8_e5m2, must be"),
        ({"dtype": "float33"}, "dtype is 'float33', must be a dtype"),
    ]:
        check_errors(functools.partial(run_moe, **wrong), TypeError, f"^{message}")
    check_errors(lambda: te.grouped_dbias(X, np.array([2], np.int32)), ValueError, r"^grad: shape is \(2, 5, 8\), must")
    with pytest.raises(TypeError, match="ep_axis"):
        te.moe(X, GATE, WI, WO, num_experts=E, num_experts_per_tok=TOP_K)


DBIAS_CASES = [*itertools.product((np.float16, ml_dtypes.bfloat16, np.float32, np.float64), ([10], [3, 0, 5], [0]))]


@pytest.mark.parametrize(("dtype", "sizes"), sampled(DBIAS_CASES, 4, unpack=True))
def test_grouped_dbias(dtype, sizes, x64):
    grad = random(10, 7, seed=9).astype(dtype)
    got = jax.jit(te.grouped_dbias)(grad, np.array(sizes, np.int32))
    ends = np.cumsum(sizes)
    want = np.stack([grad[end - n : end].astype(np.float64).sum(0) for n, end in zip(sizes, ends, strict=True)])
    assert got.dtype == dtype
    close(got, want, float(ml_dtypes.finfo(dtype).eps) + 2e-6 * (dtype != np.float64))


def test_loss_and_dtypes():
    half = [a.astype(ml_dtypes.bfloat16) for a in (X, GATE, WI, WO)]

    def run(*args, **options):
        return jax.jit(lambda *args: run_moe(*args, **options))(*args)

    out, loss, _ = run(half[0], GATE, WI, WO, aux_loss_coeff=0.5, dtype=jnp.float16)
    logits = (half[0].reshape(-1, H).astype(np.float64) @ half[1].astype(np.float64)).astype(ml_dtypes.bfloat16)
    chosen = routing_oracle.route(logits, TOP_K, "softmax")[1]
    scores, counts = routing_oracle.softmax(logits.astype(np.float64)), np.bincount(chosen.reshape(-1), minlength=E)
    close(loss, E * 0.5 / (TOP_K * (B * S) ** 2) * (scores.sum(0) * counts).sum(), 1e-3)
    assert (out.dtype, loss.dtype, loss.shape) == (jnp.bfloat16, np.float16, ())
    close(out, expected(half)[0], 2**-5)  # bfloat16 logits: large tolerance
    exact = run(*half, dtype=jnp.float32)[0]
    np.testing.assert_array_equal(exact, run(half[0], GATE, WI, WO)[0])  # moe rounds matrices to the dtype of x
    close(run(dtype=jnp.bfloat16)[0], expected((X, GATE, WI, WO), dtype=ml_dtypes.bfloat16)[0])
