"""permute and unpermute of MaxText's RoutedMoE, over raggemm's sort_by_expert and combine."""

from typing import Any

import jax
import jax.numpy as jnp

from raggemm._src.routing import combine, gather_token_rows, sort_by_expert


def _is_llama4(layer: Any) -> bool:
    """Whose weights scale what experts get, not what they give."""
    block = layer.config.decoder_block
    return getattr(block, "value", block) == "llama4"


def _refuse_ragged_sort(layer: Any) -> None:
    if layer.config.use_ragged_sort and layer.config.use_ring_of_experts:
        raise NotImplementedError("config.use_ragged_sort with config.use_ring_of_experts; one of them can be set")


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
    """RoutedMoE.permute: the rows of the experts that layer.get_topk chooses.

    Args:
      layer: a RoutedMoE, of which it uses get_topk, num_experts, num_experts_per_tok, dtype, config's decoder_block,
        load_balance_loss_weight, use_ragged_sort and use_ring_of_experts, is_hash_routing, load_balance_loss,
        should_update_load_balance and config's routed_bias_update_rate. NotImplementedError where it sorts by the
        ragged kernels of the ring of experts.
      inputs: [batch,sequence,H]; gate_logits, pre_bias_logits: [batch,sequence,E].
      use_custom_sort_vjp: no effect.
      rngs, input_ids: for get_topk.
      roll_to_expert_id: the expert that is number 0 in the order of the rows.

    Returns:
      (rows [batch*sequence*k,H] of layer.dtype, their order, weights [batch,sequence,k], group sizes [E], the expert of
      each row, the load-balance loss or None, what is added to the routed bias or None, None).
    """
    del use_custom_sort_vjp
    _refuse_ragged_sort(layer)
    config, experts = layer.config, layer.num_experts
    weights, chosen = layer.get_topk(gate_logits, pre_bias_logits, rngs, input_ids)
    loss, updates = None, None
    if config.load_balance_loss_weight > 0.0 and not layer.is_hash_routing:
        scores = jax.nn.softmax(gate_logits.astype(jnp.float32), axis=-1)
        loss = layer.load_balance_loss(chosen, scores.astype(layer.dtype))
    chosen = chosen.reshape(-1, layer.num_experts_per_tok)
    if layer.should_update_load_balance():
        counts = sort_by_expert(chosen, experts).group_sizes
        missing, rate = chosen.size / experts - counts.astype(float), config.routed_bias_update_rate
        updates = jnp.where(missing > 0, rate, jnp.where(missing < 0, -rate, 0.0))

    x = jnp.asarray(inputs).reshape(-1, inputs.shape[-1])
    if _is_llama4(layer):
        x = x * jax.nn.sigmoid(weights.astype(jnp.float32)).reshape(len(x), -1)
    if roll_to_expert_id is not None:
        chosen = (chosen - roll_to_expert_id) % experts
    rows = sort_by_expert(chosen, experts)
    experts_of_rows = chosen.reshape(-1)[rows.order]
    out = gather_token_rows(x, rows.row_tokens).astype(layer.dtype)
    return out, rows.order, weights, rows.group_sizes, experts_of_rows, loss, updates, None


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
    """RoutedMoE.unpermute: the weighted sum of what experts made of each token.

    Args:
      layer: a RoutedMoE, as for permute.
      intermediate: [batch*sequence*k,H], rows as permute has them.
      sorted_selected_experts: the order that permute gave.
      weights: [batch,sequence,k], or any shape of these; of Llama 4 they are not used, for permute did.
      use_custom_sort_vjp, group_sizes: no effect.

    Returns:
      [batch,sequence,H] of layer.dtype, summed in float32, as with config.float32_weight_sum, by raggemm.combine.
    """
    del use_custom_sort_vjp, group_sizes
    _refuse_ragged_sort(layer)
    order = jnp.asarray(sorted_selected_experts)
    of_rows = None if _is_llama4(layer) else jnp.reshape(weights, -1)[order]
    tokens, dtype = batch_size * sequence_length, layer.dtype
    out = combine(intermediate, order // layer.num_experts_per_tok, tokens, of_rows, None, dtype)
    return out.reshape(batch_size, sequence_length, -1)
