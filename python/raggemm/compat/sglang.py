"""sglang: gmm of sglang-jax, which its mixture-of-experts layer calls.

    from raggemm.compat.sglang import gmm  # was: from sgl_jax.srt.kernels.gmm.megablox_gmm_backend import gmm

Arguments are those of that function, in its order, and semantics those of what it runs off a TPU, its first kernel:
rhs [num_groups, k, n] with scales and a bias, existing_out overwritten by the rows of the groups, lhs quantized if
activation_quantized_dtype says so, and not otherwise. Deliberate differences:

- Rows of no processed group are zero, or existing_out's, whatever zero_initialize says. There they are zero where rhs
  has fewer groups than group_sizes and there is no existing_out, and else what the memory held.
- m need not be a multiple of a tile; tiling has no effect.
- rhs_bias is added as it is. There, with activation_quantized_dtype, it is multiplied by the scales of lhs, and so are
  the rows of existing_out.
- Elements of lhs are those of raggemm.quantize; no derivative passes through. Without activation_quantized_dtype there
  is every derivative, of the scales too.
- Sums are made in float32 or float64, which is as precise as any acc_dtype.
"""

from typing import Any

import jax
import jax.numpy as jnp

from raggemm._src import checks
from raggemm._src.arguments import existing_out_options
from raggemm._src.dtypes import QUANTIZED
from raggemm._src.grouped_gemm import compute_product
from raggemm._src.operands import ArgNames, make_operands
from raggemm._src.quantization import attach_scale, quantize
from raggemm.compat.ejkernel import bias_of_groups
from raggemm.compat.megablox import first_group

__all__ = ["gmm"]

_WORDS = ArgNames(sizes="group_sizes", c="existing_out", bias="rhs_bias")


def gmm(
    lhs: Any,
    rhs: Any,
    group_sizes: Any,
    preferred_element_type: Any = jnp.float32,
    rhs_scale: Any = None,
    rhs_bias: Any = None,
    tiling: Any = None,
    group_offset: Any = None,
    existing_out: Any = None,
    interpret: bool | None = None,
    maybe_quantize_lhs: bool = True,
    zero_initialize: bool = True,
    acc_dtype: Any = None,
    activation_quantized_dtype: Any = None,
    v2_tile_info: Any = None,
) -> jax.Array:
    """lhs[rows of group g] x rhs[g] + rhs_bias[g] for each group.

    Args:
      lhs: [m, k], float16, bfloat16, float32 or float64.
      rhs: [num_groups, k, n], of a float type or, with rhs_scale, of the types of a QuantizedTensor's data; or a
        QuantizedTensor, without rhs_scale.
      group_sizes: [total groups], int32, int64 or uint32, the rows of each group. Their sum may be less than m.
      preferred_element_type: dtype of the result. The default is float32 for float64 operands too.
      rhs_scale: [num_groups, blocks, 1, n]: the elements of each n of so many blocks of k share a value.
      rhs_bias: [num_groups, 1, n], added to the rows of its group.
      group_offset: integer, () or (1,): the group in group_sizes that rhs[0] is for; None is 0.
      existing_out: [m, n] of preferred_element_type (else ValueError). Rows outside the processed groups are kept.
      activation_quantized_dtype: of the elements that lhs becomes, with a scale for each row.
      tiling, interpret, maybe_quantize_lhs, zero_initialize, acc_dtype, v2_tile_info: without effect; they choose among
        kernels, or how one computes.

    Returns:
      [m, n].
    """
    del tiling, interpret, maybe_quantize_lhs, zero_initialize, acc_dtype, v2_tile_info
    if rhs_scale is not None:
        rhs = attach_scale(rhs, rhs_scale, transposed=False)
    if activation_quantized_dtype is not None:
        dtype = checks.as_dtype("activation_quantized_dtype", activation_quantized_dtype, QUANTIZED)
        lhs = quantize(checks.as_float_array("lhs", lhs), dtype, axes=-1)
    options = {"preferred_element_type": preferred_element_type}
    options["group_offset"] = first_group(group_offset, rhs, group_sizes)
    if rhs_bias is not None:
        options["bias"] = bias_of_groups(rhs_bias)
    options |= existing_out_options(existing_out, preferred_element_type, beta=0)
    return compute_product(_WORDS, *make_operands(lhs, rhs, group_sizes, (1, 1)), **options)
