"""maxtext: gmm and tgmm of maxtext.kernels.megablox, drop-in by assignment.

    from maxtext.kernels import megablox
    from raggemm.compat import maxtext
    megablox.gmm = maxtext.gmm  # what the MoE layer calls
    megablox.backend.gmm, megablox.backend.tgmm = maxtext.gmm, maxtext.tgmm  # or: under maxtext's own gradients

gmm has the arguments of ops.gmm, in its order, and backend.gmm's varying_axes; tgmm those of backend.tgmm. Semantics
are those without quantization. Deliberate differences:

- Everything that the docstring of raggemm.compat.megablox lists.
- group_offset and existing_out hold whatever else is set; there use_tokamax_backend drops existing_out, and without
  use_gmm_v2 group_offset too. partial_sum is always added, there only with use_tokamax_backend and use_gmm_v2.
- Quantized operands are a NotImplementedError.
"""

from typing import Any

import jax
import jax.numpy as jnp

from raggemm import ops
from raggemm._grouped_gemm import product
from raggemm._operands import Words
from raggemm._primitive.call import FLOATS, listed
from raggemm._primitive.jax_versions import varying
from raggemm.compat import megablox

__all__ = ["gmm", "tgmm"]


def _check_tiling(tiling: Any, lengths: tuple[int, ...]) -> None:
    if tiling is None or callable(tiling):
        return
    if not isinstance(tiling, tuple | list) or len(tiling) not in lengths:
        numbers = " or ".join(map(str, lengths))
        raise ValueError(f"tiling is {tiling}, must have {numbers} numbers, or be a function of (m, k, n)")


def _refuse_quantization(lhs: Any, rhs: Any, **arguments: Any) -> None:
    """NotImplementedError for what asks for a quantized product: an argument that is set, or an operand with scales."""
    asked = [f"{name} is {value}" for name, value in arguments.items() if value is not None and value is not False]
    operands = {"lhs": lhs, "rhs": rhs}.items()
    asked += [f"{name} is quantized ({type(x).__name__})" for name, x in operands if hasattr(x, "qvalue")]
    if asked:
        raise NotImplementedError(
            f"{', '.join(asked)}: raggemm multiplies {listed(FLOATS, 'and')}; int4, int8 and float8 "
            "operands with scales are planned. Dequantize before the call, or leave these arguments at their defaults"
        )


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
      lhs_quantize_dtype, rhs_quantize_dtype, qwix_rule: None, else NotImplementedError.
      use_qwix_quantization, use_manual_quantization: False, else NotImplementedError.
      lhs_vma_axes, varying_axes: axes of the enclosing shard_map along which the result varies, besides those along
        which an operand does.
      partial_sum: [m, n] of preferred_element_type (else ValueError), added to the result. Not with existing_out too.
      interpret, use_tokamax_backend, use_gmm_v2, use_gmm_v2_heuristic_tiling: which kernel maxtext runs; no effect.
      weight_gather_axes: for quantized weights only, there too; without effect.
      rhs_vma_axes: without effect, as the gradient of rhs varies along the axes along which rhs does.

    Returns:
      [m, n].
    """
    del interpret, use_tokamax_backend, weight_gather_axes, rhs_vma_axes, use_gmm_v2, use_gmm_v2_heuristic_tiling
    _refuse_quantization(
        lhs,
        rhs,
        lhs_quantize_dtype=lhs_quantize_dtype,
        rhs_quantize_dtype=rhs_quantize_dtype,
        use_qwix_quantization=use_qwix_quantization,
        qwix_rule=qwix_rule,
        use_manual_quantization=use_manual_quantization,
    )
    _check_tiling(tiling, (9, 3))
    group_offset = megablox.first_group(group_offset, rhs, group_sizes)
    if partial_sum is None:
        out = ops.gmm(lhs, rhs, group_sizes, preferred_element_type, None, group_offset, existing_out, transpose_rhs)
    elif existing_out is None:
        options = {"preferred_element_type": preferred_element_type, "group_offset": group_offset}
        options |= ops.accumulation(partial_sum, preferred_element_type, 1, "partial_sum")
        words = Words(sizes="group_sizes", c="partial_sum")
        out = product(words, *ops.matrices(lhs, rhs, group_sizes, (1, 2 if transpose_rhs else 1)), **options)
    else:
        raise NotImplementedError("existing_out and partial_sum are both given; one of them can be")
    return varying(out, {*lhs_vma_axes, *varying_axes})


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
    lhs_quantize_dtype: Any = None,
    rhs_quantize_dtype: Any = None,
    use_qwix_quantization: bool = False,
    varying_axes: tuple = (),
) -> jax.Array:
    """lhs[:, columns of group g] x rhs[rows of group g] for each group; zero for an empty group.

    Args:
      lhs, rhs, group_sizes, preferred_element_type, group_offset, num_actual_groups, existing_out: as for
        raggemm.compat.megablox.tgmm.
      tiling: three numbers, a function or None; without effect, as is interpret.
      lhs_quantize_dtype, rhs_quantize_dtype: None, else NotImplementedError. Earlier versions of maxtext have them,
        as use_qwix_quantization, False.
      varying_axes: axes of the enclosing shard_map along which the result varies, besides those along which an operand
        does.

    Returns:
      [num_actual_groups, k, n].
    """
    del interpret
    _refuse_quantization(
        lhs,
        rhs,
        lhs_quantize_dtype=lhs_quantize_dtype,
        rhs_quantize_dtype=rhs_quantize_dtype,
        use_qwix_quantization=use_qwix_quantization,
    )
    _check_tiling(tiling, (3, 9))
    out = megablox.tgmm(
        lhs, rhs, group_sizes, preferred_element_type, None, group_offset, num_actual_groups, existing_out
    )
    return varying(out, varying_axes)
