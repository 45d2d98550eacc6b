"""sglang: gmm of sglang-jax, which its mixture-of-experts layer calls.

    from raggemm.compat.sglang import gmm  # was: from sgl_jax.srt.kernels.gmm.megablox_gmm_backend import gmm

The arguments and their order are those of sglang-jax. The semantics are those of the first kernel in sglang-jax, the
one that runs without a TPU: rhs [num_groups, k, n] has scales and a bias, and rows of the groups overwrite
existing_out. activation_quantized_dtype quantizes lhs. Deliberate differences:

- Rows outside the processed groups are zero, or keep the rows of existing_out. In sglang-jax these rows are zero only
  if rhs has fewer groups than group_sizes and existing_out is None.
- m need not be a multiple of a tile.
- rhs_bias is added unscaled. With activation_quantized_dtype, sglang-jax multiplies rhs_bias and the rows of
  existing_out by the scales of lhs.
- lhs is quantized inside the call if its codes are int8 and rhs has integers or float4_e2m1fn, as raggemm.gmm does with
  lhs_block=None. Otherwise raggemm.quantize quantizes it. A quantized lhs has no derivative. Other derivatives exist,
  including those of the scales, which ignore the rounding of lhs if it is quantized inside the call.
- Sums are float32 or float64, for any acc_dtype.
"""

from typing import Any

import jax
import jax.numpy as jnp

from raggemm._src import checks
from raggemm._src.arguments import existing_out_options, takes_rounded_rows
from raggemm._src.dtypes import QUANTIZED
from raggemm._src.grouped_gemm import compute_product
from raggemm._src.operands import ArgNames, make_operands
from raggemm._src.quantization import attach_scale, quantize
from raggemm.compat.ejkernel import squeeze_bias
from raggemm.compat.megablox import resolve_group_offset

__all__ = ["gmm"]

_ARGUMENT_NAMES = ArgNames(sizes="group_sizes", c="existing_out", bias="rhs_bias")


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
    """Computes lhs[rows of group g] x rhs[g] + rhs_bias[g] for each group.

    Args:
      lhs, group_sizes, preferred_element_type, existing_out: see raggemm.gmm.
      rhs: [num_groups, k, n], of a float type or a QuantizedTensor. With rhs_scale also of the types of a
        QuantizedTensor's data.
      rhs_scale: [num_groups, blocks, 1, n], one scale per column n and block of k. Blocks have the same size.
      rhs_bias: [num_groups, 1, n], added to the rows of its group.
      group_offset: see raggemm.gmm. None is 0.
      activation_quantized_dtype: type to which lhs is quantized, with one scale per row. None does not quantize lhs.
      tiling, interpret, maybe_quantize_lhs, zero_initialize, acc_dtype, v2_tile_info: no effect.

    Returns:
      [m, n].
    """
    del tiling, interpret, maybe_quantize_lhs, zero_initialize, acc_dtype, v2_tile_info
    if rhs_scale is not None:
        rhs = attach_scale(rhs, rhs_scale, transposed=False)
    options: dict[str, Any] = {"preferred_element_type": preferred_element_type}
    if activation_quantized_dtype is not None:
        dtype = checks.as_dtype("activation_quantized_dtype", activation_quantized_dtype, QUANTIZED)
        lhs = checks.as_float_array("lhs", lhs)
        if takes_rounded_rows(lhs, dtype, rhs, 1, preferred_element_type):
            lhs, options["lhs_block"] = jax.lax.stop_gradient(lhs), 0
        else:
            lhs = quantize(lhs, dtype, axes=-1)
    options["group_offset"] = resolve_group_offset(group_offset, rhs, group_sizes)
    if rhs_bias is not None:
        options["bias"] = squeeze_bias(rhs_bias)
    options |= existing_out_options(existing_out, preferred_element_type, beta=0)
    return compute_product(_ARGUMENT_NAMES, *make_operands(lhs, rhs, group_sizes, (1, 1)), **options)
