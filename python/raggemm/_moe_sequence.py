"""The MLP of the experts as a sequence: gather, grouped GEMMs, activation, grouped GEMM, combine. It is what moe_mlp
computes in one call, and what its derivatives and batches are made of."""

from typing import Any

import jax
import jax.numpy as jnp

from raggemm._grouped_gemm import product
from raggemm._operands import Words
from raggemm._primitive.activations import activated
from raggemm._primitive.call import FLOATS
from raggemm._primitive.moe_mlp import MlpCall
from raggemm._routing import filled_rows, sums_of_tokens
from raggemm._tensors import QuantizedTensor
from raggemm.ops import matrices


def _rows_of_groups(args: dict[str, Any]) -> jax.Array:
    """[M]: whether a row is one of a processed group."""
    sizes, (groups, *_) = args["group_sizes"], args["w_up"].shape
    ends = jnp.concatenate([jnp.zeros((1,), sizes.dtype), jnp.cumsum(sizes)])
    first = args["group_offset"].reshape(()) if "group_offset" in args else 0
    row = jnp.arange(args["row_tokens"].shape[0], dtype=ends.dtype)
    return (row >= ends.at[first].get(mode="clip")) & (row < ends.at[first + groups].get(mode="clip"))


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
    """[M] of each row: its token, which is the number of tokens where it takes no part, and its weight; and
    whether all are there. Nothing here can raise for a token that is not: a row of it makes all weights NaN."""
    row_tokens, tokens, is_placed = args["row_tokens"], args["x"].shape[0], _rows_of_groups(args)
    is_known = (row_tokens >= 0) & (row_tokens < tokens)
    weights = args.get("row_weights", jnp.ones(row_tokens.shape, jnp.float32))
    all_known = ~(is_placed & ~is_known).any()
    weights = weights * jnp.where(all_known, 1, jnp.nan).astype(jnp.float32)
    return jnp.where(is_placed & is_known, row_tokens, tokens), weights, all_known


def sequence(call: MlpCall, args: dict[str, Any]) -> tuple[jax.Array, ...]:
    """The value of a call, and its first products."""
    x = args["x"]
    token, weights, _ = token_rows(args)
    first = first_products(call, args, filled_rows(x.astype(jnp.float32), token))
    down = args["w_down"].dtype
    a = activated(call.activation, *gate_and_up(call, *first)).astype(down if down in FLOATS else x.dtype)
    rows = product_of(args, "down", a, call.down_is_trans)
    return sums_of_tokens(rows, weights, token, x.shape[0], call.dtype), *first
