"""The quantized product of MaxText's ops.gmm: qwix rules, quantization of the operands, and the gradients.

maxtext.py has the formulas of both gradients. A rule may quantize the product of dout and scales in each formula.
"""

import functools
import math
import sys
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from raggemm._src import checks, versions
from raggemm._src.arguments import existing_out_options, takes_rounded_rows
from raggemm._src.dtypes import QUANTIZED, format_dtypes
from raggemm._src.grouped_gemm import compute_product
from raggemm._src.operands import ArgNames, make_operands
from raggemm._src.quantization import apply_blockwise, quantize
from raggemm._src.tensors import QuantizedTensor


class Rule(NamedTuple):
    """Fields of a qwix.QtRule that raggemm uses: for lhs (act), rhs (weight), and the cotangent of the result (bwd).

    A qtype is the dtype to quantize to, or None for no quantization.
    """

    act_qtype: Any = None
    weight_qtype: Any = None
    bwd_qtype: Any = None
    act_calibration_method: str = "absmax"
    weight_calibration_method: str = "absmax"
    bwd_calibration_method: str = "absmax"
    disable_channelwise_axes: bool = False


def _check_qtype(name: str, qtype: Any) -> np.dtype | None:
    if qtype is None:
        return None
    try:
        dtype = np.dtype(qtype)
    except TypeError:
        raise TypeError(f"{name}: is {qtype!r}, must be {format_dtypes(QUANTIZED)}") from None
    checks.check_dtype(name, dtype, QUANTIZED)
    return dtype


def check_rule(rule: Rule, names: tuple[str, str, str] = Rule._fields[:3]) -> Rule:
    """Checks a quantization rule. Returns it with np.dtypes as qtypes.

    Raises TypeError or ValueError if the rule is not supported. names: names of the three qtypes in errors.
    """
    act, weight, bwd = (_check_qtype(name, qtype) for name, qtype in zip(names, rule[:3], strict=True))
    for dtype, method in zip((act, weight, bwd), rule[3:6], strict=True):
        if dtype is not None:
            _parse_calibration(method)
    return rule._replace(act_qtype=act, weight_qtype=weight, bwd_qtype=bwd)


def resolve_rule(rule: Any) -> Rule | None:
    """Returns `rule` as a Rule. If `rule` is None, returns the current rule of qwix for "gmm", which may be None."""
    if not rule:
        qwix = sys.modules.get("qwix.pallas")
        rule = qwix.get_current_rule("gmm") if qwix else None
    if not rule:
        return None
    if not (hasattr(rule, "act_qtype") and hasattr(rule, "weight_qtype")):
        raise ValueError(f"qwix_rule: is {type(rule).__name__}, must have act_qtype and weight_qtype as a qwix.QtRule")
    fields: dict[str, Any] = {name: getattr(rule, name, default) for name, default in Rule._field_defaults.items()}
    return check_rule(Rule(**fields))


def _parse_calibration(text: str) -> tuple[str, float | None]:
    kind, *rest = text.lower().split(",")
    try:
        numbers = [float(x) for x in rest]
    except ValueError:
        numbers = [math.nan]
    if kind == "fixed" and len(numbers) == 2 and numbers[0] == -numbers[1]:
        del numbers[0]
    allowed = {"absmax": (0, 1), "rms": (1,), "fixed": (1,)}.get(kind, ())
    if len(numbers) not in allowed or not all(math.isfinite(x) and x > 0 for x in numbers):
        raise ValueError(
            f'calibration_method: is "{text}", must be "absmax", "absmax,FACTOR", "rms,FACTOR" or "fixed,-BOUND,BOUND"'
        )
    return kind, numbers[0] if numbers else None


def quantize_operand(name: str, x: Any, dtype: Any, method: str, axes: tuple[int, ...]) -> Any:
    """Quantizes x, unless x is quantized already or dtype is None.

    Elements along `axes` share a scale. If `method`, a calibration method of qwix, gives a fixed bound, all elements
    share a scale.
    """
    if dtype is None or checks.is_quantized(x):
        return x
    kind, number = _parse_calibration(method)
    x = checks.as_float_array(name, x)
    if kind == "fixed":
        return quantize(x, dtype, bound=number)
    if number is None:
        return quantize(x, dtype, axes=axes)
    wide = x.astype(jnp.float32)
    size = jnp.sqrt(jnp.mean(wide**2, axes, keepdims=True)) if kind == "rms" else jnp.abs(wide).max(axes, keepdims=True)
    bound = jax.lax.stop_gradient(jnp.where(size == 0, 1, number * size))
    normalized = quantize(wide / bound, dtype, bound=1)
    return QuantizedTensor(normalized.data, normalized.scale * bound)


class Options(NamedTuple):
    dtype: Any
    transpose_rhs: bool = False
    rule: Rule = Rule()
    # The argument that c comes from. The product overwrites "existing_out", and is added to "partial_sum".
    c_name: str = "existing_out"
    gather_axes: tuple[tuple[str, int], ...] = ()  # pairs (mesh axis, axis of rhs), to gather a quantized rhs


def _product(
    lhs: Any, rhs: Any, sizes: Any, offset: Any, c: Any, options: Options, lhs_block: int | None = None
) -> jax.Array:
    arguments = {"preferred_element_type": options.dtype, "group_offset": offset, "lhs_block": lhs_block}
    arguments |= existing_out_options(c, options.dtype, int(options.c_name == "partial_sum"), options.c_name)
    names = ArgNames(sizes="group_sizes", c=options.c_name)
    return compute_product(names, *make_operands(lhs, rhs, sizes, (1, 2 if options.transpose_rhs else 1)), **arguments)


def _scales_per_row(scale: jax.Array, n_axis: int, sizes: jax.Array, offset: Any, rows: int) -> jax.Array:
    """Returns the scales of each row's group, [rows,n], or [1,n] if G is 1.

    scale: [G] (n = 1), [G,1,n] (n_axis is 2) or [G,n,1] (n_axis is 1).
    """
    scale = scale.reshape(-1, 1) if scale.ndim == 1 else jnp.moveaxis(scale, n_axis, -1)[:, 0]
    if scale.shape[0] == 1:
        return scale
    ends = jnp.cumsum(sizes)
    group = jnp.searchsorted(ends, jnp.arange(rows, dtype=ends.dtype), side="right")
    return scale.at[group - (0 if offset is None else jnp.reshape(offset, ()).astype(group.dtype))].get(mode="clip")


def _fold_scales(dout: jax.Array, x: Any, k_axis: int, sizes: jax.Array, offset: Any) -> tuple[jax.Array, Any]:
    """Moves the scales of x to dout. Returns (dout times the scales, x without scales).

    Returns dout and x unchanged if x has no scales, scales of blocks, or scales that differ along k.
    """
    if not checks.is_quantized(x) or x.scale is None:
        return dout, x
    scale = x.scale.astype(dout.dtype)
    counts = tuple(zip(scale.shape, x.shape, strict=False))
    if scale.ndim > 1 and (scale.shape[k_axis] != 1 or any(count not in (1, extent) for count, extent in counts)):
        return dout, x
    if scale.ndim == 1 or scale.ndim == 3:
        scale = _scales_per_row(scale, 3 - k_axis, sizes, offset, dout.shape[0])
    return dout * scale, QuantizedTensor(x.data, None, x.zero_point)


def _zero_cotangent(x: jax.Array) -> Any:
    if jnp.issubdtype(x.dtype, jnp.floating):
        return jnp.zeros_like(x)
    return np.zeros(x.shape, jax.dtypes.float0)


def _cotangent(ct: jax.Array, x: Any, came_quantized: bool) -> Any:
    """Converts the gradient ct to the cotangent of the operand x.

    In a quantized x, float elements get ct rounded to their type. Integer elements, scales and zero points get zeros.
    """
    if not came_quantized:
        return ct
    zeros = jax.tree.map(_zero_cotangent, x)
    if not jnp.issubdtype(x.data.dtype, jnp.floating):
        return zeros
    return QuantizedTensor(ct.astype(x.data.dtype), zeros.scale, zeros.zero_point)


def gmm(lhs: Any, rhs: Any, group_sizes: Any, offset: Any, c: Any, options: Options) -> jax.Array:
    """Computes the product of operands quantized by options.rule, with MaxText's gradients.

    c: existing_out or partial_sum, as options.c_name says, or None.
    """
    rule, k_axis = options.rule, 2 if options.transpose_rhs else 1
    lhs, rhs = (
        checks.as_quantized_tensor(name, x) if checks.is_quantized(x) else checks.as_array(name, x)
        for name, x in (("lhs", lhs), ("rhs", rhs))
    )
    came_quantized, has_c = (checks.is_quantized(lhs), checks.is_quantized(rhs)), c is not None
    dtypes = [np.dtype(np.float32) if q else x.dtype for x, q in zip((lhs, rhs), came_quantized, strict=True)]

    def scale_axes(shared: tuple[int, ...], rank: int) -> tuple[int, ...]:
        return tuple(range(rank)) if rule.disable_channelwise_axes else shared

    def rounds_rows(lhs, right) -> bool:
        if rule.act_qtype is None or checks.is_quantized(lhs) or rule.disable_channelwise_axes:
            return False
        is_absmax = _parse_calibration(rule.act_calibration_method) == ("absmax", None)
        return is_absmax and takes_rounded_rows(lhs, rule.act_qtype, right, k_axis, options.dtype)

    def forward(lhs, rhs, sizes, offset, c):
        left = quantize_operand("lhs", lhs, rule.act_qtype, rule.act_calibration_method, scale_axes((1,), 2))
        right_axes = scale_axes((0, k_axis), 3)
        right = quantize_operand("rhs", rhs, rule.weight_qtype, rule.weight_calibration_method, right_axes)
        for name, axis in options.gather_axes:
            data = jax.lax.all_gather(right.data, name, axis=axis, tiled=True)
            right = QuantizedTensor(data, right.scale, right.zero_point)
        rows, block = (lhs, 0) if rounds_rows(lhs, right) else (left, None)
        return _product(rows, right, sizes, offset, c, options, block), (left, right, sizes, offset)

    def backward(residuals, dout):
        left, right, sizes, offset = residuals
        dc = None
        if has_c:
            product_of_c = functools.partial(_product, left, right, sizes, offset, options=options)
            (dc,) = jax.vjp(product_of_c, jnp.zeros_like(dout))[1](dout)
        dout_lhs, right_elements = _fold_scales(dout, right, k_axis, sizes, offset)
        dout_rhs, left_elements = _fold_scales(dout, left, 1, sizes, offset)
        bwd = rule.bwd_qtype, rule.bwd_calibration_method
        dout_lhs = quantize_operand("gradient", dout_lhs, *bwd, scale_axes((1,), 2))
        dout_rhs = quantize_operand("gradient", dout_rhs, *bwd, scale_axes((0,), 2))
        dlhs = _product(dout_lhs, right_elements, sizes, offset, None, Options(dtypes[0], not options.transpose_rhs))
        operands = (dout_rhs, left_elements) if options.transpose_rhs else (left_elements, dout_rhs)
        drhs = compute_product(
            ArgNames(sizes="group_sizes"),
            *make_operands(*operands, sizes, (0, 0), rhs_rank=2),
            preferred_element_type=dtypes[1],
            group_offset=offset,
            num_actual_groups=right.shape[0],
        )
        for name, axis in reversed(options.gather_axes):
            drhs = jax.lax.psum_scatter(drhs, name, scatter_dimension=axis, tiled=True)
        if came_quantized[0] and left.scale is not None and left.scale.ndim != 1:
            dlhs = apply_blockwise(jnp.multiply, dlhs, left.scale.astype(dlhs.dtype))
        others = [None if x is None else _zero_cotangent(x) for x in (sizes, offset)]
        dlhs, drhs = _cotangent(dlhs, left, came_quantized[0]), _cotangent(drhs, right, came_quantized[1])
        return dlhs, drhs, *others, dc

    call = jax.custom_vjp(lambda *args: forward(*args)[0])
    call.defvjp(forward, backward)
    leaves, tree = jax.tree.flatten((lhs, rhs, group_sizes, offset, c))
    return call(*jax.tree.unflatten(tree, versions.promote_vma([jnp.asarray(x) for x in leaves])))
