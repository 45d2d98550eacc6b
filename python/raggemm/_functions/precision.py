"""What jax.lax calls precision, as the attribute `precision` of the custom call."""

from typing import Any, NamedTuple

import jax
import numpy as np
from jax import lax

from raggemm._primitive.call import FLOATS, compute_dtype


class _Preset(NamedTuple):
    operands: set[str]
    sums: str
    attribute: str = ""


# What a preset demands of the operands, what it sums in, and the attribute. The others round operands or sums in ways
# of their own.
_PRESETS = {
    lax.DotAlgorithmPreset.F16_F16_F32: _Preset({"float16"}, "float32"),
    lax.DotAlgorithmPreset.BF16_BF16_F32: _Preset({"bfloat16"}, "float32"),
    lax.DotAlgorithmPreset.BF16_BF16_F32_X3: _Preset({"float32"}, "float32", "BF16_X3"),
    lax.DotAlgorithmPreset.BF16_BF16_F32_X6: _Preset({"float32"}, "float32", "BF16_X6"),
    lax.DotAlgorithmPreset.F32_F32_F32: _Preset({str(x) for x, s in FLOATS.items() if s == np.float32}, "float32"),
    lax.DotAlgorithmPreset.F64_F64_F64: _Preset(set(map(str, FLOATS)), "float64"),
}


def in_effect(precision: Any) -> Any:
    """Of a function that is as one of jax.lax: None is the configured one there."""
    return jax.config.jax_default_matmul_precision if precision is None else precision  # type: ignore[attr-defined]


def attribute(precision: Any, lhs: Any, rhs: Any, out: Any) -> str:
    """That of a product of these dtypes; "" where the default does.

    Products are exact then and sums made in float32 or float64, which is as precise as any jax.lax.Precision. A
    DotAlgorithmPreset must say just that, or be one of float32 as products of bfloat16. Raises NotImplementedError
    where it is another, ValueError where `precision` is none of what jax.lax takes.
    """
    if isinstance(precision, str) and precision in lax.DotAlgorithmPreset.__members__:
        precision = lax.DotAlgorithmPreset[precision]
    if isinstance(precision, lax.DotAlgorithm):
        raise NotImplementedError(f"precision: {precision} is not supported, only presets are")
    if isinstance(precision, lax.DotAlgorithmPreset):
        if precision is lax.DotAlgorithmPreset.DEFAULT:
            return ""
        preset = _PRESETS.get(precision)
        if preset and {lhs.name, rhs.name} <= preset.operands and compute_dtype(lhs, rhs, out).name == preset.sums:
            return preset.attribute
        raise NotImplementedError(
            f"precision: {precision.name} is not supported for {lhs}, {rhs} and a result of {out}"
        )
    pair = precision if isinstance(precision, tuple | list) else (precision, precision)
    if len(pair) != 2:
        raise ValueError(f"precision: {precision} has {len(pair)} parts, must have one for lhs and one for rhs")
    try:
        for one in pair:
            if one is not None:
                lax.Precision(one)
    except (TypeError, ValueError):
        raise ValueError(f"precision is {precision!r}, must be what jax.lax takes") from None
    return ""
