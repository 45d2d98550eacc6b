"""The MLP of the experts as a sequence: gather, grouped GEMMs, activation, grouped GEMM, combine. It is what moe_mlp
computes in one call, and what derivatives are made of, and batches that are no one call."""

from typing import Any

import jax
import jax.numpy as jnp

from raggemm._functions.grouped_gemm import product
from raggemm._functions.operands import Words
from raggemm._functions.routing import filled_rows, sums_of_tokens
from raggemm._functions.tensors import QuantizedTensor
from raggemm._primitive.activations import activated
from raggemm._primitive.call import FLOATS
from raggemm._primitive.moe_mlp import MlpCall
from raggemm.ops import matrices


def _rows_of_groups(args: dict[str, Any]) -> jax.Array:
    """float32 [M]: 1 for rows of processed groups, else 0, as a product with nothing but a bias, for the call checks
    sizes and tokens: with on_error="nan" wrong ones make all NaN."""
    tokens, groups = args["x"].shape[0], args["w_up"].shape[0]
    lhs, rhs = (jnp.zeros(shape, jnp.float32) for shape in ((tokens, 0), (groups, 0, 1)))
    return product(
        Words(lhs="x", sizes="group_sizes", row_index="row_tokens"),
        *matrices(lhs, rhs, args["group_sizes"], (1, 1)),
        bias=jnp.ones((groups, 1), jnp.float32),
        group_offset=args.get("group_offset"),
        row_index=args["row_tokens"],
    )[:, 0]


def product_of(args: dict[str, Any], weight: str, rows: jax.Array, is_trans: bool, has_bias: bool = True) -> jax.Array:
    """[M,columns] in float32: the rows of each group times w_up, w_gate or w_down of it, and its bias."""
    data = args[f"w_{weight}"]
    is_array = data.dtype in FLOATS
    w = data if is_array else QuantizedTensor(data, args.get(f"{weight}_scale"), args.get(f"{weight}_zero"))
    return product(
        Words(sizes="group_sizes"),
        *matrices(rows, w, args["group_sizes"], (1, 2 if is_trans else 1)),
        bias=args.get(f"b_{weight}") if has_bias else None,
        group_offset=args.get("group_offset"),
        preferred_element_type=jnp.float32,
    )


def first_products(call: MlpCall, args: dict[str, Any], rows: jax.Array) -> tuple[jax.Array, ...]:
    """Those with w_up and, if there is one, w_gate. rows: [M,H] in float32, from where each product gets its own, so
    that what they say of a gradient is summed in float32."""
    words = ("up", "gate") if "w_gate" in args else ("up",)
    return tuple(product_of(args, word, rows.astype(args["x"].dtype), call.up_is_trans) for word in words)


def gate_and_up(call: MlpCall, up: jax.Array, gate: jax.Array | None = None) -> tuple[jax.Array | None, jax.Array]:
    """Of the first products: merged ones divided."""
    if call.merged == "HALVES":
        gate, up = jnp.split(up, 2, axis=1)
    elif call.merged == "INTERLEAVED":
        gate, up = up[:, ::2], up[:, 1::2]
    return gate, up


def token_rows(args: dict[str, Any]) -> tuple[jax.Array, jax.Array, jax.Array]:
    """[M] of each row: its token, which is the number of tokens where it takes no part; its weight; and 0, or NaN where
    a token or a size is wrong and nothing raises, which is in the weights of all rows, too."""
    row_tokens, tokens, is_placed = args["row_tokens"], args["x"].shape[0], _rows_of_groups(args)
    takes_part = (is_placed != 0) & (row_tokens >= 0) & (row_tokens < tokens)
    wrong = is_placed - is_placed
    weights = args.get("row_weights", jnp.ones(row_tokens.shape, jnp.float32)) + wrong
    return jnp.where(takes_part, row_tokens, tokens), weights, wrong


def input_rows(call: MlpCall, args: dict[str, Any], token: jax.Array, weights: jax.Array) -> jax.Array:
    """Returns the [M,H] float32 that the first products round to x's type: x of each token, times the weight if that is
    on the input. Rows that take no part are 0."""
    x = args["x"]
    rows = filled_rows(x.astype(jnp.float32), token)
    if call.weight_on != "INPUT":
        return rows
    is_token = token < x.shape[0]  # the weights of other rows may be NaN
    return rows * jnp.where(is_token, weights, 0)[:, None]


def sequence(call: MlpCall, args: dict[str, Any]) -> tuple[jax.Array, ...]:
    """Returns the value of a call, and its first products."""
    x = args["x"]
    token, weights, wrong = token_rows(args)
    first = first_products(call, args, input_rows(call, args, token, weights))
    if call.weight_on == "INPUT":
        weights = jnp.ones_like(weights) + wrong
    down = args["w_down"].dtype
    a = activated(call.activation, *gate_and_up(call, *first)).astype(down if down in FLOATS else x.dtype)
    rows = product_of(args, "down", a, call.down_is_trans)
    return sums_of_tokens(rows, weights, token, x.shape[0], call.dtype, args.get("row_slots")), *first
