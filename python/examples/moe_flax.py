"""Trains a mixture-of-experts layer of raggemm.nn as a module of flax.nnx, on synthetic data.

    pip install flax optax && python python/examples/moe_flax.py [--steps=30]

There are a few kinds of tokens. Each kind has a matrix. The layer learns to multiply each token by the matrix of its
kind.
"""

import argparse
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import optax
import raggemm
from flax import nnx
from raggemm import nn

WIDTH, KINDS, TOKENS = 32, 4, 256


class MoE(nnx.Module):
    def __init__(self, shape: nn.Shape, top_k: int, rngs: nnx.Rngs):
        self.top_k = top_k
        self.params = nnx.Dict({name: nnx.Param(x) for name, x in nn.init(rngs.params(), shape).items()})

    def __call__(self, x: jax.Array) -> nn.Output:
        return nn.apply({name: x[...] for name, x in self.params.items()}, x, self.top_k)


def batch(key: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Returns random tokens, each near the center of its kind, and targets: each token times the matrix of its kind."""
    centers, maps = (jax.random.normal(jax.random.key(i), (KINDS, *s)) for i, s in enumerate([(WIDTH,), (WIDTH,) * 2]))
    kind, noise = jax.random.randint(key, (TOKENS,), 0, KINDS), jax.random.normal(key, (TOKENS, WIDTH))
    x = centers[kind] + 0.5 * noise
    return x, jnp.einsum("tk,tkn->tn", x, maps[kind] * WIDTH**-0.5)


def compute_loss(model: MoE, x: jax.Array, y: jax.Array) -> jax.Array:
    out, logits, experts = model(x)
    return jnp.mean((out - y) ** 2) + 0.01 * raggemm.load_balance_loss(logits, experts)


@nnx.jit
def train_step(model: MoE, optimizer: Any, x: jax.Array, y: jax.Array) -> jax.Array:
    loss, gradient = nnx.value_and_grad(compute_loss)(model, x, y)
    optimizer.update(model, gradient)
    return loss


def main(argv: Sequence[str] | None = None) -> list[float]:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=30)
    steps = parser.parse_args(argv).steps
    model = MoE(nn.Shape(width=WIDTH, hidden=64, num_experts=8), top_k=2, rngs=nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.adam(1e-2), wrt=nnx.Param)
    losses = []
    for step in range(steps):
        losses.append(float(train_step(model, optimizer, *batch(jax.random.key(step)))))
        print(f"step {step}: loss {losses[-1]:.4f}")
    return losses


if __name__ == "__main__":
    main()
