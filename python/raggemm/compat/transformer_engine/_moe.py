"""Defines moe, TransformerEngine's layer of a router and its experts. moe_mlp computes the experts if possible."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from raggemm._src import checks, versions
from raggemm._src.dtypes import FLOATS
from raggemm._src.mlp import moe_mlp
from raggemm._src.routing import SortedRows, combine, gather_token_rows, sort_by_expert
from raggemm.compat.transformer_engine._dense import grouped_dense
from raggemm.compat.transformer_engine._quantize import has_quantizers
from raggemm.compat.transformer_engine._routing import fused_moe_aux_loss, fused_topk_with_score_function
from raggemm.compat.transformer_engine._tensors import QuantizerSet

_FLOATS = tuple(dtype for dtype in FLOATS if dtype.itemsize < 8)
# For each name of a function of jax.nn, the activation of moe_mlp that equals it. jax.nn.gelu uses tanh.
_FUSED_ACTIVATIONS = {"silu": "silu", "swish": "silu", "gelu": "gelu_tanh", "relu": "relu"}
_ROW_MULTIPLE = 128  # TransformerEngine pads experts to multiples of this number of rows


def _activation(name: Any) -> Callable[[jax.Array], jax.Array]:
    if callable(name):
        return name
    function = (lambda x: x) if name == "linear" else getattr(jax.nn, str(name), None)
    if not callable(function):
        raise ValueError(f"activation_type is {name!r}, must be 'linear' or a function of jax.nn")
    return function


class _Experts(NamedTuple):
    """Matrices and biases of the experts' two products.

    wi: [E,H,2I], columns of the gate, then of up. wo: [E,I,H]. wi_bias: [E,2I]. wo_bias: [E,H].
    """

    wi: jax.Array
    wo: jax.Array
    wi_bias: jax.Array | None
    wo_bias: jax.Array | None

    @classmethod
    def parse(cls, experts: int, x: jax.Array, matrices: dict[str, Any], biases: dict[str, Any]) -> "_Experts":
        """Checks the arguments of moe. matrices: wi and wo. biases: wi_0_bias, wi_1_bias and wo_bias."""
        hidden = x.shape[1]
        wi, wo = (checks.as_float_array(name, a, _FLOATS) for name, a in matrices.items())
        if wi.ndim != 3 or wi.shape[:2] != (experts, hidden) or wi.shape[2] % 2:
            raise ValueError(f"wi: shape is {wi.shape}, must be ({experts}, {hidden}, 2 * intermediate)")
        inner = wi.shape[2] // 2
        checks.check_shape("wo", wo, (experts, inner, hidden))
        missing = [name for name, b in biases.items() if b is None]
        if len(missing) == len(biases):
            return cls(wi.astype(x.dtype), wo.astype(x.dtype), None, None)
        if missing:
            raise ValueError(f"{missing[0]} is None, must be given with the other biases")
        gate, up, down = (checks.as_float_array(name, b, _FLOATS) for name, b in biases.items())
        for name, b, columns in zip(biases, (gate, up, down), (inner, inner, hidden), strict=True):
            checks.check_shape(name, b, (experts, columns))
        return cls(wi.astype(x.dtype), wo.astype(x.dtype), jnp.concatenate([gate, up], 1), down)


class _Block(NamedTuple):
    """The experts of a moe call, with their options. __call__ computes the experts for routed rows."""

    experts: _Experts
    quantizer_sets: tuple[Any, Any]
    activation: Any
    weights_before_wo: bool  # True: routing weights multiply the operand of wo. False: they multiply the result

    def __call__(self, x: jax.Array, rows: SortedRows, weights: jax.Array) -> jax.Array:
        """Computes for each token the weighted sum of its experts' results, [T,H].

        Calls grouped_dense twice in the cases that the docstring of moe lists, else moe_mlp.
        """
        wi, wo, wi_bias, wo_bias = self.experts
        is_plain = not any(has_quantizers(q, f"quantizer_sets[{i}]") for i, q in enumerate(self.quantizer_sets))
        fused = _FUSED_ACTIVATIONS.get(self.activation) if isinstance(self.activation, str) else None
        if fused and is_plain and not (self.weights_before_wo and wo_bias is not None):
            routed = rows.row_tokens, weights, rows.group_sizes
            return moe_mlp(x, *routed, wi, wo, b_up=wi_bias, b_down=wo_bias, activation=fused, merged="halves")
        fc1, fc2 = self.quantizer_sets
        sizes = rows.group_sizes
        products = grouped_dense(gather_token_rows(x, rows.row_tokens), wi, sizes, bias=wi_bias, quantizer_set=fc1)
        gate, up = jnp.split(products, 2, axis=1)
        inner = _activation(self.activation)(gate) * up
        if self.weights_before_wo:
            inner = inner * weights.astype(inner.dtype)[:, None]
        out = grouped_dense(inner, wo, sizes, bias=wo_bias, quantizer_set=fc2)
        return combine(out, rows.row_tokens, len(x), None if self.weights_before_wo else weights)


def _router_logits(x: jax.Array, gate_kernel: Any, experts: int) -> jax.Array:
    kernel = checks.as_float_array("gate_kernel", gate_kernel, _FLOATS)
    checks.check_shape("gate_kernel", kernel, (x.shape[1], experts))
    return jnp.matmul(x, kernel.astype(x.dtype)).astype(jnp.float32)


def moe(
    x: Any,
    gate_kernel: Any,
    wi: Any,
    wo: Any,
    wi_0_bias: Any = None,
    wi_1_bias: Any = None,
    wo_bias: Any = None,
    expert_bias: Any = None,
    *,
    num_experts: int,
    num_experts_per_tok: int,
    activation_type: Any = "silu",
    score_function: Any = "softmax",
    use_pre_softmax: bool = False,
    num_groups: int | None = None,
    group_topk: int | None = None,
    scaling_factor: float = 1.0,
    aux_loss_coeff: float = 0.0,
    apply_topk_weights_early: bool = False,
    quantizer_sets: tuple[Any, Any] = (QuantizerSet(), QuantizerSet()),
    ep_axis: Any,
    data_parallelism_axes: Any = (),
    input_axes: Any = (),
    gate_kernel_axes: Any = (),
    wi_kernel_axes: Any = ("exp", "embed", "mlp"),
    wo_kernel_axes: Any = ("exp", "mlp", "embed"),
    dtype: Any = jnp.float32,
    recv_capacity_per_rank: int | None = None,
) -> tuple[jax.Array, jax.Array | None, jax.Array]:
    """Routes tokens to experts, and sums the weighted results of the experts.

    The call has all tokens and experts, so it needs no mesh and no ep_bootstrap. moe_mlp computes the experts, except
    in three cases: there are quantizers; activation_type is a function, or a name other than "silu", "swish", "gelu"
    and "relu"; or there is a wo_bias with apply_topk_weights_early. In these cases grouped_dense is called twice, and
    rounds both results to the dtype of x.

    Args:
      x: [batch,sequence,H], float16, bfloat16 or float32. All matrices are rounded to its dtype first.
      gate_kernel: [H,E], matrix of the router. Logits are computed in the dtype of x, then converted to float32.
      wi: [E,H,2I], the columns of the gate first.
      wo: [E,I,H].
      wi_0_bias, wi_1_bias, wo_bias: [E,I] for the gate, [E,I] for up, [E,H] for wo. All or none.
      expert_bias: [E], see fused_topk_with_score_function.
      num_experts: number of experts, E.
      num_experts_per_tok: experts of a token.
      activation_type: activation of the gate: the name of a function of jax.nn, "linear", or a function.
      score_function, use_pre_softmax, num_groups, group_topk, scaling_factor: see fused_topk_with_score_function. There
        are no groups by default.
      aux_loss_coeff: weight of fused_moe_aux_loss. There is no loss unless the weight is positive.
      apply_topk_weights_early: True: routing weights do not multiply wo_bias.
      quantizer_sets: a QuantizerSet for wi and one for wo, see grouped_dense.
      ep_axis, data_parallelism_axes, input_axes, gate_kernel_axes, wi_kernel_axes, wo_kernel_axes: no effect.
      dtype: type to which the routing weights and the loss are rounded.
      recv_capacity_per_rank: a multiple of 128. No effect: no row is ever dropped.

    Returns:
      (out, loss, rows): out is [batch,sequence,H] of the dtype of x. loss is (), or None. rows is int32 (1,1), the
      number of rows of all experts, after the rows of each expert are rounded up to a multiple of 128.
    """
    del ep_axis, data_parallelism_axes, input_axes, gate_kernel_axes, wi_kernel_axes, wo_kernel_axes
    capacity = recv_capacity_per_rank
    if capacity is not None and checks.check_count("recv_capacity_per_rank", capacity, 1) % _ROW_MULTIPLE:
        raise ValueError(f"recv_capacity_per_rank is {capacity}, must be a multiple of {_ROW_MULTIPLE}")
    x, num_experts = checks.as_float_array("x", x, _FLOATS), checks.check_count("num_experts", num_experts, 1)
    top_k = checks.check_count("num_experts_per_tok", num_experts_per_tok, 1)
    if top_k > num_experts:
        raise ValueError(f"num_experts_per_tok is {top_k}, must be at most num_experts, {num_experts}")
    checks.as_dtype("dtype", dtype, FLOATS)
    checks.check_rank("x", x, "batch,sequence,H")
    if not isinstance(quantizer_sets, tuple | list) or len(quantizer_sets) != 2:
        raise TypeError(f"quantizer_sets is {quantizer_sets!r}, must be a pair: for wi and for wo")
    tokens = versions.replicate_explicit_axes(x).reshape(-1, x.shape[2])
    biases = {"wi_0_bias": wi_0_bias, "wi_1_bias": wi_1_bias, "wo_bias": wo_bias}
    experts = _Experts.parse(num_experts, tokens, {"wi": wi, "wo": wo}, biases)
    logits = _router_logits(tokens, gate_kernel, num_experts)
    probs, mask = fused_topk_with_score_function(
        logits,
        top_k,
        use_pre_softmax,
        num_groups=-1 if num_groups is None else num_groups,
        group_topk=-1 if group_topk is None else group_topk,
        scaling_factor=scaling_factor,
        score_function=score_function,
        expert_bias=expert_bias,
    )
    chosen = lax.top_k(mask.astype(jnp.int32), top_k)[1]
    weights = jnp.take_along_axis(probs.astype(dtype), chosen, 1).astype(jnp.float32)
    rows = sort_by_expert(chosen, num_experts)
    block = _Block(
        experts,
        quantizer_sets,
        activation_type,
        checks.check_bool("apply_topk_weights_early", apply_topk_weights_early),
    )
    out = block(tokens, rows, weights.reshape(-1)[rows.order])
    loss = None
    if aux_loss_coeff > 0:
        scores = fused_topk_with_score_function(logits, top_k, score_function=score_function, compute_aux_scores=True)[
            0
        ]
        loss = fused_moe_aux_loss(scores, rows.group_sizes, top_k, aux_loss_coeff).astype(dtype)
    num_rows = (-(-rows.group_sizes // _ROW_MULTIPLE) * _ROW_MULTIPLE).sum(dtype=jnp.int32).reshape(1, 1)
    return out.reshape(x.shape), loss, num_rows
