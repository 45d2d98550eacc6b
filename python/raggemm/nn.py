"""A mixture-of-experts layer as functions of a dict of arrays, for any framework or none.

    params = nn.init(jax.random.key(0), nn.Shape(width=64, hidden=128, num_experts=8))
    out, logits, chosen = nn.apply(params, x, top_k=2)
    loss += 0.01 * raggemm.load_balance_loss(logits, chosen)

apply is route, sort_by_expert and moe_mlp. The experts' matrices may be QuantizedTensors.
"""

import inspect
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from raggemm._functions.moe_mlp import MLP_FLOATS, moe_mlp
from raggemm._functions.routing import route, sort_by_expert
from raggemm._functions.tensors import check_type, count, dtype_of, float_array, weight_parts
from raggemm._primitive.jax_versions import gathered

__all__ = ["Output", "Shape", "apply", "init"]

_KEYS = ("router", "w_up", "w_down", "w_gate", "expert_bias")
_OPTIONAL = ("w_gate", "expert_bias")
_KEYWORDS = [name for name, x in inspect.signature(route).parameters.items() if x.kind is x.KEYWORD_ONLY]
_ROUTING = tuple(name for name in _KEYWORDS if name not in _KEYS)


class Shape(NamedTuple):
    """The sizes of a layer."""

    width: int  # of a token, H
    hidden: int  # of an expert, I
    num_experts: int  # G


class Output(NamedTuple):
    """What apply gives: the second and third are for losses of the router."""

    out: jax.Array  # of the shape and dtype of x
    logits: jax.Array  # float32 [T,G]
    experts: jax.Array  # int32 [T,k], those that were chosen


def init(key: jax.Array, shape: Shape, dtype: Any = jnp.float32) -> dict[str, jax.Array]:
    """The arrays of a layer, normal with a standard deviation of one over the root of what is summed.

    Returns:
      "router" float32 [H,G]; "w_gate" and "w_up" [G,H,I] and "w_down" [G,I,H] of dtype.
    """
    if not isinstance(shape, tuple | list) or len(shape) != len(Shape._fields):
        raise TypeError(f"shape is {shape!r}, must be {', '.join(Shape._fields)}")
    width, hidden, experts = (count(f"shape.{name}", n, 1) for name, n in zip(Shape._fields, shape, strict=True))
    dtype = dtype_of("dtype", dtype)
    check_type("dtype", dtype, MLP_FLOATS)
    shapes = {
        "router": (width, experts),
        "w_gate": (experts, width, hidden),
        "w_up": (experts, width, hidden),
        "w_down": (experts, hidden, width),
    }
    keys = dict(zip(shapes, jax.random.split(key, len(shapes)), strict=True))

    def normal(name: str) -> jax.Array:
        own = jnp.float32 if name == "router" else dtype
        return (jax.random.normal(keys[name], shapes[name], jnp.float32) * shapes[name][-2] ** -0.5).astype(own)

    return {name: normal(name) for name in shapes}


def _check(params: Any, routing: dict[str, Any], shape: tuple[int, ...]) -> None:
    """What apply is given, but for x itself."""
    if not isinstance(params, Mapping):
        raise TypeError(f"params: is a {type(params).__name__}, must be a dict of arrays")
    if missing := [key for key in _KEYS if key not in params and key not in _OPTIONAL]:
        raise ValueError(f"params: has no {missing[0]!r}, but {list(params)}")
    if unknown := [key for key in params if key not in _KEYS]:
        raise ValueError(f"params: {unknown[0]!r} is no array of this layer, which are {list(_KEYS)}")
    if "expert_bias" in routing:
        raise ValueError("expert_bias: is no argument of apply, but an array of params")
    if unknown := [name for name in routing if name not in _ROUTING]:
        raise ValueError(f"{unknown[0]}: is no argument of apply, nor of route: {list(_ROUTING)}")
    router = float_array("params['router']", params["router"]).shape
    if len(router) != 2 or shape[-1:] != router[:1]:
        raise ValueError(f"x: shape is {shape}, must end with the rows of params['router'], whose shape is {router}")
    for name, axes, hidden in (("w_up", f"[G,{router[0]},I]", 1), ("w_down", f"[G,I,{router[0]}]", 2)):
        matrix, w = f"params[{name!r}]", params[name]
        data, _, packed_columns = weight_parts(matrix, w)
        of = data.shape if packed_columns is None else w.shape
        if len(of) != 3 or of[hidden] != router[0]:
            raise ValueError(f"{matrix}: shape is {of}, must be {axes}")
        if of[0] != router[1]:
            raise ValueError(f"params: router has {router[1]} experts, but {name} has {of[0]}")


def apply(
    params: dict[str, Any],
    x: Any,
    top_k: int,
    activation: str = "silu",
    weight_on: str = "output",
    **routing: Any,
) -> Output:
    """The experts' answers to each token, weighted by the router.

    Args:
      params: as of init. "w_gate" may be absent; an "expert_bias" [G] is the one of route. ValueError for other keys.
      x: [...,H], of float16, bfloat16 or float32.
      top_k: experts of a token.
      activation, weight_on: as moe_mlp has them.
      routing: the keyword arguments of route, but for expert_bias.
    """
    x = float_array("x", x)
    _check(params, routing, x.shape)
    tokens = gathered(x).reshape(-1, x.shape[-1])
    logits = jnp.matmul(tokens.astype(jnp.float32), jnp.asarray(params["router"], jnp.float32), precision="highest")
    row_weights, chosen = route(logits, top_k, expert_bias=params.get("expert_bias"), **routing)
    rows = sort_by_expert(chosen, logits.shape[1])
    row_weights = gathered(row_weights).reshape(-1)[rows.order]
    matrices = (params["w_up"], params["w_down"])
    routed = (rows.row_tokens, row_weights, rows.group_sizes)
    gate = params.get("w_gate")
    out = moe_mlp(tokens, *routed, *matrices, w_gate=gate, activation=activation, weight_on=weight_on)
    return Output(out.reshape(x.shape), logits, chosen)
