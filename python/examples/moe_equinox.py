"""A mixture-of-experts layer as a module of Equinox, over raggemm.nn, trained on synthetic data.

    pip install equinox optax && python python/examples/moe_equinox.py [--steps=30]

Every token belongs to one of a few kinds, each with a linear map of its own, which the layer has to find.
"""

import argparse
from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
import raggemm
from raggemm import nn

WIDTH, KINDS, TOKENS = 32, 4, 256
OPTIMIZER = optax.adam(1e-2)


class MoE(eqx.Module):
    """Its parameters are those of raggemm.nn.init, by their names."""

    params: dict[str, jax.Array]
    top_k: int = eqx.field(static=True)

    def __init__(self, shape: nn.Shape, top_k: int, key: jax.Array):
        self.params = nn.init(key, shape)
        self.top_k = top_k

    def __call__(self, x: jax.Array) -> nn.Output:
        return nn.apply(self.params, x, self.top_k)


def batch(key: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Tokens around the center of their kind, and what its map makes of them."""
    centers, maps = (jax.random.normal(jax.random.key(i), (KINDS, *s)) for i, s in enumerate([(WIDTH,), (WIDTH,) * 2]))
    kind, noise = jax.random.randint(key, (TOKENS,), 0, KINDS), jax.random.normal(key, (TOKENS, WIDTH))
    x = centers[kind] + 0.5 * noise
    return x, jnp.einsum("tk,tkn->tn", x, maps[kind] * WIDTH**-0.5)


def loss_of(model: MoE, x: jax.Array, y: jax.Array) -> jax.Array:
    out, logits, experts = model(x)
    return jnp.mean((out - y) ** 2) + 0.01 * raggemm.load_balance_loss(logits, experts)


@eqx.filter_jit
def train_step(model: MoE, state: Any, x: jax.Array, y: jax.Array) -> tuple[MoE, Any, jax.Array]:
    loss, gradient = eqx.filter_value_and_grad(loss_of)(model, x, y)
    updates, state = OPTIMIZER.update(gradient, state)
    return eqx.apply_updates(model, updates), state, loss


def main(argv: Sequence[str] | None = None) -> list[float]:
    """The loss of each step."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=30)
    steps = parser.parse_args(argv).steps
    model = MoE(nn.Shape(width=WIDTH, hidden=64, num_experts=8), top_k=2, key=jax.random.key(0))
    state = OPTIMIZER.init(eqx.filter(model, eqx.is_inexact_array))
    losses = []
    for step in range(steps):
        model, state, loss = train_step(model, state, *batch(jax.random.key(step)))
        losses.append(float(loss))
        print(f"step {step}: loss {losses[-1]:.4f}")
    return losses


if __name__ == "__main__":
    main()
