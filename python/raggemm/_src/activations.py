"""The activation functions that include/raggemm/activation.h defines, in JAX."""

import math

import jax
import jax.numpy as jnp

from raggemm._src.library import tables


def _swiglu_oai(gate: jax.Array, up: jax.Array) -> jax.Array:
    gate = jnp.minimum(gate, 7)
    return gate * jax.nn.sigmoid(1.702 * gate) * (jnp.clip(up, -7, 7) + 1)


@jax.custom_jvp
def _normal_cdf(x: jax.Array) -> jax.Array:
    """Computes the normal cumulative distribution function.

    Its derivative is defined below, because jax 0.12.0.1 cannot differentiate erfc inside shard_map.
    """
    return 0.5 * jax.lax.erfc(-math.sqrt(0.5) * x)


@_normal_cdf.defjvp
def _normal_cdf_jvp(primals: tuple[jax.Array], tangents: tuple[jax.Array]) -> tuple[jax.Array, jax.Array]:
    (x,), (x_dot,) = primals, tangents
    return _normal_cdf(x), x_dot * (jnp.exp(-0.5 * x * x) * (1 / math.sqrt(2 * math.pi)))


def _gelu_tanh(x: jax.Array) -> jax.Array:
    """Computes gelu_tanh with a sigmoid, as the kernels do.

    The usual formula, 0.5 * x * (1 + tanh(...)), loses all digits if tanh is near -1.
    """
    return x * jax.nn.sigmoid(math.sqrt(8 / math.pi) * (x + 0.044715 * x**3))


# Functions of one value: the gate, or up if there is no gate.
_ACTIVATIONS = {
    "SILU": jax.nn.silu,
    "GELU": lambda x: x * _normal_cdf(x),
    "GELU_TANH": _gelu_tanh,
    "RELU": jax.nn.relu,
    "QUICK_GELU": lambda x: x * jax.nn.sigmoid(1.702 * x),
}
GATED_ONLY = {"SWIGLU_OAI": _swiglu_oai}  # functions of (gate, up)
ACTIVATIONS = tuple(map(str.upper, tables()["activations"]))  # allowed values of the attribute `activation`


def apply_activation(activation: str, gate: jax.Array | None, up: jax.Array) -> jax.Array:
    if gate is None:
        return _ACTIVATIONS[activation](up)
    if activation in GATED_ONLY:
        return GATED_ONLY[activation](gate, up)
    return _ACTIVATIONS[activation](gate) * up
