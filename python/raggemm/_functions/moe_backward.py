"""The gradients of moe_mlp, of grouped GEMMs on operands of the types that the forward products have, so that those of
bfloat16 are on the CPU's unit for it: cotangents of rows are rounded once, where a product takes them."""

import functools
from typing import Any

import jax
import jax.numpy as jnp

from raggemm._functions.grouped_gemm import product
from raggemm._functions.moe_sequence import first_products, gate_and_up, input_rows, product_of, token_rows
from raggemm._functions.operands import Words
from raggemm._functions.routing import filled_rows, sums_of_tokens
from raggemm._primitive.activations import activated
from raggemm._primitive.call import FLOATS
from raggemm._primitive.moe_mlp import MlpCall
from raggemm.ops import matrices

_Args = dict[str, Any]


def _operand_type(args: _Args, weight: str) -> Any:
    """What rows are that are multiplied with w_up, w_gate or w_down."""
    dtype = args[f"w_{weight}"].dtype
    return dtype if dtype in FLOATS else args["x"].dtype


def _of_groups(args: _Args, lhs: jax.Array, rhs: jax.Array, dtype: Any) -> jax.Array:
    """[G,.,.]: the transposed lhs times rhs, over the rows of each group."""
    return product(
        Words(sizes="group_sizes"),
        *matrices(lhs, rhs, args["group_sizes"], (0, 0), rhs_rank=2),
        group_offset=args.get("group_offset"),
        num_actual_groups=args["w_up"].shape[0],
        preferred_element_type=dtype,
    )


def _to_weight(args: _Args, name: str, rows: jax.Array, dots: jax.Array, is_trans: bool) -> jax.Array:
    operands = (dots, rows) if is_trans else (rows, dots)
    return _of_groups(args, *operands, args[name].dtype)


def _to_bias(args: _Args, name: str, dots: jax.Array) -> jax.Array:
    ones = jnp.ones((dots.shape[0], 1), dots.dtype)
    return _of_groups(args, ones, dots, args[name].dtype).reshape(args[name].shape)


def _merged(call: MlpCall, gate: jax.Array | None, up: jax.Array) -> jax.Array:
    """The cotangent of the product with w_up."""
    if gate is None:
        return up
    if call.merged == "HALVES":
        return jnp.concatenate([gate, up], axis=1)
    if call.merged == "INTERLEAVED":
        return jnp.stack([gate, up], axis=2).reshape(up.shape[0], 2 * up.shape[1])
    return up


def cotangents(call: MlpCall, args: _Args, ct: jax.Array, wanted: tuple[str, ...]) -> _Args:
    """Returns the cotangents of the wanted arguments by name: x, row_weights, weights of floats, biases.

    ct: [T,H], the cotangent of the value.
    """
    x, on_input = args["x"], call.weight_on == "INPUT"
    token, weights, wrong = token_rows(args)
    rows, down_type = input_rows(call, args, token, weights).astype(x.dtype), _operand_type(args, "down")
    inputs = weights
    if on_input:
        weights = jnp.ones_like(weights) + wrong
    gate, up = gate_and_up(call, *first_products(call, args, rows))
    a, pull = jax.vjp(functools.partial(activated, call.activation), gate, up)
    a = a.astype(down_type)
    d_rows = filled_rows(ct.astype(down_type), token)
    d_a = product_of(args, "down", d_rows, not call.down_is_trans, has_bias=False)  # without the row's weight
    d_gate, d_up = pull(weights[:, None] * d_a)
    d_up = _merged(call, d_gate, d_up).astype(_operand_type(args, "up"))
    found: _Args = {}
    if "row_weights" in wanted and not on_input:
        found["row_weights"] = (a.astype(jnp.float32) * d_a).sum(1) + wrong
        if "b_down" in args:
            bias = args["b_down"][:, :, None]
            found["row_weights"] += product_of(args | {"w_bias": bias}, "bias", d_rows, False, has_bias=False)[:, 0]
    weighted = (weights[:, None] * d_rows.astype(jnp.float32)).astype(down_type)
    if "w_down" in wanted:
        found["w_down"] = _to_weight(args, "w_down", a, weighted, call.down_is_trans)
    if "b_down" in wanted:
        found["b_down"] = _to_bias(args, "b_down", weighted)
    dots = {"up": d_up}
    if "w_gate" in args:
        dots["gate"] = d_gate.astype(_operand_type(args, "gate"))
    for word, dot in dots.items():
        if f"w_{word}" in wanted:
            found[f"w_{word}"] = _to_weight(args, f"w_{word}", rows, dot, call.up_is_trans)
        if f"b_{word}" in wanted:
            found[f"b_{word}"] = _to_bias(args, f"b_{word}", dot)
    if "x" in wanted or ("row_weights" in wanted and on_input):
        parts = [product_of(args, word, dot, not call.up_is_trans, has_bias=False) for word, dot in dots.items()]
        dx_rows = sum(parts[1:], parts[0])
    if "x" in wanted:
        by = jnp.where(token < x.shape[0], inputs, 0) if on_input else jnp.ones(token.shape, jnp.float32)
        found["x"] = sums_of_tokens(dx_rows, by, token, x.shape[0], x.dtype)
    if "row_weights" in wanted and on_input:
        found["row_weights"] = (filled_rows(x.astype(jnp.float32), token) * dx_rows).sum(1) + wrong
    return found
