"""Tests the results and the training of the example with a flax.nnx module."""

import pathlib
import sys

import jax
import numpy as np
from flax import nnx
from raggemm import nn

sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "examples"))

import moe_flax


def test_learns_and_prints_each_loss(capsys):
    losses = moe_flax.main(["--steps=12"])
    assert len(losses) == 12 and losses[-1] < 0.4 * losses[0]
    assert capsys.readouterr().out.splitlines() == [f"step {i}: loss {loss:.4f}" for i, loss in enumerate(losses)]


def test_module_computes_nn_apply():
    model = moe_flax.MoE(nn.Shape(width=32, hidden=8, num_experts=4), 2, nnx.Rngs(1))
    arrays = {name: x[...] for name, x in model.params.items()}
    x, y = moe_flax.batch(jax.random.key(2))
    np.testing.assert_array_equal(nnx.jit(model)(x).out, jax.jit(nn.apply, static_argnums=2)(arrays, x, 2).out)
    gradient = nnx.grad(moe_flax.compute_loss)(model, x, y)
    gradients = {name: x[...] for name, x in gradient["params"].items()}
    assert all(np.any(g) for g in gradients.values()) and set(gradients) == set(arrays)
