"""maxtext: gmm and tgmm of maxtext.kernels.megablox, permute and unpermute of its RoutedMoE, drop-in by assignment.

    from maxtext.kernels import megablox
    from raggemm.compat import maxtext
    megablox.gmm = maxtext.gmm  # what the MoE layer calls
    megablox.backend.gmm, megablox.backend.tgmm = maxtext.gmm, maxtext.tgmm  # or: under maxtext's own gradients
    RoutedMoE.permute, RoutedMoE.unpermute = maxtext.permute, maxtext.unpermute  # of maxtext.layers.moe

gmm has the arguments of ops.gmm, in its order, and backend.gmm's varying_axes; tgmm those of backend.tgmm. Operands may
be QArrays of qwix, or QuantizedTensors. A rule of qwix, or lhs_quantize_dtype and rhs_quantize_dtype, quantize the
others: lhs with a scale for each row, rhs with one for each column that the experts share, and gradients as the rule
says. The gradients of a product with a quantized operand are MaxText's: dlhs = (dout * rhs.scale) x rhs.elements^T and
drhs = lhs.elements^T x (dout * lhs.scale), of the first order, in reverse mode. Deliberate differences:

- Everything that the docstring of raggemm.compat.megablox lists.
- group_offset and existing_out hold whatever else is set; there use_tokamax_backend drops existing_out, and without
  use_gmm_v2 group_offset too. partial_sum is always added, there only with use_tokamax_backend and use_gmm_v2.
- Elements are those of raggemm.quantize: of an integer type the scale is absmax / 127, there absmax / 127.5. A range
  that is not symmetric is a ValueError: MaxText's gradients forget its zero point.
- With use_gmm_v2 lhs is quantized as without, by row; there within the kernel, by its tiles.
- A QArray gets a cotangent as there: of float8 elements the gradient rounded to float8, of integers none, and zeros for
  the scales. What tgmm quantizes has no derivative.
- Elements of quantized operands without their scales, as MaxText's own gradients pass them, are numbers, beside each
  other too, where the result is of floats. int8 and uint8 for int32 are as for raggemm.gmm.
- Scales may be per expert, per row of a group or of blocks, whichever kernel is chosen.
- permute and unpermute are those of MaxText before 0.2.5, whose layer passes arguments that these do not have.
- unpermute sums in float32 in the order of the experts, whatever config.float32_weight_sum and matmul_precision say,
  there in the order in which they were chosen; permute and unpermute leave the ragged kernels of the ring of experts
  out (NotImplementedError).
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
from raggemm.compat._maxtext_products import Rule, checked_rule, quantized, rule_of
from raggemm.compat._maxtext_routing import permute, unpermute

__all__ = ["gmm", "permute", "tgmm", "unpermute"]


def _check_tiling(tiling: Any, lengths: tuple[int, ...]) -> None:
    if tiling is None or callable(tiling):
        return
    if not isinstance(tiling, tuple | list) or len(tiling) not in lengths:
        numbers = " or ".join(map(str, lengths))
        raise ValueError(f"tiling is {tiling}, must have {numbers} numbers, or be a function of (m, k, n)")


def _rule(given: Any, lhs_dtype: Any, rhs_dtype: Any, use_qwix: bool) -> Rule | None:
    """Returns the rule that a call of gmm asks for, as MaxText's ops.gmm decides it."""
    if use_qwix:
        return rule_of(given)
    if lhs_dtype is None and rhs_dtype is None:
        return None
    return checked_rule(Rule(lhs_dtype, rhs_dtype), ("lhs_quantize_dtype", "rhs_quantize_dtype", "bwd_qtype"))


def _gathered_axes(axes: Any, use_tokamax: bool, rule: Rule | None, rhs: Any) -> tuple[tuple[str, int], ...]:
    """Returns the axes along which quantized weights are gathered, under the conditions of MaxText's ops.gmm."""
    if not (axes and use_tokamax and rule and rule.bwd_qtype is not None):
        return ()
    fixed = rule.weight_calibration_method.startswith("fixed")
    return tuple(axes) if fixed and (rule.weight_qtype is not None or checks.is_quantized(rhs)) else ()


def _as_numbers(lhs: Any, rhs: Any, rule: Rule | None, dtype: Any) -> tuple[Any, Any]:
    """The operands, of which elements without a scale are numbers where the result has this dtype of floats, but for
    what the rule quantizes."""

    def number(x: Any, qtype: Any) -> Any:
        bare = qtype is None and not checks.is_quantized(x) and getattr(x, "dtype", None) in QUANTIZED
        return QuantizedTensor(jnp.asarray(x)) if bare else x

    if jax.dtypes.canonicalize_dtype(checks.as_dtype("preferred_element_type", dtype)) not in FLOATS:
        return lhs, rhs
    rule = rule or Rule()
    return number(lhs, rule.act_qtype), number(rhs, rule.weight_qtype)


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
    """lhs[rows of group g] x rhs[g] for each group.

    Args:
      lhs, rhs, group_sizes, preferred_element_type, group_offset, existing_out, transpose_rhs: as for
        raggemm.compat.megablox.gmm.
      tiling: nine numbers (tm, tk, tn for out, for the gradient of lhs and for that of rhs), three, a function or None;
        without effect.
      lhs_quantize_dtype, rhs_quantize_dtype: of the elements that lhs and rhs become, unless use_qwix_quantization.
      use_qwix_quantization: whether qwix_rule quantizes, a qwix.QtRule or what has its fields; None is the rule that
        qwix has for "gmm" where this is called, which may be none.
      use_manual_quantization: rhs is quantized by a fixed bound, which its calibration method must have.
      weight_gather_axes: (mesh axis, axis of rhs) along which rhs is gathered when it is quantized, with a bwd_qtype, a
        fixed bound and use_tokamax_backend; the gradient is summed and scattered.
      lhs_vma_axes, varying_axes: axes of the enclosing shard_map along which the result varies, besides those along
        which an operand does.
      partial_sum: [m, n] of preferred_element_type (else ValueError), added to the result. Not with existing_out too.
      interpret, use_tokamax_backend, use_gmm_v2, use_gmm_v2_heuristic_tiling: which kernel maxtext runs; no effect.
      rhs_vma_axes: without effect, as the gradient of rhs varies along the axes along which rhs does.

    Returns:
      [m, n].
    """
    del interpret, rhs_vma_axes, use_gmm_v2, use_gmm_v2_heuristic_tiling
    _check_tiling(tiling, (9, 3))
    if existing_out is not None and partial_sum is not None:
        raise NotImplementedError("existing_out and partial_sum are both given; one of them can be")
    rule = _rule(qwix_rule, lhs_quantize_dtype, rhs_quantize_dtype, use_qwix_quantization)
    method = rule.weight_calibration_method if rule and rule.weight_qtype is not None else "fixed"
    if use_manual_quantization and not checks.is_quantized(rhs) and not method.startswith("fixed"):
        raise ValueError(f"use_manual_quantization: weights need a fixed bound, not {method}")
    group_offset = megablox.first_group(group_offset, rhs, group_sizes)
    lhs, rhs = _as_numbers(lhs, rhs, rule, preferred_element_type)
    if rule or checks.is_quantized(lhs) or checks.is_quantized(rhs):
        name, c = ("existing_out", existing_out) if partial_sum is None else ("partial_sum", partial_sum)
        axes = _gathered_axes(weight_gather_axes, use_tokamax_backend, rule, rhs)
        how = _maxtext_products.Options(preferred_element_type, transpose_rhs, rule or Rule(), name, axes)
        out = _maxtext_products.gmm(lhs, rhs, group_sizes, group_offset, c, how)
    elif partial_sum is None:
        out = api.gmm(lhs, rhs, group_sizes, preferred_element_type, None, group_offset, existing_out, transpose_rhs)
    else:
        options = {"preferred_element_type": preferred_element_type, "group_offset": group_offset}
        options |= existing_out_options(partial_sum, preferred_element_type, 1, "partial_sum")
        words = ArgNames(sizes="group_sizes", c="partial_sum")
        out = compute_product(words, *make_operands(lhs, rhs, group_sizes, (1, 2 if transpose_rhs else 1)), **options)
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
    """lhs[:, columns of group g] x rhs[rows of group g] for each group; zero for an empty group.

    Args:
      lhs, rhs, group_sizes, preferred_element_type, group_offset, num_actual_groups, existing_out: as for
        raggemm.compat.megablox.tgmm.
      tiling: three numbers, a function or None; without effect, as is interpret.
      varying_axes: axes of the enclosing shard_map along which the result varies, besides those along which an operand
        does.
      lhs_quantize_dtype, rhs_quantize_dtype: of the elements that lhs and rhs become, each row of lhs and each column
        of rhs with a scale. Earlier versions of maxtext have them, and use_qwix_quantization, without effect.

    Returns:
      [num_actual_groups, k, n].
    """
    del interpret, use_qwix_quantization
    _check_tiling(tiling, (3, 9))
    rule = _rule(None, lhs_quantize_dtype, rhs_quantize_dtype, False)
    lhs, rhs = _as_numbers(lhs, rhs, rule, preferred_element_type)
    if rule:
        lhs = quantized("lhs", lhs, rule.act_qtype, "absmax", (1,))
        rhs = quantized("rhs", rhs, rule.weight_qtype, "absmax", (0,))
    out = megablox.tgmm(
        lhs, rhs, group_sizes, preferred_element_type, None, group_offset, num_actual_groups, existing_out
    )
    return versions.mark_varying(out, varying_axes)
