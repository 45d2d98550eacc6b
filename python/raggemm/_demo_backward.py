"""Every product of the expert block's derivative on raggemm, so that each can be checked on its own inputs."""

from typing import NamedTuple

import jax

from raggemm._expert_products import Products, distance, gated_product
from raggemm._moe_layers import Weights
from raggemm.ops import gmm


class Backward(NamedTuple):
    """What the derivative of the loss computes: cotangents, bfloat16 like their primal or float32, and gradients."""

    dy: jax.Array
    dgated: jax.Array
    dgate: jax.Array
    dup: jax.Array
    dx_gate: jax.Array  # x's gradient is the sum of these two
    dx_up: jax.Array
    dweights: Weights


def backward_products(x: jax.Array, weights: Weights, sizes: jax.Array, target: jax.Array) -> tuple[Products, Backward]:
    """The derivative of the loss of raggemm's block, one product after the other, with what goes between them."""

    def product(rows, matrices):
        return jax.vjp(lambda a, b: gmm(a, b, sizes), rows, matrices)

    gate, gate_transpose = product(x, weights.gate)
    up, up_transpose = product(x, weights.up)
    gated, gated_transpose = jax.vjp(gated_product, gate, up)
    y, y_transpose = product(gated, weights.down)
    dy = jax.grad(distance)(y, target)
    dgated, ddown_weights = y_transpose(dy)
    dgate, dup = gated_transpose(dgated)
    dx_gate, dgate_weights = gate_transpose(dgate)
    dx_up, dup_weights = up_transpose(dup)
    dweights = Weights(dgate_weights, dup_weights, ddown_weights)
    return Products(gate, up, gated, y), Backward(dy, dgated, dgate, dup, dx_gate, dx_up, dweights)
