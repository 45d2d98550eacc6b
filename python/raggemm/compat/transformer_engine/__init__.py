"""transformer_engine: the grouped functions of TransformerEngine's JAX package, as of version 2.20.

    from raggemm.compat import transformer_engine as te
    te.grouped_dense(x, kernel, group_sizes, bias=bias)

Deliberate differences:

- group_offset is supported; TransformerEngine raises. rhs or kernel may then have fewer groups than sizes.
- precision is supported or rejected as in raggemm.compat.lax. TransformerEngine ignores it.
- Elements of a result that belong to no group are zero. In TransformerEngine they are undefined.
- grouped_gemm and grouped_dense have derivatives of every order, in the dtype of their operand. The bias's gradient is
  summed in float32 or float64 and rounded once. With quantizers, gradients are straight-through, first-order and
  reverse-mode only.
- Scales are indexed by group, including empty groups, which TransformerEngine skips. They are neither padded nor
  swizzled (see GroupedScaledTensor1x and unswizzled). A group's last block may be partial. Each operand may have its
  own scaling mode, or none.
- Grouped tensors may be NVFP4.
- Quantizers are not changed: no amax history is kept. grouped_dense quantizes along the contracted axes of each
  product, with any q_layout. It gathers a sharded kernel before it quantizes.
- The router computes in float32. score_function "sqrtsoftplus" is a NotImplementedError.
- token_dispatch: rows beyond the routed ones are zero, and pairs of a token and an expert without a row are dropped. A
  row that is zero because of its probability gives its token no gradient.
- token_combine sums a token's rows in the order of the experts. sort_chunks_by_index keeps rows after the last chunk.
- If moe_mlp computes the experts of moe (see moe), moe rounds once between its products, not three times. The
  quantizers of moe may have every mode.

Products of quantized operands: float32 scales of groups and the second-level scales of NVFP4 multiply the sums.
raggemm.grouped_gemm applies scales of blocks if the stored matrices have two axes and whole blocks, their columns are
not ragged, no block spans several ragged rows, and rhs is not the only ragged operand. Other operands are dequantized
to bfloat16 first. This is exact, because the product of a float8 or float4 element and a float8_e8m0fnu or
float8_e4m3fn scale fits into bfloat16. Only magnitudes below 2^-126 become 0, and magnitudes beyond the range of
bfloat16 become infinite.
"""

from typing import Any

import jax

from raggemm._src.operands import ArgNames as _ArgumentNames
from raggemm.compat.transformer_engine import _products
from raggemm.compat.transformer_engine._dense import grouped_dbias, grouped_dense
from raggemm.compat.transformer_engine._moe import moe
from raggemm.compat.transformer_engine._quantize import grouped_quantize, unswizzled
from raggemm.compat.transformer_engine._quantize import has_quantizers as _has_quantizers
from raggemm.compat.transformer_engine._quantize import quantize_along as _quantize_along
from raggemm.compat.transformer_engine._routing import (
    fused_moe_aux_loss,
    fused_topk_with_score_function,
    sort_chunks_by_index,
    token_combine,
    token_dispatch,
)
from raggemm.compat.transformer_engine._tensors import (
    GroupedNoScaleTensor,
    GroupedQuantizer,
    GroupedScaledTensor1x,
    QuantizerSet,
    ScaledTensor2x,
)

__all__ = [
    "GroupedNoScaleTensor",
    "GroupedQuantizer",
    "GroupedScaledTensor1x",
    "QuantizerSet",
    "ScaledTensor2x",
    "fused_moe_aux_loss",
    "fused_topk_with_score_function",
    "grouped_dbias",
    "grouped_dense",
    "grouped_gemm",
    "grouped_quantize",
    "moe",
    "sort_chunks_by_index",
    "token_combine",
    "token_dispatch",
    "unswizzled",
]


def grouped_gemm(
    lhs: Any,
    rhs: Any,
    contracting_dims: _products.Axes = ((1,), (2,)),
    bias: Any = None,
    precision: Any = jax.lax.Precision.DEFAULT,
    preferred_element_type: Any = None,
    group_offset: Any = None,
    quantizer_set: Any = None,
    use_async_d2h_group_sizes: bool = False,
) -> jax.Array:
    """Computes lhs x rhs for each group. The operands carry the group sizes.

    Args:
      lhs, rhs: arrays or GroupedNoScaleTensors of float16, bfloat16, float32 or float64, or GroupedScaledTensor1xs.
        Ragged rows of lhs and a rhs [G,K,N] or [G,N,K] give [M,N]. Operands that are ragged along the contracted axis
        give [G,M,N]. Other modes of raggemm.grouped_gemm work, too, except all ragged. ValueError if both are
        float8_e5m2.
      contracting_dims: (lhs_axes, rhs_axes) in original_shape, which includes the group axis. With data_layout "T" they
        are axes of the untransposed tensor.
      bias: [G,N].
      precision: see raggemm.compat.lax.
      preferred_element_type: dtype of the result. The default is the dtype of lhs, or its dq_dtype if it has scales.
      group_offset: integer, () or (1,): index of the first group to compute. Required if rhs has fewer groups than
        there are sizes.
      quantizer_set: a QuantizerSet or None. Quantizes operands without scales along the contracted axes: lhs by the
        quantizer x, rhs by the quantizer kernel. Quantized operands have no gradient.
      use_async_d2h_group_sizes: no effect.
    """
    del use_async_d2h_group_sizes
    _has_quantizers(quantizer_set)
    lhs, rhs = _products.parse_operand("lhs", lhs), _products.parse_operand("rhs", rhs)
    if axes := _products.parse_axes(contracting_dims):
        lhs = _quantize_along("lhs", lhs, "quantizer_set.x", getattr(quantizer_set, "x", None), axes[0])
        rhs = _quantize_along("rhs", rhs, "quantizer_set.kernel", getattr(quantizer_set, "kernel", None), axes[1])
    return _products.multiply(
        _ArgumentNames(),
        lhs,
        rhs,
        contracting_dims,
        precision=precision,
        dtype=preferred_element_type,
        bias=bias,
        group_offset=group_offset,
    )
