"""Tests permute and unpermute as methods of a stand-in for MaxText's RoutedMoE."""

import jax
import ml_dtypes
import numpy as np
import pytest
import routing_oracle as oracle
from arrays import random
from routed_moe import RoutedMoE

BATCH, SEQUENCE, H, E, K = 2, 3, 4, 5, 2
T = BATCH * SEQUENCE
X, LOGITS = random(BATCH, SEQUENCE, H), random(BATCH, SEQUENCE, E, seed=1)


def route(k=K):
    weights, experts = oracle.route(LOGITS.reshape(T, E), k, "softmax")
    return weights, experts


@pytest.mark.parametrize(("roll", "dtype"), [(None, np.float32), (3, ml_dtypes.bfloat16)])
def test_permute(dtype, roll):
    layer = RoutedMoE(E, dtype=dtype)
    permute = jax.jit(lambda x, logits: layer.permute(x, logits, None, False, None, roll))
    rows, order, weights, sizes, experts_of_rows, loss, updates, local_sizes = permute(X, LOGITS)
    assert loss is updates is local_sizes is None
    want_weights, experts = route()
    rolled_experts = (experts.reshape(-1) - (roll or 0)) % E
    want_order = np.argsort(rolled_experts, kind="stable")
    np.testing.assert_array_equal(order, want_order)
    np.testing.assert_array_equal(rows, X.reshape(T, H)[want_order // K].astype(dtype))
    np.testing.assert_array_equal(sizes, np.bincount(rolled_experts, minlength=E))
    np.testing.assert_array_equal(experts_of_rows, rolled_experts[want_order])
    assert (rows.dtype, weights.shape) == (dtype, (BATCH, SEQUENCE, K))
    np.testing.assert_allclose(np.asarray(weights, np.float64).reshape(T, K), want_weights, rtol=1e-2)


def test_gradients():
    layer, target = RoutedMoE(E), random(BATCH, SEQUENCE, H, seed=3)

    def loss(x, logits):
        rows, order, weights, *_ = layer.permute(x, logits, None)
        return (layer.unpermute(2 * rows, order, weights, BATCH, SEQUENCE) * target).sum()

    def want_loss(x, logits):
        weights = oracle.route(logits.reshape(T, E), K, "softmax")[0].sum(1)
        return (2 * x * weights.reshape(BATCH, SEQUENCE, 1) * target).sum()

    d_x, d_logits = jax.jit(jax.grad(loss, (0, 1)))(X, LOGITS)
    np.testing.assert_allclose(d_x, 2 * target, rtol=1e-5)
    want = oracle.gradient(lambda logits: want_loss(X.astype(np.float64), logits), LOGITS)
    np.testing.assert_allclose(d_logits, want, rtol=1e-4, atol=1e-5)


def test_llama4():
    """Each token has one expert. The score, a sigmoid, multiplies the expert's input, not the output."""
    layer = RoutedMoE(E, 1, block="llama4")
    rows, order, weights, *_ = jax.jit(lambda *x: layer.permute(*x, None))(X, LOGITS)
    scores = oracle.sigmoid(LOGITS.reshape(T, E).max(1).astype(np.float64))
    want = (X.reshape(T, H) * scores[:, None])[np.asarray(order)]
    np.testing.assert_allclose(rows, want, rtol=1e-5)
    out = jax.jit(lambda *x: layer.unpermute(*x, BATCH, SEQUENCE))(rows, order, weights)
    np.testing.assert_allclose(np.asarray(out).reshape(T, H), X.reshape(T, H) * scores[:, None], rtol=1e-5)


def test_load_balance_loss_and_bias_updates():
    layer = RoutedMoE(E, load_balance_loss_weight=0.5, routed_bias_update_rate=0.01)
    permute = jax.jit(lambda *x: layer.permute(*x, None, roll_to_expert_id=2))
    _, _, _, _, _, loss, updates, _ = permute(X, LOGITS)
    experts = route()[1]
    loss_experts, scores = loss
    np.testing.assert_array_equal(loss_experts.reshape(T, K), experts)
    np.testing.assert_allclose(scores, oracle.softmax(LOGITS.astype(np.float64)), rtol=1e-5)
    counts = np.bincount(experts.reshape(-1), minlength=E)
    np.testing.assert_allclose(updates, np.sign(T * K / E - counts) * 0.01, rtol=1e-6)


def test_ragged_sort_with_ring_of_experts_is_refused():
    layer = RoutedMoE(E, use_ragged_sort=True, use_ring_of_experts=True)
    with pytest.raises(NotImplementedError, match=r"^config\.use_ragged_sort and config\.use_ring"):
        layer.permute(X, LOGITS, None)
    with pytest.raises(NotImplementedError, match=r"^config\.use_ragged_sort and config\.use_ring"):
        layer.unpermute(X, None, None, BATCH, SEQUENCE)
    RoutedMoE(E, use_ragged_sort=True).permute(X, LOGITS, None)
