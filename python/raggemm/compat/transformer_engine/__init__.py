"""grouped_gemm, grouped_dense, grouped_dbias, grouped_quantize and moe of TransformerEngine's JAX package, as of
version 2.20; of its router and permutation fused_topk_with_score_function, fused_moe_aux_loss, token_dispatch,
token_combine and sort_chunks_by_index.

    from raggemm.compat import transformer_engine as te
    te.grouped_dense(x, kernel, group_sizes, bias=bias)

Deliberate differences:

  group_offset    works, where TransformerEngine raises; the kernels may then be those of fewer groups
  precision       is honoured or rejected as in raggemm.compat.lax, where TransformerEngine ignores it
  rows, columns and groups outside are zero, never undefined
  derivatives     of every order, by both functions; each gradient has the dtype of its operand, and that of the
                  bias is summed in float32 or float64 and rounded once. With quantizers they are straight-through, and
                  of the first order, in reverse mode
  scales          are a group's by its number, empty groups included, which TransformerEngine leaves out; neither padded
                  nor swizzled (see GroupedScaledTensor1x; unswizzled); the last block of a group may be partial. The
                  two operands may have different scaling modes, or one of them none
  NVFP4           is there for groups
  quantizers      are not changed: no amax history is kept. grouped_dense quantizes along what each product contracts,
                  in rows or columns, whatever q_layout says, and gathers a sharded kernel first
  use_async_d2h_group_sizes
                  has no effect: there it says how the group sizes come from the device to the host
  router          float32 inside; score_function "sqrtsoftplus" is not there (NotImplementedError)
  permutation     rows beyond those that are routed are zero, pairs for which there is no row are dropped; a token's
                  rows are summed from its first expert to its last. A row that a probability of 0 makes zero gives its
                  token no gradient. Chunks that are fewer rows than there are leave the rows behind them where they are
  moe             is one call on all tokens and all experts, whatever mesh there is: names of axes and
                  recv_capacity_per_rank have no effect, nothing is dropped and nothing bootstrapped. Between its
                  products it rounds once, not three times, but with quantizers, which may be of every mode

How quantized operands are multiplied: float32 scales of groups and the second level of NVFP4 multiply the sums. Scales
of blocks go into the call as they are where an operand is a row-major matrix, or has one for each group, of whole
blocks, and no block begins with a group's rows. Otherwise it is dequantized to bfloat16 first. That is exact, for an
element of float8 or float4 times a scale of float8_e8m0fnu or float8_e4m3fn has no more digits; only what is below
2^-126 is 0, and what is above bfloat16's largest infinite.
"""

from typing import Any

import jax

from raggemm._src.operands import ArgNames as _Words
from raggemm.compat.transformer_engine import _products
from raggemm.compat.transformer_engine._dense import grouped_dbias, grouped_dense
from raggemm.compat.transformer_engine._moe import moe
from raggemm.compat.transformer_engine._quantize import along as _along
from raggemm.compat.transformer_engine._quantize import grouped_quantize, unswizzled
from raggemm.compat.transformer_engine._quantize import has_quantizers as _has_quantizers
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
    """lhs x rhs for each group, as TransformerEngine's, where the operands carry the group sizes.

    Args:
      lhs, rhs: GroupedNoScaleTensors or arrays, of float16, bfloat16, float32 or float64, or GroupedScaledTensor1xs.
        Divided rows of lhs with a rhs [G,K,N] or [G,N,K] give [M,N], both divided along the contracted axis give
        [G,M,N], and the other modes of raggemm.grouped_gemm but all ragged are there too. Two of float8_e5m2 are a
        ValueError.
      contracting_dims: (lhs_axes, rhs_axes) of original_shape, the group axis included; with data_layout "T" those of
        the tensor that is not transposed.
      bias: [G,N].
      precision: as in raggemm.compat.lax.
      preferred_element_type: dtype of the result, by default that of lhs, which is dq_dtype where it has scales.
      group_offset: integer, () or (1,): the first group that is computed; to be given where rhs has fewer groups than
        the sizes count.
      quantizer_set: quantizers, or None, of an lhs (x) and rhs (kernel) without scales, which are quantized along the
        contracted axes; any object with these attributes. No derivative passes through.
      use_async_d2h_group_sizes: without effect.
    """
    del use_async_d2h_group_sizes
    _has_quantizers(quantizer_set)
    lhs, rhs = _products.operand("lhs", lhs), _products.operand("rhs", rhs)
    if axes := _products.axes_of(contracting_dims):
        lhs = _along("lhs", lhs, "quantizer_set.x", getattr(quantizer_set, "x", None), axes[0])
        rhs = _along("rhs", rhs, "quantizer_set.kernel", getattr(quantizer_set, "kernel", None), axes[1])
    return _products.multiplied(
        _Words(),
        lhs,
        rhs,
        contracting_dims,
        precision=precision,
        dtype=preferred_element_type,
        bias=bias,
        group_offset=group_offset,
    )
