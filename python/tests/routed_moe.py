"""A stand-in for MaxText's RoutedMoE, with the attributes that permute and unpermute of compat.maxtext use."""

import types

import jax
import jax.numpy as jnp
from raggemm.compat import maxtext


class RoutedMoE:
    """A layer that routes tokens to the top_k largest logits, without a bias."""

    permute, unpermute = maxtext.permute, maxtext.unpermute
    is_hash_routing = False

    def __init__(self, experts, top_k=2, dtype=jnp.float32, block="mixtral", **config):
        self.num_experts, self.num_experts_per_tok, self.dtype = experts, top_k, dtype
        options = {"load_balance_loss_weight": 0.0, "use_ragged_sort": False, "use_ring_of_experts": False}
        block = types.SimpleNamespace(value=block)
        self.config = types.SimpleNamespace(decoder_block=block, **options | config)

    def get_topk(self, gate_logits, pre_bias_logits, rngs=None, input_ids=None):
        weights, experts = jax.lax.top_k(gate_logits, self.num_experts_per_tok)
        llama = self.config.decoder_block.value == "llama4"
        return weights if llama else jax.nn.softmax(weights.astype(jnp.float32)).astype(self.dtype), experts

    def should_update_load_balance(self):
        return getattr(self.config, "routed_bias_update_rate", 0) > 0

    def load_balance_loss(self, top_k_indices, logits):
        return top_k_indices, logits
