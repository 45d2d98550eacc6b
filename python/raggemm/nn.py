"""A mixture-of-experts layer as functions of a dict of arrays, for use with any framework or none.

    params = nn.init(jax.random.key(0), nn.Shape(width=64, hidden=128, num_experts=8))
    out, logits, chosen = nn.apply(params, x, top_k=2)
    loss += 0.01 * raggemm.load_balance_loss(logits, chosen)

apply calls route, sort_by_expert and moe_mlp. All matrices except router and shared_router may be QuantizedTensors or
PackedWeights.

Calls for known models, with the arrays of init and the arrays named here:

    Mixtral       apply(params, x, 2)
    Qwen3-MoE     apply(params, x, 8, pre_softmax=True, renormalize=True)
    OLMoE         apply(params, x, 8, pre_softmax=True)
    Qwen2-MoE     apply(params, x, 4, pre_softmax=True), with shared_up, shared_gate, shared_down, shared_router
    Phi-3.5-MoE   apply(params, x, 2, score="sparsemixer")
    DeepSeek-V2   apply(params, x, 6, pre_softmax=True, num_groups=8, group_top_k=3, scaling_factor=16), with
                  shared_up, shared_gate, shared_down
    DeepSeek-V3   apply(params, x, 8, score="sigmoid", num_groups=8, group_top_k=4, scaling_factor=2.5), with
                  expert_bias, shared_up, shared_gate, shared_down
    Llama 4       apply(params, x, 1, score="sigmoid", weight_on="input"), with shared_up, shared_gate, shared_down
    gpt-oss       apply(params, x, 4, "swiglu_oai", merged="interleaved"), with router_bias, b_up, b_down; no w_gate
    Nemotron-3    apply(params, x, 6, "relu2", score="sigmoid", scaling_factor=2.5), with expert_bias, shared_up,
                  shared_down; no w_gate

Pass transpose_up=True and transpose_down=True for matrices stored as [outputs, inputs], the layout of torch's Linear.
"""

import inspect
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from raggemm._src import arguments, checks, versions
from raggemm._src.activations import Activation
from raggemm._src.mlp import MLP_FLOATS, moe_mlp
from raggemm._src.routing import route, sort_by_expert
from raggemm._src.tensors import PackedWeights, QuantizedTensor

__all__ = ["Output", "Shape", "apply", "init"]

_REQUIRED = ("router", "w_up", "w_down")
_BIASES = ("b_up", "b_gate", "b_down")
_ALPHAS = ("alpha_up", "alpha_gate", "alpha_down")
_SHARED = ("shared_up", "shared_gate", "shared_down")
_KEYS = (*_REQUIRED, "w_gate", *_BIASES, *_ALPHAS, "router_bias", "expert_bias", *_SHARED, "shared_router")
_ROUTE_KEYWORDS = [name for name, x in inspect.signature(route).parameters.items() if x.kind is x.KEYWORD_ONLY]
_ROUTING = tuple(name for name in _ROUTE_KEYWORDS if name not in _KEYS)


class Shape(NamedTuple):
    """The sizes of a mixture-of-experts layer."""

    width: int  # elements of a token, H
    hidden: int  # hidden width of an expert, I
    num_experts: int  # G


class Output(NamedTuple):
    """The results of apply. raggemm.load_balance_loss takes logits and experts."""

    out: jax.Array  # result, of the shape and dtype of x
    logits: jax.Array  # router logits, float32 [T,G]
    experts: jax.Array  # experts of each token, int32 [T,k]


def init(key: jax.Array, shape: Shape, dtype: Any = jnp.float32) -> dict[str, jax.Array]:
    """Returns random matrices for a layer, normal with standard deviation 1 / sqrt(number of inputs of the matrix).

    Returns:
      A dict: "router", float32 [H,G]; "w_gate" and "w_up", [G,H,I], and "w_down", [G,I,H], of dtype.
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
        x = jax.random.normal(keys[name], shapes[name], jnp.float32) * shapes[name][-2] ** -0.5
        return x.astype(jnp.float32 if name == "router" else dtype)

    return {name: normal(name) for name in shapes}


def _check_names(params: Any, routing: dict[str, Any]) -> None:
    if not isinstance(params, Mapping):
        raise TypeError(f"params: is a {type(params).__name__}, must be a dict of arrays")
    if missing := [key for key in _REQUIRED if key not in params]:
        raise ValueError(f"params: {missing[0]!r} is missing, the keys are {list(params)}")
    if unknown := [key for key in params if key not in _KEYS]:
        raise ValueError(f"params: {unknown[0]!r} is unknown, keys must be among {list(_KEYS)}")
    shared = [key for key in (*_SHARED, "shared_router") if params.get(key) is not None]
    if missing := [key for key in ("shared_up", "shared_down") if shared and key not in shared]:
        raise ValueError(f"params: {missing[0]!r} is missing, {shared[0]!r} is given")
    if "expert_bias" in routing:
        raise ValueError("expert_bias: must be given in params, not as an argument of apply")
    if unknown := [name for name in routing if name not in _ROUTING]:
        raise ValueError(f"{unknown[0]}: is neither an argument of apply nor of route: {list(_ROUTING)}")


def _check_matrix(params: dict[str, Any], name: str, width: int, options: dict[str, Any]) -> tuple[int, int]:
    """Checks that params[name] has extent `width` along H. Returns its number of groups and its extent along I."""
    w, side = _grouped_matrix(params, name), "down" if name.endswith("down") else "up"
    data, quant_params, packed, layout = checks.split_weights(f"params[{name!r}]", w, MLP_FLOATS)
    checks.check_takes_layout(f"params[{name!r}]", layout, options["lhs_quantize"] is not None)
    if options["lhs_quantize"] is not None:
        arguments.check_code_dtype(f"params[{name!r}]", data.dtype, quant_params is not None, "lhs_quantize")
    shape = data.shape if packed is None else w.shape
    has_no_group_axis = name in _SHARED and packed is None
    is_last = (side == "down") != (packed is None and options[f"transpose_{side}"])
    if len(shape) != 3 or shape[2 if is_last else 1] != width:
        axes = ["I", width] if is_last else [width, "I"]
        wanted = ",".join(map(str, axes if has_no_group_axis else ["G", *axes]))
        hint = checks.packed_int4_hint(data.dtype, shape[2 if is_last else 1], width) if len(shape) == 3 else ""
        given = shape[1:] if has_no_group_axis else shape
        raise ValueError(f"params[{name!r}]: shape is {given}, must be [{wanted}]{hint}")
    return shape[0], shape[1 if is_last else 2]


def _check_shared(params: dict[str, Any], width: int, options: dict[str, Any]) -> None:
    given = [name for name in _SHARED if params.get(name) is not None]
    extents = {name: _check_matrix(params, name, width, options) for name in given}
    if extents and options["merged"] is not None and "shared_gate" in extents:
        raise ValueError("params['shared_gate']: must not be given with merged, shared_up includes the gate")
    for name, (groups, inner) in extents.items():
        wanted = extents["shared_down"][1] * (2 if name == "shared_up" and options["merged"] is not None else 1)
        if groups != 1:
            raise ValueError(f"params[{name!r}]: has {groups} experts, must have one")
        if inner != wanted:
            raise ValueError(f"params[{name!r}]: has {inner} columns, must have {wanted} to match shared_down")


def _check_arrays(params: dict[str, Any], shape: tuple[int, ...], options: dict[str, Any]) -> None:
    """Checks arrays of params before moe_mlp does, so that error messages name them by their keys in params.

    shape: shape of x.
    """
    router = checks.as_float_array("params['router']", params["router"]).shape
    if len(router) != 2 or shape[-1:] != router[:1]:
        raise ValueError(f"x: shape is {shape}, must end with the rows of params['router'], whose shape is {router}")
    for name in ("w_up", "w_down"):
        groups, _ = _check_matrix(params, name, router[0], options)
        if groups != router[1]:
            raise ValueError(f"params: router has {router[1]} experts, but {name} has {groups}")
    _check_shared(params, router[0], options)
    for name, wanted in (("router_bias", router[1:]), ("shared_router", (router[0], 1))):
        if (x := params.get(name)) is not None:
            given = checks.as_float_array(f"params[{name!r}]", x).shape
            if given != wanted:
                raise ValueError(f"params[{name!r}]: shape is {given}, must be {wanted}")


def _grouped_matrix(params: dict[str, Any], name: str) -> Any:
    """Returns params[name], or None. Adds a group axis to a matrix of the shared expert that is not PackedWeights."""
    w = params.get(name)
    if w is None or name not in _SHARED or isinstance(w, PackedWeights):
        return w
    if not checks.is_quantized(w):
        return checks.as_array(f"params[{name!r}]", w)[None]
    w = checks.as_quantized_tensor(f"params[{name!r}]", w)
    scale, zero_point = (x[None] if x is not None and x.ndim == w.ndim else x for x in (w.scale, w.zero_point))
    return QuantizedTensor(w.data[None], scale, zero_point)


def _matmul_float32(x: jax.Array, matrix: Any) -> jax.Array:
    return jnp.matmul(x.astype(jnp.float32), jnp.asarray(matrix, jnp.float32), precision="highest")


def _run_experts(
    tokens: jax.Array, rows: tuple[Any, Any, Any], matrices: list[Any], options: dict[str, Any]
) -> jax.Array:
    """Calls moe_mlp with `options`. For PackedWeights, sets transpose_up and transpose_down to False.

    rows: row_tokens, row_weights and group_sizes. matrices: w_up, w_gate and w_down.
    """
    up, gate, down = matrices
    transposes = {
        f"transpose_{side}": options[f"transpose_{side}"] and not isinstance(w, PackedWeights)
        for side, w in (("up", up), ("down", down))
    }
    return moe_mlp(tokens, *rows, up, down, w_gate=gate, **options | transposes)


def _run_shared_expert(params: dict[str, Any], tokens: jax.Array, options: dict[str, Any]) -> jax.Array:
    count, weights = tokens.shape[0], None
    if params.get("shared_router") is not None:
        weights = jax.nn.sigmoid(_matmul_float32(tokens, params["shared_router"]))[:, 0]
    rows = jnp.arange(count, dtype=jnp.int32), weights, jnp.full(1, count, jnp.int32)
    matrices = [_grouped_matrix(params, name) for name in _SHARED]
    return _run_experts(tokens, rows, matrices, options | {"preferred_element_type": jnp.float32})


def apply(
    params: dict[str, Any],
    x: Any,
    top_k: int,
    activation: str | Activation = "silu",
    weight_on: str = "output",
    *,
    merged: str | None = None,
    transpose_up: bool = False,
    transpose_down: bool = False,
    lhs_quantize: Any = None,
    lhs_block: int | None = arguments.DEFAULT_LHS_BLOCK,
    **routing: Any,
) -> Output:
    """Computes for each token the weighted sum of its experts' results, plus a shared expert's result.

    Args:
      params: the arrays of init; "w_gate" may be missing. Other keys than the following are a ValueError:
        - "b_up" and "b_gate" [G,I], "b_down" [G,H]; if `merged`, "b_up" [G,2I];
        - "alpha_up", "alpha_gate" and "alpha_down" [G]: second scales of quantized experts, see moe_mlp;
        - "router_bias" [G]: added to the logits;
        - "expert_bias" [G]: see route; it affects only the choice of experts;
        - "shared_up", "shared_gate" [H,S] and "shared_down" [S,H]: an expert of every token, without biases. Its result
          is added in float32. "shared_gate" may be missing. Several shared experts are concatenated along S.
          PackedWeights are [1,H,S] and [1,S,H];
        - "shared_router" [H,1]: multiplies the shared expert's result by sigmoid(x @ shared_router).
      x: [...,H], float16, bfloat16 or float32.
      top_k: experts of a token.
      activation, merged, transpose_up, transpose_down: see moe_mlp. They also apply to the shared expert. transpose_up
        and transpose_down do not apply to PackedWeights.
      weight_on: see moe_mlp.
      lhs_quantize, lhs_block: see moe_mlp. They also apply to the shared expert: its matrices must be quantized, too.
      routing: keyword arguments of route, except expert_bias.
    """
    x = checks.as_float_array("x", x, MLP_FLOATS)
    options: dict[str, Any] = {"activation": activation, "merged": merged}
    options["transpose_up"] = checks.check_bool("transpose_up", transpose_up)
    options["transpose_down"] = checks.check_bool("transpose_down", transpose_down)
    arguments.check_lhs_quantize(lhs_quantize, lhs_block, (np.dtype(np.int8),))
    options |= {"lhs_quantize": lhs_quantize, "lhs_block": lhs_block}
    _check_names(params, routing)
    _check_arrays(params, x.shape, options)
    tokens = versions.replicate_explicit_axes(x).reshape(-1, x.shape[-1])
    logits = _matmul_float32(tokens, params["router"])
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
    routed_options = options | {name: params.get(name) for name in (*_BIASES, *_ALPHAS)} | {"weight_on": weight_on}
    if params.get("shared_up") is None:
        out = _run_experts(tokens, rows, matrices, routed_options)
    else:
        out = _run_experts(tokens, rows, matrices, routed_options | {"preferred_element_type": jnp.float32})
        out = (out + _run_shared_expert(params, tokens, options)).astype(x.dtype)
    return Output(out.reshape(x.shape), logits, chosen)
