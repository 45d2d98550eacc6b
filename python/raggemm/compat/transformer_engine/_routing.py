"""TransformerEngine's router and permutation, over raggemm's route and combine."""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from raggemm._src import checks, routing


def _name(x: Any) -> str:
    """Returns the name of an enumerator of TransformerEngine, or the text itself, in lower case."""
    return str(getattr(x, "name", x)).lower()


def _score(score_function: Any) -> str:
    score = _name(score_function)
    if score == "sqrtsoftplus":
        raise NotImplementedError("score_function is 'sqrtsoftplus'; there are 'softmax' and 'sigmoid'")
    if score not in routing.SCORES:
        raise ValueError(f"score_function is {score_function!r}, must be 'softmax' or 'sigmoid'")
    return score


def _groups(num_experts: int, topk: int, num_groups: int, group_topk: int) -> routing.ExpertGroups | None:
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
    """The topk experts of each token, as a matrix of probabilities and as a mask.

    Args:
      logits: [T,E].
      use_pre_softmax: whether softmax is of all experts, not of those that are chosen; of no effect with sigmoid.
      num_groups, group_topk: experts are those of the group_topk of num_groups groups whose topk // group_topk largest
        scores have the largest sums; none where group_topk is 0 or less.
      scaling_factor: a number (else TypeError), of the probabilities.
      score_function: "softmax" or "sigmoid" (divided by the sum of those chosen where topk is more than 1), or an
        enumerator of TransformerEngine with such a name. NotImplementedError for "sqrtsoftplus".
      expert_bias: [E], added to sigmoids for the choice alone; ValueError with softmax.
      compute_aux_scores: gives the scores of all experts instead, for fused_moe_aux_loss, and the mask of the topk of
        them; all arguments but logits, topk, score_function and routing_map_format have no effect then.
      routing_map_format: "bytemap", bool [T,E], or "bitmap_u8", uint8 [T,ceil(E/8)], the lowest bit first; or an
        enumerator.

    Returns:
      (probabilities [T,E] of the dtype of logits, 0 where an expert is not chosen; mask).
    """
    if not isinstance(scaling_factor, int | float):
        raise TypeError(f"scaling_factor: is {type(scaling_factor).__name__}, must be a float or an int")
    score, layout, topk = _score(score_function), _name(routing_map_format), checks.check_integer("topk", topk)
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
        groups = _groups(experts, topk, num_groups, group_topk)
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
    """E * coeff / (topk * T^2) * sum over e of (sum over tokens of probs[:, e]) * tokens_per_expert[e].

    Args:
      probs: [T,E], as of compute_aux_scores.
      tokens_per_expert: integer [E].
      topk: experts of a token; coeff: weight of the loss.

    Returns:
      () of the dtype of probs, which alone has a gradient.
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


def _flat(name: str, x: Any) -> jax.Array:
    """[T,n] of [T,n] or [batch,sequence,n]."""
    x = checks.as_array(name, x)
    if x.ndim not in (2, 3):
        raise ValueError(f"{name}: shape is {x.shape}, must have 2 or 3 axes")
    return x.reshape(math.prod(x.shape[:-1]), x.shape[-1])


class _Rows(NamedTuple):
    """Rows by expert and, within one, by token, and where the padding of each expert is."""

    tokens: jax.Array  # int32 [rows]; T where a row is none's
    experts: jax.Array  # int32 [rows]
    sizes: jax.Array  # int32 [E], with padding
    pad_offsets: jax.Array  # int32 [E]: rows of padding before an expert's


def _rows(is_routed: jax.Array, count: int, align: int) -> _Rows:
    tokens, experts = is_routed.shape
    routed = is_routed.sum(0, dtype=jnp.int32)
    sizes = -(-routed // align) * align
    before = jnp.cumsum(sizes - routed) - (sizes - routed)
    row = jnp.arange(count, dtype=jnp.int32)
    expert = jnp.searchsorted(jnp.cumsum(sizes), row, side="right").astype(jnp.int32)
    expert = jnp.minimum(expert, experts - 1)
    pair = row - before[expert]  # its number among the pairs that are routed
    is_row = pair < jnp.cumsum(routed)[expert]
    place = jnp.searchsorted(jnp.cumsum(is_routed.T.reshape(-1), dtype=jnp.int32), pair + 1)  # expert * tokens + token
    token = jnp.where(is_row, place.astype(jnp.int32) % max(tokens, 1), tokens)
    return _Rows(token, expert, sizes, before)


def _row_id_map(is_routed: jax.Array) -> jax.Array:
    """int32 [T,2E+1]: a token's rows without padding, the largest first, and -1; their experts; their number."""
    routed = is_routed.sum(0, dtype=jnp.int32)
    first = jnp.cumsum(routed) - routed
    row = jnp.where(is_routed, first[None] + jnp.cumsum(is_routed, 0, dtype=jnp.int32) - 1, -1)
    rows, experts = lax.top_k(row, row.shape[1])
    experts = jnp.where(rows < 0, -1, experts)
    return jnp.concatenate([rows, experts, is_routed.sum(1, dtype=jnp.int32)[:, None]], 1)


def token_dispatch(
    inp: Any, routing_map: Any, num_out_tokens: int, probs: Any = None, align_size: int | None = None
) -> tuple[jax.Array, jax.Array | None, jax.Array, jax.Array | None, jax.Array]:
    """The tokens as rows of their experts, by expert and, within one, by token.

    Args:
      inp: [T,H], or [batch,sequence,H], as routing_map and probs.
      routing_map: [T,E], not 0 where a token goes to an expert.
      num_out_tokens: rows without padding, at least 1: the sum of routing_map. Rows beyond it are zero, and pairs for
        which there is no row are dropped.
      probs: [T,E]; a row whose probability is 0 is zero, as padding.
      align_size: each expert's rows are padded with zeros to a multiple of it. There are (num_out_tokens + E *
        (align_size - 1)) // align_size * align_size rows then, which is enough for every routing_map.

    Returns:
      (rows [M,H]; probs of the rows [M], or None; row_id_map int32 [T,2E+1] for token_combine: rows of a token, the
      largest first, their experts and their number, with -1 for none; pad_offsets int32 [E], or None without
      align_size; rows of each expert with their padding, int32 [E]).
    """
    inp, is_routed = _flat("inp", checks.as_float_array("inp", inp)), _flat("routing_map", routing_map).astype(bool)
    num_out_tokens, num_experts = checks.check_count("num_out_tokens", num_out_tokens, 1), is_routed.shape[1]
    align = 1 if align_size is None else checks.check_count("align_size", align_size, 1)
    if len(is_routed) != len(inp) or not num_experts:
        raise ValueError(f"routing_map: shape is {jnp.shape(routing_map)}, must be {inp.shape[0]} tokens by experts")
    rows = _rows(is_routed, (num_out_tokens + num_experts * (align - 1)) // align * align, align)
    out, of_rows = routing.gather_token_rows(inp, rows.tokens), None
    if probs is not None:
        probs = _flat("probs", checks.as_float_array("probs", probs))
        if probs.shape != is_routed.shape:
            raise ValueError(f"probs: shape is {probs.shape}, must be that of routing_map, {is_routed.shape}")
        of_rows = probs.at[rows.tokens, rows.experts].get(mode="fill", fill_value=0)
        out = jnp.where((of_rows == 0)[:, None], 0, out)
    return out, of_rows, _row_id_map(is_routed), None if align_size is None else rows.pad_offsets, rows.sizes


def token_combine(inp: Any, row_id_map: Any, merging_probs: Any = None, pad_offsets: Any = None) -> jax.Array:
    """The sum of each token's rows, weighted by merging_probs: the opposite of token_dispatch.

    Args:
      inp: [M,H], rows as token_dispatch has them. Rows of no token take no part.
      row_id_map, pad_offsets: of token_dispatch.
      merging_probs: [T,E], or [batch,sequence,E]; by default 1.

    Returns:
      [T,H] of the dtype of inp, summed in float32 in the order of the experts, as by raggemm.combine.
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
    is_there = (jnp.arange(num_experts, dtype=row_id_map.dtype)[None] < row_id_map[:, -1:]) & (row >= 0)
    row = jnp.where(is_there, row, len(inp)).reshape(-1)
    nowhere = tokens * num_experts
    pair = jnp.full(len(inp), nowhere, jnp.int32).at[row].set(jnp.arange(nowhere, dtype=jnp.int32), mode="drop")
    token, weights = pair // max(num_experts, 1), None
    if merging_probs is not None:
        probs = _flat("merging_probs", checks.as_float_array("merging_probs", merging_probs))
        checks.check_shape("merging_probs", probs, (tokens, num_experts))
        expert = expert.reshape(-1).at[pair].get(mode="fill", fill_value=0)
        weights = probs.at[token, expert].get(mode="fill", fill_value=0)
    return routing.combine(inp, token, tokens, weights)


def sort_chunks_by_index(inp: Any, split_sizes: Any, sorted_indices: Any) -> tuple[jax.Array, jax.Array]:
    """The chunks of inp in another order.

    Args:
      inp: [T,H], or [batch,sequence,H], whose rows are chunks one behind the other. Rows behind all chunks stay.
      split_sizes: integer [chunks], rows of each chunk.
      sorted_indices: integer [chunks], a permutation: which chunk comes first, second, ...

    Returns:
      ([T,H], int32 [T]: where each row of inp went).
    """
    inp = _flat("inp", checks.as_float_array("inp", inp))
    sizes = checks.as_integer_array("split_sizes", split_sizes).astype(jnp.int32)
    order = checks.as_integer_array("sorted_indices", sorted_indices)
    if sizes.ndim != 1 or order.shape != sizes.shape:
        raise ValueError(f"split_sizes is {sizes.shape} and sorted_indices {order.shape}, must be [chunks] both")

    def moved(sizes: jax.Array, order: jax.Array) -> jax.Array:
        """Returns the positions of rows once chunks of these sizes are put into this order."""
        ends = jnp.cumsum(sizes[order])
        starts = jnp.zeros_like(sizes).at[order].set(ends - sizes[order])
        row = jnp.arange(len(inp), dtype=jnp.int32)
        ends = jnp.cumsum(sizes)
        chunk = jnp.searchsorted(ends, row, side="right")
        by = routing.gather_rows(starts - (ends - sizes), chunk)
        return (row + by).astype(jnp.int32)

    came_from = moved(sizes[order], jnp.argsort(order))
    return inp.at[came_from].get(unique_indices=True), moved(sizes, order)
