"""The quantized product of MaxText's ops.gmm: rules of qwix, what they make of an operand, and the gradients.

dlhs = (dout * rhs.scale) x rhs.elements^T and drhs = lhs.elements^T x (dout * lhs.scale): those of the dequantized
operands, which pass straight through the quantization. dout may be quantized itself, in each of the two by itself.
"""

import functools
import math
import sys
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from raggemm._src import checks, versions
from raggemm._src.arguments import existing_out_options
from raggemm._src.dtypes import QUANTIZED, format_dtypes
from raggemm._src.grouped_gemm import compute_product
from raggemm._src.operands import ArgNames, make_operands
from raggemm._src.quantization import apply_blockwise, quantize
from raggemm._src.tensors import QuantizedTensor


class Rule(NamedTuple):
    """The fields of a qwix.QtRule that count: of activations, which are lhs, of weights, and of the gradient of the
    result. A qtype of None leaves its operand as it is."""

    act_qtype: Any = None
    weight_qtype: Any = None
    bwd_qtype: Any = None
    act_calibration_method: str = "absmax"
    weight_calibration_method: str = "absmax"
    bwd_calibration_method: str = "absmax"
    disable_channelwise_axes: bool = False


def _qtype(name: str, given: Any) -> np.dtype | None:
    if given is None:
        return None
    try:
        dtype = np.dtype(given)
    except TypeError:
        raise TypeError(f"{name}: is {given!r}, must be {format_dtypes(QUANTIZED)}") from None
    checks.check_dtype(name, dtype, QUANTIZED)
    return dtype


def checked_rule(rule: Rule, names: tuple[str, str, str] = Rule._fields[:3]) -> Rule:
    """rule with dtypes as qtypes. TypeError or ValueError, with the names of its qtypes, where it cannot be met."""
    act, weight, bwd = (_qtype(name, given) for name, given in zip(names, rule[:3], strict=True))
    for dtype, method in zip((act, weight, bwd), rule[3:6], strict=True):
        if dtype is not None:
            _method(method)
    return rule._replace(act_qtype=act, weight_qtype=weight, bwd_qtype=bwd)


def rule_of(given: Any) -> Rule | None:
    """qwix_rule, or else the rule that qwix has for "gmm" where this is called, if it is imported at all."""
    if not given:
        qwix = sys.modules.get("qwix.pallas")
        given = qwix.get_current_rule("gmm") if qwix else None
    if not given:
        return None
    if not (hasattr(given, "act_qtype") and hasattr(given, "weight_qtype")):
        raise ValueError(f"qwix_rule: is {type(given).__name__}, must have act_qtype and weight_qtype as a qwix.QtRule")
    fields: dict[str, Any] = {name: getattr(given, name, default) for name, default in Rule._field_defaults.items()}
    return checked_rule(Rule(**fields))


def _method(text: str) -> tuple[str, float | None]:
    """The name, and the number behind it: a bound, or a factor."""
    kind, *rest = text.lower().split(",")
    try:
        numbers = [float(x) for x in rest]
    except ValueError:
        numbers = [math.nan]
    if kind == "fixed" and len(numbers) == 2 and numbers[0] == -numbers[1]:
        del numbers[0]
    wanted = {"absmax": (0, 1), "rms": (1,), "fixed": (1,)}.get(kind, ())
    if len(numbers) not in wanted or not all(math.isfinite(x) and x > 0 for x in numbers):
        raise ValueError(
            f'calibration_method: is "{text}", must be "absmax", "absmax,FACTOR", "rms,FACTOR" or "fixed,-BOUND,BOUND"'
        )
    return kind, numbers[0] if numbers else None


def quantized(name: str, x: Any, dtype: Any, method: str, axes: tuple[int, ...]) -> Any:
    """x, which errors call `name`, with one scale for all along `axes`; x itself if it is quantized or dtype is None.

    A fixed bound is that of all elements, so that all share a scale. Elements are raggemm.quantize's.
    """
    if dtype is None or checks.is_quantized(x):
        return x
    kind, number = _method(method)
    x = checks.as_float_array(name, x)
    if kind == "fixed":
        return quantize(x, dtype, bound=number)
    if number is None:
        return quantize(x, dtype, axes=axes)
    wide = x.astype(jnp.float32)
    size = jnp.sqrt(jnp.mean(wide**2, axes, keepdims=True)) if kind == "rms" else jnp.abs(wide).max(axes, keepdims=True)
    bound = jax.lax.stop_gradient(jnp.where(size == 0, 1, number * size))
    unit = quantize(wide / bound, dtype, bound=1)
    return QuantizedTensor(unit.data, unit.scale * bound)


class Options(NamedTuple):
    """The static arguments of a call."""

    dtype: Any
    transpose_rhs: bool = False
    rule: Rule = Rule()
    c_name: str = "existing_out"
    gather_axes: tuple[tuple[str, int], ...] = ()  # along which weights are gathered when they are quantized


def _product(lhs: Any, rhs: Any, sizes: Any, offset: Any, c: Any, options: Options) -> jax.Array:
    given = {"preferred_element_type": options.dtype, "group_offset": offset}
    given |= existing_out_options(c, options.dtype, int(options.c_name == "partial_sum"), options.c_name)
    words = ArgNames(sizes="group_sizes", c=options.c_name)
    return compute_product(words, *make_operands(lhs, rhs, sizes, (1, 2 if options.transpose_rhs else 1)), **given)


def _factors_of_rows(scale: jax.Array, n_axis: int, sizes: jax.Array, offset: Any, rows: int) -> jax.Array:
    """[rows, n] or [1, n]: scales of columns, (G,) or [1|G,1,n], for each row of its group; of the first or the last
    one for rows of none, which are 0 in every product."""
    scale = scale.reshape(-1, 1) if scale.ndim == 1 else jnp.moveaxis(scale, n_axis, -1)[:, 0]
    if scale.shape[0] == 1:
        return scale
    ends = jnp.cumsum(sizes)
    group = jnp.searchsorted(ends, jnp.arange(rows, dtype=ends.dtype), side="right")
    return scale.at[group - (0 if offset is None else jnp.reshape(offset, ()).astype(group.dtype))].get(mode="clip")


def _folded(dout: jax.Array, x: Any, k_axis: int, sizes: jax.Array, offset: Any) -> tuple[jax.Array, Any]:
    """dout times the scales of x, [M,K] or [G,K,N], and x without them, unless they are of blocks or differ along k."""
    if not checks.is_quantized(x) or x.scale is None:
        return dout, x
    scale = x.scale.astype(dout.dtype)
    counts = tuple(zip(scale.shape, x.shape, strict=False))
    if scale.ndim > 1 and (scale.shape[k_axis] != 1 or any(count not in (1, extent) for count, extent in counts)):
        return dout, x
    if scale.ndim == 1 or scale.ndim == 3:
        scale = _factors_of_rows(scale, 3 - k_axis, sizes, offset, dout.shape[0])
    return dout * scale, QuantizedTensor(x.data, None, x.zero_point)


def _no_cotangent(x: jax.Array) -> Any:
    if jnp.issubdtype(x.dtype, jnp.floating):
        return jnp.zeros_like(x)
    return np.zeros(x.shape, jax.dtypes.float0)


def _cotangent(ct: jax.Array, x: Any, was_given: bool) -> Any:
    """Returns the cotangent of an operand. float8 elements of a quantized operand get it rounded to float8."""
    if not was_given:
        return ct
    none = jax.tree.map(_no_cotangent, x)
    if not jnp.issubdtype(x.data.dtype, jnp.floating):
        return none
    return QuantizedTensor(ct.astype(x.data.dtype), none.scale, none.zero_point)


def gmm(lhs: Any, rhs: Any, group_sizes: Any, offset: Any, c: Any, options: Options) -> jax.Array:
    """The product with lhs and rhs quantized as the rule says, if they are not already; c is c_name's array."""
    rule, k_axis = options.rule, 2 if options.transpose_rhs else 1
    lhs, rhs = (
        checks.as_quantized_tensor(name, x) if checks.is_quantized(x) else checks.as_array(name, x)
        for name, x in (("lhs", lhs), ("rhs", rhs))
    )
    given, has_c = (checks.is_quantized(lhs), checks.is_quantized(rhs)), c is not None
    dtypes = [np.dtype(np.float32) if quantized else x.dtype for x, quantized in zip((lhs, rhs), given, strict=True)]

    def axes(shared: tuple[int, ...], rank: int) -> tuple[int, ...]:
        return tuple(range(rank)) if rule.disable_channelwise_axes else shared

    def forward(lhs, rhs, sizes, offset, c):
        left = quantized("lhs", lhs, rule.act_qtype, rule.act_calibration_method, axes((1,), 2))
        right = quantized("rhs", rhs, rule.weight_qtype, rule.weight_calibration_method, axes((0, k_axis), 3))
        for name, axis in options.gather_axes:
            data = jax.lax.all_gather(right.data, name, axis=axis, tiled=True)
            right = QuantizedTensor(data, right.scale, right.zero_point)
        return _product(left, right, sizes, offset, c, options), (left, right, sizes, offset)

    def backward(residuals, dout):
        left, right, sizes, offset = residuals
        dc = None
        if has_c:
            of_c = functools.partial(_product, left, right, sizes, offset, options=options)
            (dc,) = jax.vjp(of_c, jnp.zeros_like(dout))[1](dout)
        to_lhs, right_elements = _folded(dout, right, k_axis, sizes, offset)
        to_rhs, left_elements = _folded(dout, left, 1, sizes, offset)
        to_lhs = quantized("gradient", to_lhs, rule.bwd_qtype, rule.bwd_calibration_method, axes((1,), 2))
        to_rhs = quantized("gradient", to_rhs, rule.bwd_qtype, rule.bwd_calibration_method, axes((0,), 2))
        dlhs = _product(to_lhs, right_elements, sizes, offset, None, Options(dtypes[0], not options.transpose_rhs))
        pair = (to_rhs, left_elements) if options.transpose_rhs else (left_elements, to_rhs)
        drhs = compute_product(
            ArgNames(sizes="group_sizes"),
            *make_operands(*pair, sizes, (0, 0), rhs_rank=2),
            preferred_element_type=dtypes[1],
            group_offset=offset,
            num_actual_groups=right.shape[0],
        )
        for name, axis in reversed(options.gather_axes):
            drhs = jax.lax.psum_scatter(drhs, name, scatter_dimension=axis, tiled=True)
        if given[0] and left.scale is not None and left.scale.ndim != 1:
            dlhs = apply_blockwise(jnp.multiply, dlhs, left.scale.astype(dlhs.dtype))
        others = [None if x is None else _no_cotangent(x) for x in (sizes, offset)]
        return _cotangent(dlhs, left, given[0]), _cotangent(drhs, right, given[1]), *others, dc

    call = jax.custom_vjp(lambda *args: forward(*args)[0])
    call.defvjp(forward, backward)
    leaves, tree = jax.tree.flatten((lhs, rhs, group_sizes, offset, c))
    return call(*jax.tree.unflatten(tree, versions.promote_vma([jnp.asarray(x) for x in leaves])))
