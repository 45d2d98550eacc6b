"""A mixture-of-experts layer as functions of a dict of arrays, for any framework or none.

    params = nn.init(jax.random.key(0), nn.Shape(width=64, hidden=128, num_experts=8))
    out, logits, chosen = nn.apply(params, x, top_k=2)
    loss += 0.01 * raggemm.load_balance_loss(logits, chosen)

apply is route, sort_by_expert and moe_mlp. All matrices but the routers' may be QuantizedTensors or PackedWeights.

The layers of known models, with the arrays that they have beside those of init:

    Mixtral       apply(params, x, 2)
    Qwen3-MoE     apply(params, x, 8, pre_softmax=True, renormalize=True)
    OLMoE         apply(params, x, 8, pre_softmax=True)
    Qwen2-MoE     apply(params, x, 4, pre_softmax=True), with shared_up, shared_gate, shared_down, shared_router
    DeepSeek-V2   apply(params, x, 6, pre_softmax=True, num_groups=8, group_top_k=3, scaling_factor=16), with
                  shared_up, shared_gate, shared_down
    DeepSeek-V3   apply(params, x, 8, score="sigmoid", num_groups=8, group_top_k=4, scaling_factor=2.5), with
                  expert_bias, shared_up, shared_gate, shared_down
    Llama 4       apply(params, x, 1, score="sigmoid", weight_on="input"), with shared_up, shared_gate, shared_down
    gpt-oss       apply(params, x, 4, "swiglu_oai", merged="interleaved"), with router_bias, b_up, b_down, and no w_gate

Checkpoints that store matrices [outputs, inputs], as torch's Linear does, want transpose_up=True, transpose_down=True.
"""

import inspect
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from raggemm._src import checks, versions
from raggemm._src.mlp import MLP_FLOATS, moe_mlp
from raggemm._src.routing import route, sort_by_expert
from raggemm._src.tensors import PackedWeights, QuantizedTensor

__all__ = ["Output", "Shape", "apply", "init"]

_REQUIRED = ("router", "w_up", "w_down")
_BIASES = ("b_up", "b_gate", "b_down")
_SHARED = ("shared_up", "shared_gate", "shared_down")
_KEYS = (*_REQUIRED, "w_gate", *_BIASES, "router_bias", "expert_bias", *_SHARED, "shared_router")
_KEYWORDS = [name for name, x in inspect.signature(route).parameters.items() if x.kind is x.KEYWORD_ONLY]
_ROUTING = tuple(name for name in _KEYWORDS if name not in _KEYS)


class Shape(NamedTuple):
    """The sizes of a layer."""

    width: int  # width of a token, H
    hidden: int  # hidden width of an expert, I
    num_experts: int  # G


class Output(NamedTuple):
    """The results of apply. The second and third are for losses of the router."""

    out: jax.Array  # has the shape and dtype of x
    logits: jax.Array  # float32 [T,G]
    experts: jax.Array  # int32 [T,k], those that were chosen


def init(key: jax.Array, shape: Shape, dtype: Any = jnp.float32) -> dict[str, jax.Array]:
    """The arrays of a layer, normal with a standard deviation of one over the root of what is summed.

    Returns:
      "router" float32 [H,G]; "w_gate" and "w_up" [G,H,I] and "w_down" [G,I,H] of dtype.
    """
    if not isinstance(shape, tuple | list) or len(shape) != len(Shape._fields):
        raise TypeError(f"shape is {shape!r}, must be {', '.join(Shape._fields)}")
    width, hidden, experts = (
        checks.check_count(f"shape.{name}", n, 1) for name, n in zip(Shape._fields, shape, strict=True)
    )
    dtype = checks.as_dtype("dtype", dtype, MLP_FLOATS)
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


def _check_names(params: Any, routing: dict[str, Any]) -> None:
    if not isinstance(params, Mapping):
        raise TypeError(f"params: is a {type(params).__name__}, must be a dict of arrays")
    if missing := [key for key in _REQUIRED if key not in params]:
        raise ValueError(f"params: has no {missing[0]!r}, but {list(params)}")
    if unknown := [key for key in params if key not in _KEYS]:
        raise ValueError(f"params: {unknown[0]!r} is no array of this layer, which are {list(_KEYS)}")
    shared = [key for key in (*_SHARED, "shared_router") if params.get(key) is not None]
    if lacking := [key for key in ("shared_up", "shared_down") if shared and key not in shared]:
        raise ValueError(f"params: has no {lacking[0]!r}, but {shared[0]!r}")
    if "expert_bias" in routing:
        raise ValueError("expert_bias: is no argument of apply, but an array of params")
    if unknown := [name for name in routing if name not in _ROUTING]:
        raise ValueError(f"{unknown[0]}: is no argument of apply, nor of route: {list(_ROUTING)}")


def _check_matrix(params: dict[str, Any], name: str, hidden: int, form: dict[str, Any]) -> tuple[int, int]:
    """Checks that the axis of `hidden` elements is where it must be. Returns the groups, and the other axis' extent."""
    w, side = _of_groups(params, name), "down" if name.endswith("down") else "up"
    data, _, packed = checks.split_weights(f"params[{name!r}]", w, MLP_FLOATS)
    own = data.shape if packed is None else w.shape
    is_matrix = name in _SHARED and packed is None
    is_last = (side == "down") != (packed is None and form[f"transpose_{side}"])
    shape = own[1:] if is_matrix else own
    if len(own) != 3 or own[2 if is_last else 1] != hidden:
        axes = ["I", hidden] if is_last else [hidden, "I"]
        wanted = ",".join(map(str, axes if is_matrix else ["G", *axes]))
        hint = checks.packed_int4_hint(data.dtype, own[2 if is_last else 1], hidden) if len(own) == 3 else ""
        raise ValueError(f"params[{name!r}]: shape is {shape}, must be [{wanted}]{hint}")
    return own[0], own[1 if is_last else 2]


def _check_shared(params: dict[str, Any], hidden: int, form: dict[str, Any]) -> None:
    given = [name for name in _SHARED if params.get(name) is not None]
    extents = {name: _check_matrix(params, name, hidden, form) for name in given}
    if extents and form["merged"] is not None and "shared_gate" in extents:
        raise ValueError("params['shared_gate']: is given with merged, where shared_up has the gate")
    for name, (groups, inner) in extents.items():
        wanted = extents["shared_down"][1] * (2 if name == "shared_up" and form["merged"] is not None else 1)
        if groups != 1:
            raise ValueError(f"params[{name!r}]: has {groups} experts, must be one")
        if inner != wanted:
            raise ValueError(f"params[{name!r}]: has {inner} columns, must have {wanted}, as shared_down has it")


def _check_arrays(params: dict[str, Any], shape: tuple[int, ...], form: dict[str, Any]) -> None:
    """Checks the arrays that moe_mlp knows by other names than the caller; shape: that of x."""
    router = checks.as_float_array("params['router']", params["router"]).shape
    if len(router) != 2 or shape[-1:] != router[:1]:
        raise ValueError(f"x: shape is {shape}, must end with the rows of params['router'], whose shape is {router}")
    for name in ("w_up", "w_down"):
        groups, _ = _check_matrix(params, name, router[0], form)
        if groups != router[1]:
            raise ValueError(f"params: router has {router[1]} experts, but {name} has {groups}")
    _check_shared(params, router[0], form)
    for name, wanted in (("router_bias", router[1:]), ("shared_router", (router[0], 1))):
        if (x := params.get(name)) is not None and (
            own := checks.as_float_array(f"params[{name!r}]", x).shape
        ) != wanted:
            raise ValueError(f"params[{name!r}]: shape is {own}, must be {wanted}")


def _of_groups(params: dict[str, Any], name: str) -> Any:
    """A matrix of params, that of a shared expert as one of a single group."""
    w = params.get(name)
    if w is None or name not in _SHARED or isinstance(w, PackedWeights):
        return w
    if not checks.is_quantized(w):
        return checks.as_array(f"params[{name!r}]", w)[None]
    w = checks.as_quantized_tensor(f"params[{name!r}]", w)
    factors = (x[None] if x is not None and x.ndim == w.ndim else x for x in (w.scale, w.zero_point))
    return QuantizedTensor(w.data[None], *factors)


def _float32(x: jax.Array, matrix: Any) -> jax.Array:
    return jnp.matmul(x.astype(jnp.float32), jnp.asarray(matrix, jnp.float32), precision="highest")


def _experts(
    tokens: jax.Array, rows: tuple[Any, Any, Any], matrices: list[Any], form: dict[str, Any], **options: Any
) -> jax.Array:
    """moe_mlp, where `form` transposes no PackedWeights; rows: its next three arguments, matrices: up, gate, down."""
    up, gate, down = matrices
    for side, w in (("up", up), ("down", down)):
        options[f"transpose_{side}"] = form[f"transpose_{side}"] and not isinstance(w, PackedWeights)
    return moe_mlp(tokens, *rows, up, down, w_gate=gate, **form | options)


def _shared(params: dict[str, Any], tokens: jax.Array, form: dict[str, Any]) -> jax.Array:
    """Returns the answer of the shared expert to every token, float32: an MLP of one group."""
    count, weights = tokens.shape[0], None
    if params.get("shared_router") is not None:
        weights = jax.nn.sigmoid(_float32(tokens, params["shared_router"]))[:, 0]
    rows = jnp.arange(count, dtype=jnp.int32), weights, jnp.full(1, count, jnp.int32)
    matrices = [_of_groups(params, name) for name in _SHARED]
    return _experts(tokens, rows, matrices, form, preferred_element_type=jnp.float32)


def apply(
    params: dict[str, Any],
    x: Any,
    top_k: int,
    activation: str = "silu",
    weight_on: str = "output",
    *,
    merged: str | None = None,
    transpose_up: bool = False,
    transpose_down: bool = False,
    **routing: Any,
) -> Output:
    """The experts' answers to each token, weighted by the router, and the shared expert's.

    Args:
      params: as of init. "w_gate" may be absent, and there may be
        - "b_up", "b_gate" [G,I] and "b_down" [G,H];
        - "router_bias" [G], which is added to the logits, and "expert_bias" [G], route's, which only chooses;
        - "shared_up", "shared_gate" [H,S] and "shared_down" [S,H], an expert of every token, which has no biases: its
          answer is added to the others in float32. Without "shared_gate" its activation is of shared_up. Several such
          experts are one with their columns side by side. PackedWeights of it are [1,H,S] and [1,S,H];
        - "shared_router" [H,1]: the shared expert's answer to x is multiplied by sigmoid(x @ shared_router).
        ValueError for other keys.
      x: [...,H], of float16, bfloat16 or float32.
      top_k: experts of a token.
      activation, merged, transpose_up, transpose_down: as moe_mlp has them, for the shared expert too. PackedWeights
        have one form, whatever is transposed.
      weight_on: as moe_mlp has it.
      routing: the keyword arguments of route, but for expert_bias.
    """
    x = checks.as_float_array("x", x, MLP_FLOATS)
    form: dict[str, Any] = {"activation": activation, "merged": merged}
    form["transpose_up"] = checks.check_bool("transpose_up", transpose_up)
    form["transpose_down"] = checks.check_bool("transpose_down", transpose_down)
    _check_names(params, routing)
    _check_arrays(params, x.shape, form)
    tokens = versions.replicate_explicit_axes(x).reshape(-1, x.shape[-1])
    logits = _float32(tokens, params["router"])
    if params.get("router_bias") is not None:
        logits += jnp.asarray(params["router_bias"], jnp.float32)[None]
    row_weights, chosen = route(logits, top_k, expert_bias=params.get("expert_bias"), **routing)
    by_expert = sort_by_expert(chosen, logits.shape[1])
    rows = (
        by_expert.row_tokens,
        versions.replicate_explicit_axes(row_weights).reshape(-1)[by_expert.order],
        by_expert.group_sizes,
    )
    matrices = [params.get(name) for name in ("w_up", "w_gate", "w_down")]
    options = {name: params.get(name) for name in _BIASES} | {"weight_on": weight_on}
    if params.get("shared_up") is None:
        out = _experts(tokens, rows, matrices, form, **options)
    else:
        out = _experts(tokens, rows, matrices, form, preferred_element_type=jnp.float32, **options)
        out = (out + _shared(params, tokens, form)).astype(x.dtype)
    return Output(out.reshape(x.shape), logits, chosen)
