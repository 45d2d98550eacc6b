"""Activations in JAX, for derivatives and batches without a custom call. See include/raggemm/activation.h."""

import math

import jax
import jax.numpy as jnp

from raggemm._src.library import tables


def _swiglu_oai(gate: jax.Array, up: jax.Array) -> jax.Array:
    """Computes the activation of gpt-oss. Clamps up on both sides, and gate only from above."""
    gate = jnp.minimum(gate, 7)
    return gate * jax.nn.sigmoid(1.702 * gate) * (jnp.clip(up, -7, 7) + 1)


@jax.custom_jvp
def _normal_cdf(x: jax.Array) -> jax.Array:
    """Returns the standard normal distribution function.

    Has its own derivative, because jax 0.12.0.1 cannot differentiate erfc inside shard_map: its polynomial mixes values
    that vary over devices with values that do not.
    """
    return 0.5 * jax.lax.erfc(-math.sqrt(0.5) * x)


@_normal_cdf.defjvp
def _normal_cdf_jvp(primals: tuple[jax.Array], tangents: tuple[jax.Array]) -> tuple[jax.Array, jax.Array]:
    (x,), (x_dot,) = primals, tangents
    return _normal_cdf(x), x_dot * (jnp.exp(-0.5 * x * x) * (1 / math.sqrt(2 * math.pi)))


def _gelu_tanh(x: jax.Array) -> jax.Array:
    """Computes gelu_tanh with a sigmoid, as the kernels do.

    1 + tanh loses all digits if tanh is near -1, and XLA's tanh differs between versions.
    """
    return x * jax.nn.sigmoid(math.sqrt(8 / math.pi) * (x + 0.044715 * x**3))


# Functions of one array. With a gate, the result is activation(gate) * up.
_ACTIVATIONS = {
    "SILU": jax.nn.silu,
    "GELU": lambda x: x * _normal_cdf(x),
    "GELU_TANH": _gelu_tanh,
    "RELU": jax.nn.relu,
    "QUICK_GELU": lambda x: x * jax.nn.sigmoid(1.702 * x),
}
GATED_ONLY = {"SWIGLU_OAI": _swiglu_oai}  # functions of gate and up
ACTIVATIONS = tuple(map(str.upper, tables()["activations"]))  # values of the attribute `activation`


def apply_activation(activation: str, gate: jax.Array | None, up: jax.Array) -> jax.Array:
    if gate is None:
        return _ACTIVATIONS[activation](up)
    if activation in GATED_ONLY:
        return GATED_ONLY[activation](gate, up)
    return _ACTIVATIONS[activation](gate) * up
