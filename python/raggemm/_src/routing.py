"""Functions around the experts: the experts of a token, the order of their rows, and the way back.

    route                       each token's experts and weights, from logits
    load_balance_loss, z_loss   of a router
    sort_by_expert              whose row is where once rows are sorted by expert, and the group sizes
    combine                     each token's sum of its rows

    weights, experts = route(x @ router, top_k=2)
    order = sort_by_expert(experts, num_experts)
    rows = ...  # of x[order.row_tokens], by order.group_sizes
    out = combine(rows, order.row_tokens, len(x), weights.reshape(-1)[order.order], order.group_sizes)

Scores, weights and losses are float32 whatever the logits are. The rules are those of TransformerEngine's JAX function
fused_topk_with_score_function and of DeepSeek's inference/model.py (MaxText's deepseek_routing is the same); where the
two differ, docstrings say whose is followed.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from raggemm._src import checks, versions
from raggemm._src.dtypes import FLOATS, INTEGERS
from raggemm._src.grouped_gemm import grouped_gemm, mask_grouped_rows
from raggemm._src.tensors import GroupedTensor

SCORES = {"softmax": jax.nn.softmax, "sigmoid": jax.nn.sigmoid}
_LEAST_SUM = 1e-20  # is added to sums of scores: in all origins, for tokens whose sigmoids are all 0


class ExpertGroups(NamedTuple):
    """Groups of experts, the same number in each.

    A token gets experts of the top_k groups with the largest sums of their `best` largest scores.
    """

    number: int
    top_k: int
    best: int


class Router(NamedTuple):
    """How logits become weights."""

    top_k: int
    score: str
    pre_softmax: bool  # softmax is of all experts, not of the chosen ones
    groups: ExpertGroups | None
    renormalize: bool

    def __call__(self, logits: jax.Array, bias: jax.Array | None = None) -> tuple[jax.Array, jax.Array]:
        """(weights float32, experts int32) [T,k], of float32 logits [T,E] and a bias [E] that only chooses."""
        after = self.score == "softmax" and not self.pre_softmax
        scores = logits if after else SCORES[self.score](logits)
        experts = _choose_experts(
            lax.stop_gradient(scores if bias is None else scores + bias[None]), self.top_k, self.groups
        )
        weights = jnp.take_along_axis(scores, experts, 1)
        weights = jax.nn.softmax(weights) if after else weights
        return _normalize(weights) if self.renormalize else weights, experts


def _normalize(scores: jax.Array) -> jax.Array:
    total = scores.sum(1, keepdims=True) + _LEAST_SUM
    # Divides both by a power of two, for the gradient of a division has the square of what divides, 0 for small totals.
    scale = lax.stop_gradient(jnp.ldexp(jnp.ones_like(total), -jnp.frexp(total)[1]))
    return scores * scale / (total * scale)


def _choose_experts(scores: jax.Array, top_k: int, groups: ExpertGroups | None) -> jax.Array:
    """int32 [T,k]: where the largest of scores [T,E] are, the largest first, of equal ones that of lower index."""
    if groups is None:
        return lax.top_k(scores, top_k)[1]
    size = scores.shape[1] // groups.number
    grouped = scores.reshape(len(scores), groups.number, size)
    of_groups = lax.top_k(grouped, groups.best)[0].sum(2)
    kept = jnp.sort(lax.top_k(of_groups, groups.top_k)[1])  # in their order, for the lower of equal scores
    # Other groups are left out, not scored -inf: a kept expert may have that score, and then the lower index won.
    of_kept = jnp.take_along_axis(grouped, kept[:, :, None], 1)
    places = lax.top_k(of_kept.reshape(len(scores), groups.top_k * size), top_k)[1]
    return jnp.take_along_axis(kept, places // size, 1) * size + places % size


def as_logits(logits: Any) -> jax.Array:
    """Checked, and as float32."""
    logits = checks.as_float_array("logits", logits)
    if logits.ndim != 2 or logits.shape[1] == 0:
        raise ValueError(f"logits: shape is {logits.shape}, must be [tokens, experts], of at least one expert")
    return logits.astype(jnp.float32)


def check_top_k(name: str, top_k: int, logits: jax.Array) -> None:
    if not 1 <= top_k <= logits.shape[1]:
        raise ValueError(f"{name} is {top_k}, must be in [1, {logits.shape[1]}], for logits are {logits.shape}")


def as_expert_bias(bias: Any, num_experts: int) -> jax.Array:
    """Checked, and as float32."""
    bias = checks.as_float_array("expert_bias", bias)
    return checks.check_shape("expert_bias", bias, (num_experts,), why=", one for each expert").astype(jnp.float32)


def check_expert_groups(
    num_experts: int, top_k: int, groups: ExpertGroups, words: tuple[str, str] = ("top_k", "group_top_k")
) -> ExpertGroups:
    """words: what the caller calls them."""
    number, group_top_k, best = groups
    if number < 1 or num_experts % number:
        raise ValueError(f"num_groups is {number}, must divide the {num_experts} experts")
    if not 1 <= group_top_k <= number:
        raise ValueError(f"{words[1]} is {group_top_k}, must be in [1, {number}], as num_groups is {number}")
    size = num_experts // number
    if top_k > group_top_k * size:
        raise ValueError(f"{words[0]} is {top_k}, but {group_top_k} groups have {group_top_k * size} experts")
    return ExpertGroups(number, group_top_k, min(best, size))


def route(
    logits: Any,
    top_k: int,
    *,
    score: str = "softmax",
    pre_softmax: bool = False,
    num_groups: int | None = None,
    group_top_k: int | None = None,
    expert_bias: Any = None,
    renormalize: bool | None = None,
    scaling_factor: Any = 1.0,
) -> tuple[jax.Array, jax.Array]:
    """The top_k experts of each token, the one with the largest score first, of equal ones the lower.

    Args:
      logits: [T,E], of any float.
      top_k: experts of a token.
      score: "softmax" or "sigmoid".
      pre_softmax: whether softmax is of all experts, and experts are chosen by it; else logits choose, and softmax is
        of those that are chosen (use_pre_softmax of TransformerEngine, whose default it is). Not with "sigmoid".
      num_groups, group_top_k: the experts are num_groups groups of neighbours, and a token only gets experts of the
        group_top_k groups with the largest group scores: a group's largest score, and with expert_bias the sum of its
        two largest, as DeepSeek has it (V2 and V3; TransformerEngine sums top_k // group_top_k, which for V3 is two).
      expert_bias: [E], is added to the scores that choose experts and groups, not to weights (V3). Has no gradient. Not
        with softmax after the choice.
      renormalize: whether weights are divided by their sum (norm_topk_prob); by default those of sigmoid are, where
        top_k is more than 1, as in TransformerEngine. DeepSeek does it with one expert too.
      scaling_factor: of the weights, at the end.

    Returns:
      weights float32 [T,k], differentiable, and experts int32 [T,k], for sort_by_expert.
    """
    top_k = checks.check_integer("top_k", top_k)
    logits = as_logits(logits)
    check_top_k("top_k", top_k, logits)
    checks.check_choice("score", score, SCORES)
    if checks.check_bool("pre_softmax", pre_softmax) and score != "softmax":
        raise ValueError(f"pre_softmax is for score 'softmax', not {score!r}")
    if (num_groups is None) != (group_top_k is None):
        raise ValueError(f"num_groups is {num_groups} and group_top_k {group_top_k}: both are given, or neither")
    if expert_bias is not None:
        if score == "softmax" and not pre_softmax:
            raise ValueError("expert_bias is for scores of all experts: score='sigmoid', or pre_softmax=True")
        expert_bias = as_expert_bias(expert_bias, logits.shape[1])
    groups = None
    if num_groups is not None and group_top_k is not None:
        best = 1 if expert_bias is None else 2
        groups = ExpertGroups(
            checks.check_integer("num_groups", num_groups), checks.check_integer("group_top_k", group_top_k), best
        )
        groups = check_expert_groups(logits.shape[1], top_k, groups)
    renormalize = (
        score == "sigmoid" and top_k > 1 if renormalize is None else checks.check_bool("renormalize", renormalize)
    )
    scaling_factor = checks.as_float_array("scaling_factor", scaling_factor, (*FLOATS, *INTEGERS))
    checks.check_shape("scaling_factor", scaling_factor, ())
    weights, experts = Router(top_k, score, pre_softmax, groups, renormalize)(logits, expert_bias)
    return weights * scaling_factor.astype(jnp.float32), experts


def scores_for_loss(logits: jax.Array, top_k: int, score: str) -> jax.Array:
    """[T,E] of float32 logits; TransformerEngine's compute_aux_scores: shares of each token, but sigmoids for one
    expert a token."""
    scores = SCORES[score](logits)
    return _normalize(scores) if score == "sigmoid" and top_k > 1 else scores


def balance(scores: jax.Array, counts: jax.Array, top_k: int) -> jax.Array:
    """E / (k T^2) * sum over e of counts[e] * (sum over tokens of scores[:, e]), in float32."""
    tokens, experts = scores.shape
    shares = counts.astype(jnp.float32) / max(tokens * top_k, 1)
    return experts * jnp.sum(scores.astype(jnp.float32).sum(0) / max(tokens, 1) * shares)


def load_balance_loss(logits: Any, experts: Any, *, score: str = "softmax") -> jax.Array:
    """1 where scores or tokens are spread evenly, and up to E where all go to one expert.

    E * sum over e of (share of the pairs of a token and an expert that e has) * (mean score of e): equation 4 of the
    Switch Transformer (arXiv:2101.03961) for any k, TransformerEngine's fused_moe_aux_loss with a coeff of 1. MaxText's
    load_balance_loss does not divide by k.

    Args:
      logits: [T,E], of any float.
      experts: integer [T,k], as of route. One outside of [0,E) is none, and not counted.
      score: "softmax", or "sigmoid", whose scores are divided by their sum where k is more than 1.

    Returns:
      float32 (). Its gradient is that of the scores; the choice has none.
    """
    experts = _check_expert_ids(experts)
    logits = as_logits(logits)
    check_top_k("experts.shape[1]", experts.shape[1], logits)
    if len(experts) != len(logits):
        raise ValueError(f"experts: shape is {experts.shape}, must have the {len(logits)} tokens of logits")
    checks.check_choice("score", score, SCORES)
    top_k = experts.shape[1]
    counts = sort_expert_ids(experts, logits.shape[1])[2]
    return balance(scores_for_loss(logits, top_k, score), counts, top_k)


def z_loss(logits: Any) -> jax.Array:
    """The mean over tokens of the square of logsumexp(logits [T,E]), float32 (): equation 5 of ST-MoE
    (arXiv:2202.08906)."""
    logits = as_logits(logits)
    return jnp.square(jax.nn.logsumexp(logits, axis=1)).sum() / max(len(logits), 1)


def _check_expert_ids(experts: Any) -> jax.Array:
    return checks.check_rank("experts", checks.as_integer_array("experts", experts), "tokens, top_k")


# Ids by experts, up to which all are compared: one loop is 30 us faster than the many of a search, for one token.
_MOST_COMPARED = 1 << 14


def sort_expert_ids(experts: jax.Array, num_experts: int) -> tuple[jax.Array, jax.Array, jax.Array]:
    """int32 (sorted ids [n], order [n], sizes [num_experts]) of ids in any shape. Those of one expert keep their order;
    those that name none become num_experts and come last."""
    ids = versions.replicate_explicit_axes(experts).reshape(-1)
    ids = jnp.where((ids >= 0) & (ids < num_experts), ids, num_experts).astype(jnp.int32)
    places, experts_there = lax.iota(jnp.int32, ids.size), jnp.arange(num_experts, dtype=jnp.int32)
    if (num_experts + 1) * ids.size < 1 << 31:
        # One array of numbers, of which no two are equal: 512 tokens of 8 experts in 0.6 ms, two arrays in 1.2 (Zen 4).
        keys = lax.sort(ids * ids.size + places, is_stable=False)
        sorted_ids, order = (divide(keys, max(ids.size, 1)) for divide in (jnp.floor_divide, jnp.remainder))
    else:
        sorted_ids, order = lax.sort((ids, places), num_keys=1, is_stable=True)
    if num_experts * ids.size <= _MOST_COMPARED:
        sizes = jnp.sum(ids[:, None] == experts_there[None], 0, dtype=jnp.int32)
    else:
        ends = jnp.searchsorted(sorted_ids, experts_there, side="right")
        sizes = jnp.diff(ends, prepend=0).astype(jnp.int32)
    return sorted_ids, order, sizes


class SortedRows(NamedTuple):
    """The T*k pairs of a token and one of its experts as rows, sorted by expert; int32."""

    row_tokens: jax.Array  # [T*k]: the token of each row
    row_slots: jax.Array  # [T*k]: which of its token's k experts the row is for
    group_sizes: jax.Array  # [G]: rows of each expert
    order: jax.Array  # [T*k]: t * k + slot of each row, for what is [T,k]: weights.reshape(-1)[order]


def sort_by_expert(experts: Any, num_experts: int) -> SortedRows:
    """Rows sorted by expert, those of one expert by token, and by slot where a token has an expert twice.

    Args:
      experts: integer [T,k]. A pair whose expert is outside of [0, num_experts) is dropped: its row is behind all
        groups. With the experts of a device those of others are: experts - first, and its number of experts.
      num_experts: G, groups.
    """
    experts = _check_expert_ids(experts)
    num_experts = checks.check_count("num_experts", num_experts, 1)
    top_k = max(experts.shape[1], 1)
    _, order, sizes = sort_expert_ids(experts, num_experts)
    return SortedRows(order // top_k, order % top_k, sizes, order)


def sum_dtype(*arrays: jax.Array) -> jnp.dtype:
    """float64 if an array is of it, else float32; no promotion, which JAX may be told to refuse."""
    return jnp.dtype(jnp.float64 if any(x.dtype == jnp.float64 for x in arrays) else jnp.float32)


def gather_rows(x: jax.Array, row_tokens: jax.Array) -> jax.Array:
    """x[row_tokens], and zeros for a token from len(x) on."""
    if x.shape[0] == 0:  # jax gathers nothing from an array without rows
        return jnp.zeros((*row_tokens.shape, *x.shape[1:]), x.dtype)
    return x.at[row_tokens].get(mode="fill", fill_value=0)


def gather_token_rows(x: jax.Array, row_tokens: jax.Array) -> jax.Array:
    """filled_rows by way of float32, in which the gradient is summed then."""
    return gather_rows(versions.replicate_explicit_axes(x).astype(sum_dtype(x)), row_tokens).astype(x.dtype)


def _check_rows(rows: Any, tokens: Any, weights: Any, slots: Any) -> tuple[jax.Array, dict[str, jax.Array]]:
    """The operands of combine."""
    rows, given = checks.as_float_array("rows", rows), {"row_tokens": checks.as_integer_array("row_tokens", tokens)}
    checks.check_rank("rows", rows, "M,H")
    if weights is not None:
        given["row_weights"] = checks.as_float_array("row_weights", weights)
    if slots is not None:
        given["row_slots"] = checks.as_integer_array("row_slots", slots)
    for name, x in given.items():
        checks.check_shape(name, x, rows.shape[:1], why=f", one for each of rows {rows.shape}")
    return versions.replicate_explicit_axes(rows), {
        name: versions.replicate_explicit_axes(x) for name, x in given.items()
    }


def combine(
    rows: Any,
    row_tokens: Any,
    num_tokens: int,
    row_weights: Any = None,
    group_sizes: Any = None,
    preferred_element_type: Any = None,
    row_slots: Any = None,
) -> jax.Array:
    """out[t] = the sum of row_weights[r] * rows[r] over the rows r of token t, in ascending order.

    A sum is a chain of fma in float32, or float64 where an operand is, from +0, and is rounded to the result's dtype
    once. So the same rows give the same bits, whatever other tokens there are. After 256 rows of a token a new chain
    begins, whose sum is added, as in all products of raggemm; the one call of moe_mlp has one chain for any number of
    rows, so that beyond 256 last bits differ.

    Args:
      rows: [M,H], of any float.
      row_tokens: integer [M], the token of each row. A row whose token is outside of [0, num_tokens) takes no part.
      num_tokens: T. A token may have any number of rows; one without rows is zero.
      row_weights: [M], of any float; by default 1.
      group_sizes: integer [G]. Rows behind their sum take no part, and may be NaN. A negative size, or a sum above M,
        is an error when the call has run, as everywhere.
      preferred_element_type: of the result; by default that of rows.
      row_slots: integer [M], as of sort_by_expert: a token's rows are added in the order of these numbers, rows of one
        number in ascending order.

    Returns:
      [T,H], differentiable in rows and row_weights, in forward and reverse mode of every order.
    """
    num_tokens = checks.check_count("num_tokens", num_tokens, 0)
    rows, given = _check_rows(rows, row_tokens, row_weights, row_slots)
    tokens, weights = given["row_tokens"], given.get("row_weights", jnp.ones((), jnp.float32))
    dtype = checks.result_dtype(preferred_element_type, rows.dtype, FLOATS)

    sums = sum_dtype(rows, weights)
    weights, takes_part = weights.astype(sums), (tokens >= 0) & (tokens < num_tokens)
    if group_sizes is not None:
        inside = mask_grouped_rows(len(rows), group_sizes)
        weights, takes_part = weights * inside.astype(sums), takes_part & (inside != 0)
    # 0 for rows that take no part, or their gradients would be 0 times NaN.
    weights = jnp.where(takes_part, weights, 0)
    tokens = jnp.where(takes_part, tokens, num_tokens).astype(jnp.int32)
    return sum_token_rows(rows, weights, tokens, num_tokens, dtype, given.get("row_slots"))


@functools.partial(jax.custom_jvp, nondiff_argnums=(3, 4))
def sum_token_rows(
    rows: jax.Array, weights: jax.Array, tokens: jax.Array, num_tokens: int, dtype: Any, slots: jax.Array | None = None
) -> jax.Array:
    """combine of rows whose token may be num_tokens, which is none: a product with a group for each token. It is up to
    seven times as fast as adding rows where they belong, which XLA:CPU does one by one: 4096 bfloat16 rows of 2048 took
    4.5 ms, not 33, and 16384 of float32 as long, 105 ms."""
    order = jnp.argsort(tokens, stable=True) if slots is None else jnp.lexsort((slots, tokens))
    sizes = jnp.zeros(num_tokens, jnp.int32).at[tokens].add(1, mode="drop")
    lhs, rhs = (GroupedTensor(x[order], first_dims=sizes) for x in (weights[:, None], rows))
    out = grouped_gemm(lhs, rhs, contracting_dims=((0,), (0,)), preferred_element_type=weights.dtype)
    return out.reshape(num_tokens, rows.shape[1]).astype(dtype)


@sum_token_rows.defjvp
def _sums_jvp(num_tokens: int, dtype: Any, primals: Any, tangents: Any) -> tuple[jax.Array, jax.Array]:
    """The tangent adds rows where they belong, for the transpose of that is a gather, and not a permutation of rows,
    which is a scatter."""
    (rows, weights, tokens, slots), (of_rows, of_weights, *_) = primals, tangents
    terms = of_rows.astype(weights.dtype) * weights[:, None] + of_weights[:, None] * rows.astype(weights.dtype)
    out = jnp.zeros((num_tokens, rows.shape[1]), weights.dtype)
    if num_tokens:  # jax gathers nothing from an array without rows
        out = out.at[tokens].add(terms, mode="drop")
    return sum_token_rows(rows, weights, tokens, num_tokens, dtype, slots), out.astype(dtype)
