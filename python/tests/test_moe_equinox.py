"""The layer as a module of Equinox: what it computes, and that it learns."""

import pathlib
import sys

import equinox as eqx
import jax
import numpy as np
from raggemm import nn

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "examples"))

import moe_equinox


def test_learns_and_prints_each_loss(capsys):
    losses = moe_equinox.main(["--steps=12"])
    assert len(losses) == 12 and losses[-1] < 0.4 * losses[0]
    assert capsys.readouterr().out.splitlines() == [f"step {i}: loss {loss:.4f}" for i, loss in enumerate(losses)]


def test_is_the_layer_of_its_arrays():
    model = moe_equinox.MoE(nn.Shape(width=32, hidden=8, num_experts=4), 2, jax.random.key(1))
    x, y = moe_equinox.batch(jax.random.key(2))
    np.testing.assert_array_equal(
        eqx.filter_jit(model)(x).out, jax.jit(nn.apply, static_argnums=2)(model.params, x, 2).out
    )
    gradient = eqx.filter_grad(moe_equinox.loss_of)(model, x, y)
    assert all(np.any(g) for g in gradient.params.values()) and set(gradient.params) == set(model.params)
