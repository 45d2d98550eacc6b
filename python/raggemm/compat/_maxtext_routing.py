"""permute and unpermute of MaxText's RoutedMoE, computed by raggemm's sort_by_expert and combine."""

from typing import Any

import jax
import jax.numpy as jnp

from raggemm._src.routing import combine, gather_token_rows, sort_by_expert


def _is_llama4(layer: Any) -> bool:
    """Returns True for a layer of Llama 4. There, routing weights multiply the inputs of experts, not the results."""
    block = layer.config.decoder_block
    return getattr(block, "value", block) == "llama4"


def _reject_ragged_sort(layer: Any) -> None:
    if layer.config.use_ragged_sort and layer.config.use_ring_of_experts:
        raise NotImplementedError(
            "config.use_ragged_sort and config.use_ring_of_experts are both set, only one is supported"
        )


def permute(
    layer: Any,
    inputs: Any,
    gate_logits: Any,
    pre_bias_logits: Any,
    use_custom_sort_vjp: bool = True,
    rngs: Any = None,
    roll_to_expert_id: Any = None,
    input_ids: Any = None,
) -> tuple[Any, ...]:
    """Replaces RoutedMoE.permute: gathers rows for the experts that layer.get_topk selects, sorted by expert.

    For Llama 4, rows are multiplied by the sigmoid of their routing weights.

    Args:
      layer: a RoutedMoE. permute uses get_topk, num_experts, num_experts_per_tok, dtype, is_hash_routing,
        load_balance_loss, should_update_load_balance, and these fields of config: decoder_block,
        load_balance_loss_weight, routed_bias_update_rate, use_ragged_sort and use_ring_of_experts. NotImplementedError
        if both use_ragged_sort and use_ring_of_experts are set.
      inputs: [batch,sequence,H], the tokens.
      gate_logits, pre_bias_logits: [batch,sequence,E].
      use_custom_sort_vjp: no effect.
      rngs, input_ids: arguments of get_topk.
      roll_to_expert_id: the expert that becomes number 0 in the results. The experts after it follow, then the experts
        before it. None: experts keep their numbers.

    Returns:
      (rows, order, weights, group_sizes, row_experts, loss, update, None). rows is [batch*sequence*k,H] of layer.dtype.
      order has the index of each row in flattened weights. weights is [batch,sequence,k], from get_topk. group_sizes
      [E] has the number of rows of each expert. row_experts has the expert of each row. loss is the load-balance loss
      or None. update is the update of the routed bias or None.
    """
    del use_custom_sort_vjp
    _reject_ragged_sort(layer)
    config, experts = layer.config, layer.num_experts
    weights, chosen = layer.get_topk(gate_logits, pre_bias_logits, rngs, input_ids)
    loss, updates = None, None
    if config.load_balance_loss_weight > 0.0 and not layer.is_hash_routing:
        scores = jax.nn.softmax(gate_logits.astype(jnp.float32), axis=-1)
        loss = layer.load_balance_loss(chosen, scores.astype(layer.dtype))
    chosen = chosen.reshape(-1, layer.num_experts_per_tok)
    if layer.should_update_load_balance():
        counts = sort_by_expert(chosen, experts).group_sizes
        below_mean, rate = chosen.size / experts - counts.astype(float), config.routed_bias_update_rate
        updates = jnp.where(below_mean > 0, rate, jnp.where(below_mean < 0, -rate, 0.0))

    x = jnp.asarray(inputs).reshape(-1, inputs.shape[-1])
    if _is_llama4(layer):
        x = x * jax.nn.sigmoid(weights.astype(jnp.float32)).reshape(len(x), -1)
    if roll_to_expert_id is not None:
        chosen = (chosen - roll_to_expert_id) % experts
    rows = sort_by_expert(chosen, experts)
    row_experts = chosen.reshape(-1)[rows.order]
    out = gather_token_rows(x, rows.row_tokens).astype(layer.dtype)
    return out, rows.order, weights, rows.group_sizes, row_experts, loss, updates, None


def unpermute(
    layer: Any,
    intermediate: Any,
    sorted_selected_experts: Any,
    weights: Any,
    batch_size: int,
    sequence_length: int,
    use_custom_sort_vjp: bool = True,
    group_sizes: Any = None,
) -> jax.Array:
    """Replaces RoutedMoE.unpermute: returns the weighted sum of each token's rows.

    Args:
      layer: a RoutedMoE, see permute.
      intermediate: [batch*sequence*k,H], results of the experts in the order of permute's rows.
      sorted_selected_experts: the order of the rows, from permute.
      weights: [batch,sequence,k], or another shape with as many elements. Ignored for Llama 4, because
        permute has applied them.
      use_custom_sort_vjp, group_sizes: no effect.

    Returns:
      [batch,sequence,H] of layer.dtype.
    """
    del use_custom_sort_vjp, group_sizes
    _reject_ragged_sort(layer)
    order = jnp.asarray(sorted_selected_experts)
    row_weights = None if _is_llama4(layer) else jnp.reshape(weights, -1)[order]
    tokens, dtype = batch_size * sequence_length, layer.dtype
    out = combine(intermediate, order // layer.num_experts_per_tok, tokens, row_weights, None, dtype)
    return out.reshape(batch_size, sequence_length, -1)
