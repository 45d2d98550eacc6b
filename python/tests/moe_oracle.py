"""Computes moe_mlp in float64 by its definition. With xp=jax.numpy instead of NumPy, it can be differentiated."""

import math
import operator

import jax
import jax.numpy as jnp
import numpy as np


def _erf(xp, x):
    return jax.scipy.special.erf(x) if xp is jnp else np.vectorize(math.erf, otypes=[np.float64])(x)


def activated(xp, activation, gate, up):
    """Computes an activation: a name, or a raggemm.Activation with its numbers."""
    name = getattr(activation, "name", activation)
    alpha = getattr(activation, "alpha", 1.702)
    limit = getattr(activation, "limit", {"swiglu_oai": 7.0, "swiglu_clamped": 10.0}.get(name))

    def sigmoid(x):
        return (1 + xp.tanh(x / 2)) / 2  # This form of the sigmoid does not overflow.

    if limit is not None:
        gate, up = xp.minimum(gate, limit), xp.clip(up, -limit, limit)
    if name == "swiglu_oai":
        return gate * sigmoid(alpha * gate) * (up + 1)
    x = up if gate is None else gate
    match name:
        case "silu" | "swiglu_clamped":
            y = x * sigmoid(x)
        case "gelu":
            y = x * (1 + _erf(xp, x / math.sqrt(2))) / 2
        case "gelu_tanh":
            y = x * (1 + xp.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2
        case "relu":
            y = xp.where(x > 0, x, 0.0)
        case "relu2":
            y = xp.where(x > 0, x * x, 0.0)
        case "quick_gelu":
            y = x * sigmoid(alpha * x)
    return y if gate is None else y * up


def largest(xp, activation, gate, up):
    """Returns an upper bound of abs(activated()). gate, up: upper bounds of the magnitudes."""
    name = getattr(activation, "name", activation)
    x = up if gate is None else gate
    x = x * x if name == "relu2" else x
    return x if gate is None else x * (up + (name == "swiglu_oai"))


def _gate_and_up(xp, values, h, g, merged, transposed, multiply):
    def product(name):
        w = values[f"w_{name}"][g]
        y = multiply(h, w.T if transposed else w)
        return y + values[f"b_{name}"][g] if f"b_{name}" in values else y

    up = product("up")
    if merged == "halves":
        return up[:, : up.shape[1] // 2], up[:, up.shape[1] // 2 :]
    if merged == "interleaved":
        return up[:, 0::2], up[:, 1::2]
    return product("gate") if "w_gate" in values else None, up


def mlp(
    values,
    row_tokens,
    sizes,
    activation="silu",
    merged=None,
    transposed=(False, False),
    first=0,
    xp=np,
    activate=activated,
    rounded=lambda a: a,
    on_input=False,
    multiply=operator.matmul,
):
    """Computes the result of moe_mlp.

    Args:
      values: float64 arrays by the names of moe_mlp's arguments.
      row_tokens, sizes: NumPy integers, as for moe_mlp.
      first: group of the first matrix of the weights.
      activate: function with the arguments of activated().
      rounded: function that rounds the result of the activation.
      on_input: True if row_weights multiply the tokens.
      multiply: function that multiplies rows by a matrix.
    """
    x, out, start = values["x"], 0.0, 0
    for group, size in enumerate(np.asarray(sizes).tolist()):
        rows, g = np.arange(start, start + size), group - first
        start += size
        if not 0 <= g < len(values["w_up"]):
            continue
        tokens = np.asarray(row_tokens)[rows]
        weights = values["row_weights"][rows][:, None] if "row_weights" in values else 1.0
        h = x[tokens] * weights if on_input else x[tokens]
        gate, up = _gate_and_up(xp, values, h, g, merged, transposed[0], multiply)
        down = values["w_down"][g]
        d = multiply(rounded(activate(xp, activation, gate, up)), down.T if transposed[1] else down)
        if "b_down" in values:
            d = d + values["b_down"][g]
        d = d if on_input else d * weights
        out = out + (np.arange(len(x))[:, None] == tokens[None]).astype(np.float64) @ d
    return out
