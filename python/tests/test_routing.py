"""Tests route, load_balance_loss and z_loss against float64, one token at a time."""

import functools
import itertools

import jax
import numpy as np
import pytest
import raggemm
import routing_oracle as oracle
from arrays import random, sampled
from front_end_checks import check_errors
from hypothesis import given, settings
from hypothesis import strategies as st

T, E = 7, 12
LOGITS = random(T, E)
BIAS = random(E, seed=1)
close = functools.partial(np.testing.assert_allclose, rtol=2e-6, atol=1e-6)

# {name: (options of raggemm.route, the same options for routing_oracle.route)}
ROUTERS = {
    "softmax": ({}, {"score": "softmax"}),
    "pre_softmax": ({"pre_softmax": True}, {"score": "softmax", "pre_softmax": True}),
    "qwen3": ({"pre_softmax": True, "renormalize": True},
        {"score": "softmax", "pre_softmax": True, "renormalize": True}),
    "sigmoid": ({"score": "sigmoid"}, {"score": "sigmoid", "renormalize": True}),
    "sigmoid without renormalization": ({"score": "sigmoid", "renormalize": False}, {"score": "sigmoid"}),
    "deepseek_v2": ({"pre_softmax": True, "num_groups": 4, "group_top_k": 2, "scaling_factor": 16.0},
        {"score": "softmax", "pre_softmax": True, "groups": (4, 2, 1), "scaling_factor": 16.0}),
    "deepseek_v3": ({"score": "sigmoid", "num_groups": 3, "group_top_k": 2, "expert_bias": BIAS, "scaling_factor": 2.5},
        {"score": "sigmoid", "groups": (3, 2, 2), "bias": BIAS, "renormalize": True, "scaling_factor": 2.5}),
    "bias with softmax": ({"pre_softmax": True, "expert_bias": BIAS},
        {"score": "softmax", "pre_softmax": True, "bias": BIAS}),
    "sparsemixer": ({"score": "sparsemixer"}, {"score": "sparsemixer"}),
    "groups of logits": ({"num_groups": 6, "group_top_k": 3}, {"score": "softmax", "groups": (6, 3, 1)}),
    "groups of one expert with a bias": ({"score": "sigmoid", "num_groups": 12, "group_top_k": 5, "expert_bias": BIAS},
        {"score": "sigmoid", "groups": (12, 5, 1), "bias": BIAS, "renormalize": True}),
}  # fmt: skip


@functools.cache
def router(name):
    options = {key: x for key, x in ROUTERS[name][0].items() if key != "expert_bias"}
    return jax.jit(functools.partial(raggemm.route, top_k=4, **options))


@pytest.mark.parametrize("name", ROUTERS)
def test_route(name):
    options, oracle_options = ROUTERS[name]
    bias = {"expert_bias": options["expert_bias"]} if "expert_bias" in options else {}
    weights, experts = router(name)(LOGITS, **bias)
    want_weights, want_experts = oracle.route(LOGITS, 4, **oracle_options)
    np.testing.assert_array_equal(experts, want_experts)
    close(weights, want_weights, rtol=1e-5)
    assert (weights.dtype, experts.dtype) == (np.float32, np.int32)


@pytest.mark.parametrize("name", sampled(ROUTERS, 3))
def test_gradient_of_logits(name):
    """The choice of experts adds nothing to the gradient."""
    options, oracle_options = ROUTERS[name]
    target = random(T, 4, seed=2)
    got = jax.jit(jax.grad(lambda logits: (raggemm.route(logits, 4, **options)[0] * target).sum()))(LOGITS)
    want = oracle.gradient(lambda logits: (oracle.route(logits, 4, **oracle_options)[0] * target).sum(), LOGITS)
    close(got, want, rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("middle", [3, 0, -3])
def test_sparsemixer_of_near_logits(middle):
    """Most random logits are too far from each other to share a token's weights."""
    logits = (middle + 0.05 * random(T, E, seed=3)).astype(np.float32)
    target = random(T, 2, seed=2)

    def loss(logits):
        weights, experts = raggemm.route(logits, 2, score="sparsemixer")
        return (weights * target).sum(), (weights, experts)

    got, (weights, experts) = jax.jit(jax.grad(loss, has_aux=True))(logits)
    want_weights, want_experts = oracle.route(logits, 2, "sparsemixer")
    np.testing.assert_array_equal(experts, want_experts)
    close(weights, want_weights, rtol=1e-5)
    assert middle == 0 or (want_weights < 0.9).any(0).all()
    want = oracle.gradient(lambda logits: (oracle.route(logits, 2, "sparsemixer")[0] * target).sum(), logits)
    close(got, want, rtol=1e-4, atol=2e-5)


@settings(max_examples=20)
@given(st.integers(0, 2**32 - 1), st.sampled_from(sorted(ROUTERS)))
def test_ties_go_to_the_lower_index(seed, name):
    """No logit is negative. The sigmoids of x and -x add up to 1, so rounding could break the tie of two sums."""
    oracle_options, options = ROUTERS[name][1], {}
    rng = np.random.default_rng(seed)
    logits = rng.integers(0, 3, (T, E)).astype(np.float32)
    if "bias" in oracle_options:
        bias = rng.integers(0, 2, E).astype(np.float32)
        options, oracle_options = {"expert_bias": bias}, oracle_options | {"bias": bias}
    weights, experts = router(name)(logits, **options)
    want_weights, want_experts = oracle.route(logits, 4, **oracle_options)
    np.testing.assert_array_equal(experts, want_experts)
    close(weights, want_weights, rtol=1e-5)


def test_experts_of_other_groups_are_never_chosen():
    """An expert in a chosen group precedes experts of other groups, even if its logit is -infinity."""
    logits = np.full((1, 6), -np.inf, np.float32)
    logits[0, [2, 4]] = 3.0, 2.0
    weights, experts = raggemm.route(logits, 3, num_groups=3, group_top_k=2)
    assert experts.tolist() == [[2, 4, 3]]
    close(weights, [[*oracle.softmax(np.array([3.0, 2.0])), 0]])


def test_extreme_logits():
    """A NaN in the logits of a token affects no other token."""
    route = jax.jit(raggemm.route, static_argnames=("top_k", "score", "pre_softmax"))
    weights, experts = route(np.full((1, 4), -200.0, np.float32), 2, score="sigmoid")
    assert weights.tolist() == [[0, 0]] and experts.tolist() == [[0, 1]]
    logits = LOGITS.copy()
    logits[2, 5] = np.nan
    weights, experts = map(np.asarray, route(logits, 3, pre_softmax=True))
    others = np.arange(T) != 2
    close(weights[others], oracle.route(LOGITS, 3, "softmax", True)[0][others])
    assert np.isnan(weights[2]).all() and (experts >= 0).all() and (experts < E).all()


def test_no_tokens():
    route = jax.jit(lambda logits: raggemm.route(logits, 2, num_groups=2, group_top_k=1))
    weights, experts = route(np.zeros((0, 4), np.float32))
    assert weights.shape == experts.shape == (0, 2)
    assert jax.jit(raggemm.load_balance_loss)(np.zeros((0, 4), np.float32), experts) == 0
    assert jax.jit(raggemm.z_loss)(np.zeros((0, 4), np.float32)) == 0


def loss_in_float64(logits, experts, score):
    """Computes the loss by equation 4 of the Switch Transformer: E * sum over experts of share * mean probability.

    E is the number of experts, and share is an expert's share of the tokens.
    """
    tokens, k = np.shape(experts)
    scores = oracle.softmax(logits) if score == "softmax" else oracle.sigmoid(logits)
    if score == "sigmoid" and k > 1:
        scores = scores / scores.sum(1, keepdims=True)
    count = logits.shape[1]
    shares = [np.count_nonzero(np.asarray(experts) == e) / (tokens * k) for e in range(count)]
    return count * sum(shares[e] * scores[:, e].mean() for e in range(count))


@pytest.mark.parametrize(("score", "k"), list(itertools.product(["softmax", "sigmoid"], [1, 3])))
def test_load_balance_loss(score, k):
    experts = oracle.route(LOGITS, k, score)[1]
    experts[0, 0], experts[1, 0] = -1, E  # padding
    got = jax.jit(raggemm.load_balance_loss, static_argnames="score")(LOGITS, experts, score=score)
    assert got.dtype == np.float32
    close(got, loss_in_float64(LOGITS.astype(np.float64), experts, score))
    got = jax.jit(jax.grad(lambda x: raggemm.load_balance_loss(x, experts, score=score)))(LOGITS)
    close(got, oracle.gradient(lambda x: loss_in_float64(x, experts, score), LOGITS), rtol=1e-4)


def test_z_loss():
    want = lambda x: np.mean(np.log(np.exp(x).sum(1)) ** 2)  # noqa: E731
    close(raggemm.z_loss(LOGITS), want(LOGITS.astype(np.float64)))
    close(jax.jit(jax.grad(raggemm.z_loss))(LOGITS), oracle.gradient(want, LOGITS), rtol=1e-4)
    big = np.full((3, 4), 200.0, np.float32)
    close(raggemm.z_loss(big), (200 + np.log(4)) ** 2)


def test_errors():
    route = raggemm.route
    check_errors(lambda: route(LOGITS[0], 2), ValueError, r"^logits: shape is \(12,\), must be \[tokens, experts\]")
    check_errors(lambda: route(LOGITS.astype(int), 2), TypeError, "^logits: dtype is int")
    for k in (0, 13):
        check_errors(lambda k=k: route(LOGITS, k), ValueError, rf"^top_k is {k}, must be in \[1, 12\] for logits of")
    check_errors(lambda: route(LOGITS, 2, score="tanh"), ValueError, "^score is 'tanh', must be one of")
    options = {"score": "sigmoid", "pre_softmax": True}
    check_errors(lambda options=options: route(LOGITS, 2, **options), ValueError, "^pre_softmax is for score 'softmax'")
    for options in ({"expert_bias": BIAS}, {"num_groups": 3, "group_top_k": 1}):
        message = f"^{next(iter(options))} is given, but score is 'sparsemixer', which has none"
        check_errors(lambda options=options: route(LOGITS, 2, score="sparsemixer", **options), ValueError, message)
    check_errors(lambda: route(LOGITS, 2, num_groups=3), ValueError, "^num_groups is 3 and group_top_k None: give both")
    check_errors(lambda: route(LOGITS, 2, expert_bias=BIAS), ValueError, "^expert_bias is for scores of all experts")
    message = r"^scaling_factor: shape is \(1,\), must be \(\)"
    check_errors(lambda: route(LOGITS, 2, scaling_factor=np.ones(1)), ValueError, message)
    options = {"score": "sigmoid", "expert_bias": BIAS[1:]}
    message = r"^expert_bias: shape is \(11,\), must be \(12,\)"
    check_errors(lambda options=options: route(LOGITS, 2, **options), ValueError, message)
    groups = {
        (5, 1): "^num_groups is 5, must divide the 12 experts",
        (0, 1): "^num_groups is 0, must divide",
        (3, 4): r"^group_top_k is 4, must be in \[1, 3\], because num_groups is 3",
        (3, 0): r"^group_top_k is 0, must be in \[1, 3\]",
        (4, 1): "^top_k is 4, but 1 groups have 3 experts",
    }
    for (num_groups, group_top_k), message in groups.items():
        options = {"num_groups": num_groups, "group_top_k": group_top_k}
        check_errors(lambda options=options: route(LOGITS, 4, **options), ValueError, message)
    loss, experts = raggemm.load_balance_loss, np.zeros((T, 2), np.int32)
    check_errors(lambda: loss(LOGITS, experts[1:]), ValueError, r"^experts: shape is \(6, 2\), must have the 7 tokens")
    check_errors(lambda: loss(LOGITS, experts[0]), ValueError, r"^experts: shape is \(2,\), must be \[tokens, top_k\]")
    check_errors(lambda: loss(LOGITS, LOGITS), TypeError, "^experts: dtype is float32, must be int32")
    check_errors(lambda: loss(LOGITS, experts, score="no"), ValueError, "^score is 'no', must be one of")
    check_errors(lambda: raggemm.z_loss(LOGITS[0]), ValueError, "^logits: shape is")
