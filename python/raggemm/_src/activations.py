"""The activations that include/raggemm/activation.h defines: their names, their numbers, and their formulas in JAX."""

import dataclasses
import math
import numbers
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from raggemm._src.library import tables

_ROWS = {row["name"]: row for row in tables()["activations"]}


@dataclasses.dataclass(frozen=True)
class Activation:
    """An activation with its numbers. Functions also take the name alone, for the default numbers.

    In the table, x is the gate, or up if there is no gate. A gated activation is multiplied by up. The last two
    activations need a gate, and clamp first: gate to at most `limit`, and up to [-limit,limit].

    | name             | formula                                   | alpha | limit |
    |------------------|-------------------------------------------|-------|-------|
    | "silu"           | x * sigmoid(x)                            |       |       |
    | "gelu"           | x * Phi(x), by erf                        |       |       |
    | "gelu_tanh"      | the tanh approximation of gelu            |       |       |
    | "relu"           | max(x, 0)                                 |       |       |
    | "relu2"          | max(x, 0)^2, as in Nemotron-H             |       |       |
    | "quick_gelu"     | x * sigmoid(alpha * x)                    | 1.702 |       |
    | "swiglu_oai"     | gate * sigmoid(alpha * gate) * (up + 1)   | 1.702 | 7     |
    | "swiglu_clamped" | gate * sigmoid(gate) * up, as DeepSeek-V4 |       | 10    |

    Attributes:
      name: a name of the table (else ValueError).
      alpha, limit: numbers that are positive and finite in float32 (else ValueError), or None for the default in the
        table. A number that the activation does not take is a ValueError. They must be known when tracing.
    """

    name: str
    alpha: float | None = None
    limit: float | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or self.name not in _ROWS:
            raise ValueError(f"activation is {self.name!r}, must be one of {', '.join(map(repr, _ROWS))}")
        for field in ("alpha", "limit"):
            given, default = getattr(self, field), _ROWS[self.name].get(field)
            if given is not None and default is None:
                raise ValueError(f"{field} is {given!r}, but {self.name!r} takes no {field}")
            object.__setattr__(self, field, default if given is None else _check_number(field, given))

    @property
    def needs_gate(self) -> bool:
        return _ROWS[self.name]["needs_gate"]


def _check_number(name: str, x: Any) -> float:
    if not isinstance(x, numbers.Real) or isinstance(x, bool):
        raise TypeError(f"{name} is {x!r}, must be a number that is known when tracing")
    with np.errstate(over="ignore"):
        rounded = np.float32(float(x))
    if not 0 < rounded < np.inf:
        raise ValueError(f"{name} is {x!r}, must be positive and finite in float32")
    return float(x)


def as_activation(x: Any) -> Activation:
    return x if isinstance(x, Activation) else Activation(x)


def activation_attributes(activation: Activation) -> dict[str, str | np.float32]:
    """Returns the attributes of the custom calls. Numbers that have the default are left out."""
    attributes: dict[str, str | np.float32] = {"activation": activation.name.upper()}
    for field in ("alpha", "limit"):
        x = getattr(activation, field)
        if x is not None and np.float32(x) != np.float32(_ROWS[activation.name][field]):
            attributes[f"activation_{field}"] = np.float32(x)
    return attributes


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


# Functions of (x, alpha). x is the gate, or up if there is no gate.
_FUNCTIONS = {
    "silu": lambda x, _: jax.nn.silu(x),
    "gelu": lambda x, _: x * _normal_cdf(x),
    "gelu_tanh": lambda x, _: _gelu_tanh(x),
    "relu": lambda x, _: jax.nn.relu(x),
    "relu2": lambda x, _: jnp.square(jax.nn.relu(x)),
    "quick_gelu": lambda x, alpha: x * jax.nn.sigmoid(alpha * x),
    "swiglu_oai": lambda x, alpha: x * jax.nn.sigmoid(alpha * x),
    "swiglu_clamped": lambda x, _: jax.nn.silu(x),
}


def apply_activation(activation: Activation, gate: jax.Array | None, up: jax.Array) -> jax.Array:
    function, limit = _FUNCTIONS[activation.name], activation.limit
    if gate is None:
        return function(up, activation.alpha)
    if limit is not None:
        gate, up = jnp.minimum(gate, limit), jnp.clip(up, -limit, limit)
    return function(gate, activation.alpha) * (up + 1 if activation.name == "swiglu_oai" else up)
