"""A rule of qwix for training with quantized products, by its fields, and what it makes of an operand."""

import math
import sys
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from raggemm._src.call import QUANTIZED, listed
from raggemm._src.checks import check_type, float_array, is_quantized
from raggemm._src.quantization import quantize
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
        raise TypeError(f"{name}: is {given!r}, must be {listed(QUANTIZED)}") from None
    check_type(name, dtype, QUANTIZED)
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
    if dtype is None or is_quantized(x):
        return x
    kind, number = _method(method)
    x = float_array(name, x)
    if kind == "fixed":
        return quantize(x, dtype, bound=number)
    if number is None:
        return quantize(x, dtype, axes=axes)
    wide = x.astype(jnp.float32)
    size = jnp.sqrt(jnp.mean(wide**2, axes, keepdims=True)) if kind == "rms" else jnp.abs(wide).max(axes, keepdims=True)
    bound = jax.lax.stop_gradient(jnp.where(size == 0, 1, number * size))
    unit = quantize(wide / bound, dtype, bound=1)
    return QuantizedTensor(unit.data, unit.scale * bound)
