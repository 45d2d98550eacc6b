"""Defines TransformerEngine's functions that route tokens to experts, and that reorder rows by expert and back."""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from raggemm._src import checks, routing


def _lower_name(x: Any) -> str:
    return str(getattr(x, "name", x)).lower()


def _check_score(score_function: Any) -> str:
    score = _lower_name(score_function)
    if score == "sqrtsoftplus":
        raise NotImplementedError("score_function is 'sqrtsoftplus', only 'softmax' and 'sigmoid' are supported")
    if score not in routing.SCORES:
        raise ValueError(f"score_function is {score_function!r}, must be 'softmax' or 'sigmoid'")
    return score


def _parse_groups(num_experts: int, topk: int, num_groups: int, group_topk: int) -> routing.ExpertGroups | None:
    number, group_topk = checks.check_integer("num_groups", num_groups), checks.check_integer("group_topk", group_topk)
    if group_topk <= 0:
        return None
    if topk < group_topk:
        raise ValueError(f"group_topk is {group_topk}, must be at most topk, {topk}")
    groups = routing.ExpertGroups(number, group_topk, topk // group_topk)
    return routing.check_expert_groups(num_experts, topk, groups, ("topk", "group_topk"))


def fused_topk_with_score_function(
    logits: Any,
    topk: int,
    use_pre_softmax: bool = False,
    num_groups: int = -1,
    group_topk: int = -1,
    scaling_factor: float = 1.0,
    score_function: Any = "softmax",
    expert_bias: Any = None,
    compute_aux_scores: bool = False,
    routing_map_format: Any = "bytemap",
) -> tuple[jax.Array, jax.Array]:
    """Selects the topk experts of each token. Returns their probabilities and a mask.

    Args:
      logits: [T,E].
      topk: experts of a token.
      use_pre_softmax: True applies softmax to all experts, False to the selected ones. No effect with sigmoid.
      num_groups, group_topk: limit a token to group_topk of num_groups groups of experts. The score of a group is the
        sum of its topk // group_topk largest scores. There is no limit if group_topk is 0 or less.
      scaling_factor: multiplies the probabilities; a number (else TypeError).
      score_function: "softmax" or "sigmoid", or TransformerEngine's enum member with this name. For topk above 1, the
        selected sigmoids are divided by their sum. NotImplementedError for "sqrtsoftplus".
      expert_bias: [E], added to sigmoids for the selection only. ValueError with softmax.
      compute_aux_scores: True returns the scores of all experts, for fused_moe_aux_loss, and the mask of the topk
        largest. Only logits, topk, score_function and routing_map_format then have an effect.
      routing_map_format: "bytemap" for a mask bool [T,E], or "bitmap_u8" for a mask uint8 [T,ceil(E/8)] with the lowest
        bit first, or TransformerEngine's enum member with this name.

    Returns:
      (probabilities [T,E] of the dtype of logits, 0 for experts that are not selected; mask).
    """
    if not isinstance(scaling_factor, int | float):
        raise TypeError(f"scaling_factor: is {type(scaling_factor).__name__}, must be a float or an int")
    score, layout, topk = (
        _check_score(score_function),
        _lower_name(routing_map_format),
        checks.check_integer("topk", topk),
    )
    if layout not in ("bytemap", "bitmap_u8"):
        raise ValueError(f"routing_map_format is {routing_map_format!r}, must be 'bytemap' or 'bitmap_u8'")
    wide = routing.as_logits(logits)
    routing.check_top_k("topk", topk, wide)
    tokens, experts = wide.shape
    if checks.check_bool("compute_aux_scores", compute_aux_scores):
        values = routing.scores_for_loss(wide, topk, score)
        chosen = lax.top_k(lax.stop_gradient(values), topk)[1]
    else:
        if expert_bias is not None and score != "sigmoid":
            raise ValueError(f"expert_bias is for score_function 'sigmoid', not {score!r}")
        bias = None if expert_bias is None else routing.as_expert_bias(expert_bias, experts)
        groups = _parse_groups(experts, topk, num_groups, group_topk)
        router = routing.Router(
            topk, score, checks.check_bool("use_pre_softmax", use_pre_softmax), groups, score == "sigmoid" and topk > 1
        )
        weights, chosen = router(wide, bias)
        values = jnp.zeros_like(wide).at[jnp.arange(tokens)[:, None], chosen].set(weights * float(scaling_factor))
    mask = (chosen[:, :, None] == jnp.arange(experts, dtype=jnp.int32)[None, None]).any(1)
    if layout == "bitmap_u8":
        mask = jnp.packbits(mask, axis=1, bitorder="little")
    return values.astype(jnp.asarray(logits).dtype), mask


def fused_moe_aux_loss(probs: Any, tokens_per_expert: Any, topk: int, coeff: float) -> jax.Array:
    """Computes the load-balance loss of a router.

    The loss is E * coeff / (topk * T^2) * sum over e of (sum over tokens of probs[:, e]) * tokens_per_expert[e].

    Args:
      probs: [T,E], scores from compute_aux_scores.
      tokens_per_expert: integer [E].
      topk: experts of a token.
      coeff: weight of the loss.

    Returns:
      () of the dtype of probs. Only probs has a gradient.
    """
    probs, counts = (
        checks.as_float_array("probs", probs),
        checks.as_integer_array("tokens_per_expert", tokens_per_expert),
    )
    if probs.ndim != 2 or counts.shape != probs.shape[1:]:
        raise ValueError(f"probs is {probs.shape} and tokens_per_expert {counts.shape}, must be [T,E] and [E]")
    weight, topk = checks.as_array("coeff", coeff), checks.check_count("topk", topk, 1)
    checks.check_shape("coeff", weight, ())
    return (weight * routing.balance(probs, counts, topk)).astype(probs.dtype)


def _flatten_batch(name: str, x: Any) -> jax.Array:
    x = checks.as_array(name, x)
    if x.ndim not in (2, 3):
        raise ValueError(f"{name}: shape is {x.shape}, must have 2 or 3 axes")
    return x.reshape(math.prod(x.shape[:-1]), x.shape[-1])


class _DispatchedRows(NamedTuple):
    """Rows of token_dispatch's result, with padding after each expert's rows."""

    tokens: jax.Array  # token of each row, int32 [rows]; T for padding
    experts: jax.Array  # expert of each row, int32 [rows]
    sizes: jax.Array  # rows of each expert, including padding, int32 [E]
    pad_offsets: jax.Array  # rows of padding before each expert's rows, int32 [E]


def _assign_rows(is_routed: jax.Array, count: int, align: int) -> _DispatchedRows:
    """Assigns `count` rows to the pairs of token and expert in is_routed [T,E], sorted by expert, then token.

    Pads the rows of each expert to a multiple of `align`.
    """
    tokens, experts = is_routed.shape
    routed = is_routed.sum(0, dtype=jnp.int32)
    sizes = -(-routed // align) * align
    pad_offsets = jnp.cumsum(sizes - routed) - (sizes - routed)
    row = jnp.arange(count, dtype=jnp.int32)
    expert = jnp.searchsorted(jnp.cumsum(sizes), row, side="right").astype(jnp.int32)
    expert = jnp.minimum(expert, experts - 1)
    pair = row - pad_offsets[expert]  # index of the row's (token, expert) pair among all pairs, sorted by expert
    is_padding = pair >= jnp.cumsum(routed)[expert]
    index = jnp.searchsorted(
        jnp.cumsum(is_routed.T.reshape(-1), dtype=jnp.int32), pair + 1
    )  # flat index of the row's pair (expert, token) in an array [E,T]
    token = jnp.where(is_padding, tokens, index.astype(jnp.int32) % max(tokens, 1))
    return _DispatchedRows(token, expert, sizes, pad_offsets)


def _row_id_map(is_routed: jax.Array) -> jax.Array:
    """Returns token_dispatch's row_id_map, int32 [T,2E+1]. The row numbers in it do not count rows of padding."""
    routed = is_routed.sum(0, dtype=jnp.int32)
    first = jnp.cumsum(routed) - routed
    row = jnp.where(is_routed, first[None] + jnp.cumsum(is_routed, 0, dtype=jnp.int32) - 1, -1)
    rows, experts = lax.top_k(row, row.shape[1])
    experts = jnp.where(rows < 0, -1, experts)
    return jnp.concatenate([rows, experts, is_routed.sum(1, dtype=jnp.int32)[:, None]], 1)


def token_dispatch(
    inp: Any, routing_map: Any, num_out_tokens: int, probs: Any = None, align_size: int | None = None
) -> tuple[jax.Array, jax.Array | None, jax.Array, jax.Array | None, jax.Array]:
    """Gathers the rows of the experts, ordered by expert and then by token.

    Args:
      inp: [T,H] or [batch,sequence,H], like routing_map and probs.
      routing_map: [T,E], nonzero if a token goes to an expert.
      num_out_tokens: number of rows without padding, at least 1. It should be the number of nonzeros in routing_map. If
        it is larger, the remaining rows are zero. If it is smaller, the last pairs of token and expert can get no row.
      probs: [T,E]. Rows with probability 0 are zero, like padding.
      align_size: pads each expert with zeros to a multiple of this number of rows. The result has (num_out_tokens + E *
        (align_size - 1)) // align_size * align_size rows, enough for any distribution of the tokens.

    Returns:
      (rows, row_probs, row_id_map, pad_offsets, sizes). rows is [M,H]. row_probs, [M], has the probability of each row,
      or is None without probs. row_id_map, int32 [T,2E+1], is for token_combine. For each token it has the row numbers
      without padding, descending, then the experts of these rows, both filled up with -1, then the number of rows.
      pad_offsets, int32 [E], is the number of rows of padding before each expert, or None without align_size. sizes,
      int32 [E], has the rows of each expert with padding.
    """
    inp, is_routed = (
        _flatten_batch("inp", checks.as_float_array("inp", inp)),
        _flatten_batch("routing_map", routing_map).astype(bool),
    )
    num_out_tokens, num_experts = checks.check_count("num_out_tokens", num_out_tokens, 1), is_routed.shape[1]
    align = 1 if align_size is None else checks.check_count("align_size", align_size, 1)
    if len(is_routed) != len(inp) or not num_experts:
        raise ValueError(f"routing_map: shape is {jnp.shape(routing_map)}, must be {inp.shape[0]} tokens by experts")
    rows = _assign_rows(is_routed, (num_out_tokens + num_experts * (align - 1)) // align * align, align)
    out, row_probs = routing.gather_token_rows(inp, rows.tokens), None
    if probs is not None:
        probs = _flatten_batch("probs", checks.as_float_array("probs", probs))
        if probs.shape != is_routed.shape:
            raise ValueError(f"probs: shape is {probs.shape}, must be that of routing_map, {is_routed.shape}")
        row_probs = probs.at[rows.tokens, rows.experts].get(mode="fill", fill_value=0)
        out = jnp.where((row_probs == 0)[:, None], 0, out)
    pad_offsets = None if align_size is None else rows.pad_offsets
    return out, row_probs, _row_id_map(is_routed), pad_offsets, rows.sizes


def token_combine(inp: Any, row_id_map: Any, merging_probs: Any = None, pad_offsets: Any = None) -> jax.Array:
    """Sums for each token the rows that token_dispatch has made from it, weighted by merging_probs.

    Args:
      inp: [M,H], in the order of token_dispatch. Padding is ignored.
      row_id_map, pad_offsets: from token_dispatch.
      merging_probs: [T,E] or [batch,sequence,E], by default 1.

    Returns:
      [T,H] of the dtype of inp, summed in float32 or float64.
    """
    inp, row_id_map = checks.as_float_array("inp", inp), checks.as_integer_array("row_id_map", row_id_map)
    checks.check_rank("inp", inp, "M,H")
    if row_id_map.ndim != 2 or row_id_map.shape[1] % 2 == 0:
        raise ValueError(f"row_id_map: shape is {row_id_map.shape}, must be [T,2E+1]")
    tokens, num_experts = len(row_id_map), row_id_map.shape[1] // 2
    row, expert = row_id_map[:, :num_experts], row_id_map[:, num_experts:-1]
    if pad_offsets is not None:
        offsets = checks.as_integer_array("pad_offsets", pad_offsets)
        checks.check_shape("pad_offsets", offsets, (num_experts,))
        row += offsets[expert].astype(row.dtype)
    is_valid = (jnp.arange(num_experts, dtype=row_id_map.dtype)[None] < row_id_map[:, -1:]) & (row >= 0)
    row = jnp.where(is_valid, row, len(inp)).reshape(-1)
    num_pairs = tokens * num_experts
    # For each row of inp, the index of its entry in row_id_map[:, :num_experts].reshape(-1); num_pairs for padding.
    pair = jnp.full(len(inp), num_pairs, jnp.int32).at[row].set(jnp.arange(num_pairs, dtype=jnp.int32), mode="drop")
    token, weights = pair // max(num_experts, 1), None
    if merging_probs is not None:
        probs = _flatten_batch("merging_probs", checks.as_float_array("merging_probs", merging_probs))
        checks.check_shape("merging_probs", probs, (tokens, num_experts))
        expert = expert.reshape(-1).at[pair].get(mode="fill", fill_value=0)
        weights = probs.at[token, expert].get(mode="fill", fill_value=0)
    return routing.combine(inp, token, tokens, weights)


def sort_chunks_by_index(inp: Any, split_sizes: Any, sorted_indices: Any) -> tuple[jax.Array, jax.Array]:
    """Reorders the chunks of inp.

    Args:
      inp: [T,H] or [batch,sequence,H]. Its rows are consecutive chunks. Rows after the last chunk stay.
      split_sizes: integer [chunks], rows of each chunk.
      sorted_indices: integer [chunks], for each chunk of the result its index among the chunks of inp.

    Returns:
      ([T,H], int32 [T]: the new position of each row of inp).
    """
    inp = _flatten_batch("inp", checks.as_float_array("inp", inp))
    sizes = checks.as_integer_array("split_sizes", split_sizes).astype(jnp.int32)
    order = checks.as_integer_array("sorted_indices", sorted_indices)
    if sizes.ndim != 1 or order.shape != sizes.shape:
        raise ValueError(f"split_sizes is {sizes.shape} and sorted_indices {order.shape}, must both be [chunks]")

    def new_positions(sizes: jax.Array, order: jax.Array) -> jax.Array:
        """Returns the new position of each row if chunk order[i] moves to position i."""
        ends = jnp.cumsum(sizes[order])
        starts = jnp.zeros_like(sizes).at[order].set(ends - sizes[order])
        row = jnp.arange(len(inp), dtype=jnp.int32)
        ends = jnp.cumsum(sizes)
        chunk = jnp.searchsorted(ends, row, side="right")
        shift = routing.gather_rows(starts - (ends - sizes), chunk)
        return (row + shift).astype(jnp.int32)

    source = new_positions(sizes[order], jnp.argsort(order))
    return inp.at[source].get(unique_indices=True), new_positions(sizes, order)
