"""maxtext: replacements of gmm and tgmm of maxtext.kernels.megablox, and of permute and unpermute of RoutedMoE.

    from maxtext.kernels import megablox
    from raggemm.compat import maxtext
    megablox.gmm = maxtext.gmm  # The MoE layer calls this function.
    megablox.backend.gmm, megablox.backend.tgmm = maxtext.gmm, maxtext.tgmm  # Or: keep MaxText's own gradients.
    RoutedMoE.permute, RoutedMoE.unpermute = maxtext.permute, maxtext.unpermute  # of maxtext.layers.moe

gmm has the arguments of ops.gmm in the same order, and the argument varying_axes of backend.gmm. tgmm has the arguments
of backend.tgmm. Operands may be QArrays of qwix or QuantizedTensors. Other operands are quantized by a qwix rule, or by
lhs_quantize_dtype and rhs_quantize_dtype. By default, lhs has one scale per row, and rhs one scale per column for all
experts. The rule may also quantize the cotangent of the result. The gradients of a product with a quantized operand are
those of MaxText: dlhs = (dout * rhs.scale) x rhs.elements^T and drhs = lhs.elements^T x (dout * lhs.scale). They are
first-order and reverse-mode only. Deliberate differences:

- All differences in the docstring of raggemm.compat.megablox.
- group_offset, existing_out and partial_sum always take effect.
- raggemm.quantize quantizes operands. The scale of int8 is absmax / 127; in MaxText it is absmax / 127.5. An asymmetric
  range is a ValueError, because MaxText's gradients ignore the zero point.
- gmm quantizes lhs inside the call, as raggemm.gmm does with lhs_block=None, if its codes are int8 with one scale per
  row by "absmax", and rhs has integers or float4_e2m1fn. The gradients use the codes of raggemm.quantize, of which a
  few differ by one.
- lhs is quantized by row, also with use_gmm_v2. With use_gmm_v2, MaxText quantizes lhs in the kernel, by tile.
- The cotangent of a QArray is that of MaxText: for float elements the gradient, rounded to their type; for integers
  none; and for the scales zeros. Operands that tgmm quantizes have no derivative.
- If the result is float, arrays of a quantized dtype count as QuantizedTensors without scales. Both operands may be
  such arrays. int8 and uint8 with an int32 result work as in raggemm.gmm.
- Scales may be per expert, per row of a group, or per block, with every kernel option.
- permute and unpermute are those of MaxText before 0.2.5. Newer layers pass arguments that these functions lack.
- unpermute always sums in float32, in the order of the experts. MaxText sums in the order of selection.
"""

from typing import Any

import jax
import jax.numpy as jnp

from raggemm._src import api, checks, versions
from raggemm._src.arguments import existing_out_options
from raggemm._src.dtypes import FLOATS, QUANTIZED
from raggemm._src.grouped_gemm import compute_product
from raggemm._src.operands import ArgNames, make_operands
from raggemm._src.tensors import QuantizedTensor
from raggemm.compat import _maxtext_products, megablox
from raggemm.compat._maxtext_products import Rule, check_rule, quantize_operand, resolve_rule
from raggemm.compat._maxtext_routing import permute, unpermute

__all__ = ["gmm", "permute", "tgmm", "unpermute"]


def _check_tiling(tiling: Any, lengths: tuple[int, ...]) -> None:
    if tiling is None or callable(tiling):
        return
    if not isinstance(tiling, tuple | list) or len(tiling) not in lengths:
        numbers = " or ".join(map(str, lengths))
        raise ValueError(f"tiling is {tiling}, must have {numbers} numbers, or be a function of (m, k, n)")


def _select_rule(qwix_rule: Any, lhs_dtype: Any, rhs_dtype: Any, use_qwix: bool) -> Rule | None:
    """Returns the quantization rule of a call, selected as in MaxText's ops.gmm."""
    if use_qwix:
        return resolve_rule(qwix_rule)
    if lhs_dtype is None and rhs_dtype is None:
        return None
    return check_rule(Rule(lhs_dtype, rhs_dtype), ("lhs_quantize_dtype", "rhs_quantize_dtype", "bwd_qtype"))


def _gather_axes(axes: Any, use_tokamax: bool, rule: Rule | None, rhs: Any) -> tuple[tuple[str, int], ...]:
    """Returns the axes along which to gather quantized weights: `axes` if MaxText's gmm would gather them, else ()."""
    if not (axes and use_tokamax and rule and rule.bwd_qtype is not None):
        return ()
    has_fixed_bound = rule.weight_calibration_method.startswith("fixed")
    return tuple(axes) if has_fixed_bound and (rule.weight_qtype is not None or checks.is_quantized(rhs)) else ()


def _wrap_elements(lhs: Any, rhs: Any, rule: Rule | None, dtype: Any) -> tuple[Any, Any]:
    """Converts arrays of a quantized dtype to QuantizedTensors without scales, if the result dtype is float.

    Returns other operands, and operands that `rule` quantizes, unchanged.
    """

    def wrap(x: Any, qtype: Any) -> Any:
        has_no_scale = qtype is None and not checks.is_quantized(x) and getattr(x, "dtype", None) in QUANTIZED
        return QuantizedTensor(jnp.asarray(x)) if has_no_scale else x

    if jax.dtypes.canonicalize_dtype(checks.as_dtype("preferred_element_type", dtype)) not in FLOATS:
        return lhs, rhs
    rule = rule or Rule()
    return wrap(lhs, rule.act_qtype), wrap(rhs, rule.weight_qtype)


def gmm(
    lhs: Any,
    rhs: Any,
    group_sizes: Any,
    preferred_element_type: Any = jnp.float32,
    tiling: Any = (128,) * 9,
    group_offset: Any = None,
    existing_out: Any = None,
    transpose_rhs: bool = False,
    interpret: bool | None = None,
    lhs_quantize_dtype: Any = None,
    rhs_quantize_dtype: Any = None,
    use_qwix_quantization: bool = False,
    use_tokamax_backend: bool = False,
    weight_gather_axes: Any = None,
    lhs_vma_axes: tuple = (),
    rhs_vma_axes: tuple = (),
    qwix_rule: Any = None,
    use_manual_quantization: bool = False,
    use_gmm_v2: bool = False,
    use_gmm_v2_heuristic_tiling: bool = False,
    partial_sum: Any = None,
    varying_axes: tuple = (),
) -> jax.Array:
    """Computes lhs[rows of group g] x rhs[g] for each group.

    Args:
      lhs, rhs, group_sizes, preferred_element_type, group_offset, existing_out, transpose_rhs: see
        raggemm.compat.megablox.gmm.
      tiling: nine numbers (tm, tk, tn for the result and for the gradients of lhs and rhs), three numbers, a function
        or None. No effect.
      lhs_quantize_dtype, rhs_quantize_dtype: quantize lhs and rhs to these types. Not used with use_qwix_quantization.
      use_qwix_quantization: True quantizes by qwix_rule.
      qwix_rule: a qwix.QtRule, or an object with its fields. None means the current rule of qwix for "gmm", if any.
      use_manual_quantization: True requires a fixed bound as the calibration method of rhs.
      weight_gather_axes: pairs (mesh axis, axis of rhs) along which the quantized rhs is gathered, and its gradient is
        reduce-scattered. Takes effect only with a bwd_qtype, a fixed bound for rhs and use_tokamax_backend.
      lhs_vma_axes, varying_axes: axes of the enclosing shard_map along which the result varies, besides those of the
        operands.
      partial_sum: [m, n] of preferred_element_type (else ValueError), added to the result. NotImplementedError if
        existing_out is also given.
      interpret, use_gmm_v2, use_gmm_v2_heuristic_tiling: no effect.
      use_tokamax_backend: no effect, except on weight_gather_axes.
      rhs_vma_axes: no effect. The gradient of rhs varies along the axes of rhs.

    Returns:
      [m, n].
    """
    del interpret, rhs_vma_axes, use_gmm_v2, use_gmm_v2_heuristic_tiling
    _check_tiling(tiling, (9, 3))
    if existing_out is not None and partial_sum is not None:
        raise NotImplementedError("existing_out and partial_sum are both given, only one is allowed")
    rule = _select_rule(qwix_rule, lhs_quantize_dtype, rhs_quantize_dtype, use_qwix_quantization)
    method = rule.weight_calibration_method if rule and rule.weight_qtype is not None else "fixed"
    if use_manual_quantization and not checks.is_quantized(rhs) and not method.startswith("fixed"):
        raise ValueError(f"use_manual_quantization: the calibration method of rhs is {method}, must be a fixed bound")
    group_offset = megablox.resolve_group_offset(group_offset, rhs, group_sizes)
    lhs, rhs = _wrap_elements(lhs, rhs, rule, preferred_element_type)
    if rule or checks.is_quantized(lhs) or checks.is_quantized(rhs):
        name, c = ("existing_out", existing_out) if partial_sum is None else ("partial_sum", partial_sum)
        axes = _gather_axes(weight_gather_axes, use_tokamax_backend, rule, rhs)
        options = _maxtext_products.Options(preferred_element_type, transpose_rhs, rule or Rule(), name, axes)
        out = _maxtext_products.gmm(lhs, rhs, group_sizes, group_offset, c, options)
    elif partial_sum is None:
        out = api.gmm(lhs, rhs, group_sizes, preferred_element_type, None, group_offset, existing_out, transpose_rhs)
    else:
        arguments = {"preferred_element_type": preferred_element_type, "group_offset": group_offset}
        arguments |= existing_out_options(partial_sum, preferred_element_type, 1, "partial_sum")
        names = ArgNames(sizes="group_sizes", c="partial_sum")
        out = compute_product(names, *make_operands(lhs, rhs, group_sizes, (1, 2 if transpose_rhs else 1)), **arguments)
    return versions.mark_varying(out, {*lhs_vma_axes, *varying_axes})


def tgmm(
    lhs: Any,
    rhs: Any,
    group_sizes: Any,
    preferred_element_type: Any = jnp.float32,
    tiling: Any = (128, 128, 128),
    group_offset: Any = None,
    num_actual_groups: int | None = None,
    existing_out: Any = None,
    interpret: bool = False,
    varying_axes: tuple = (),
    lhs_quantize_dtype: Any = None,
    rhs_quantize_dtype: Any = None,
    use_qwix_quantization: bool = False,
) -> jax.Array:
    """Computes lhs[:, columns of group g] x rhs[rows of group g] for each group. Products of empty groups are zero.

    Args:
      lhs, rhs, group_sizes, preferred_element_type, group_offset, num_actual_groups, existing_out: see
        raggemm.compat.megablox.tgmm.
      tiling: three or nine numbers, a function or None. No effect.
      varying_axes: see gmm.
      lhs_quantize_dtype, rhs_quantize_dtype: quantize lhs and rhs to these types, with one scale per row of lhs and one
        per column of rhs.
      interpret, use_qwix_quantization: no effect.

    Returns:
      [num_actual_groups, k, n].
    """
    del interpret, use_qwix_quantization
    _check_tiling(tiling, (3, 9))
    rule = _select_rule(None, lhs_quantize_dtype, rhs_quantize_dtype, False)
    lhs, rhs = _wrap_elements(lhs, rhs, rule, preferred_element_type)
    if rule:
        lhs = quantize_operand("lhs", lhs, rule.act_qtype, "absmax", (1,))
        rhs = quantize_operand("rhs", rhs, rule.weight_qtype, "absmax", (0,))
    out = megablox.tgmm(
        lhs, rhs, group_sizes, preferred_element_type, None, group_offset, num_actual_groups, existing_out
    )
    return versions.mark_varying(out, varying_axes)
