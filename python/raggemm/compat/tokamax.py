"""An implementation of ragged_dot for the list that tokamax.ragged_dot and tokamax.ragged_dot_general take.

    tokamax.ragged_dot(lhs, rhs, sizes, implementation=[raggemm.compat.tokamax.ragged_dot, "xla"])

tokamax tries the list in order, and takes the next implementation only on NotImplementedError. So raggemm raises
NotImplementedError when tracing, for everything that it does not support: platforms other than cpu, unknown arguments,
and the precisions and dtypes that raggemm.compat.lax does not support. Wrong shapes also raise NotImplementedError, so
that the next implementation reports them. Wrong group sizes are an error at run time. tokamax's "xla" implementation
truncates them.

The semantics are those of tokamax 0.0.17. raggemm has derivatives of every order.

Both operands may be QArrays with scales of any block size and with zero points. raggemm multiplies the elements and
applies scales to sums if possible. "xla" multiplies the dequantized arrays, rounded to the type of the scales. Scales
have a gradient. Elements have no gradient; in tokamax float8 elements have one. An AsQArray is quantized by its method
as_qarray(). The gradient of an AsQArray is straight-through, as in tokamax: it is computed with the quantized values,
in the type of the array.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import backend

from raggemm._src import checks, versions
from raggemm._src.activations import Activation, apply_activation
from raggemm._src.api import straight_through
from raggemm._src.dimension_numbers import RAGGED_DOT_NUMBERS
from raggemm._src.dtypes import FLOATS, compute_dtype
from raggemm._src.lax import prepare_call

__all__ = ["ragged_dot"]

# raggemm's activation for each name of tokamax. tokamax's "gelu" is the default of jax.nn.gelu, with tanh.
_GATED = {"silu": "silu", "gelu": "gelu_tanh", "gelu_tanh": "gelu_tanh", "swigluoai": "swiglu_oai"}


def _unwrap_operand(name: str, x: Any) -> tuple[Any, Any]:
    """Returns (operand of the product, array that gets the gradient instead).

    For an AsQArray, these are the quantized value, without a gradient, and the unquantized value. Else they are x and
    None.
    """
    if hasattr(x, "as_qarray"):
        return jax.lax.stop_gradient(checks.as_quantized_tensor(name, x.as_qarray())), x.value
    if not isinstance(x, jax.Array | np.ndarray) and not checks.is_quantized(x):
        raise NotImplementedError(f"{name}: {type(x).__name__} is not supported, only arrays and QArrays are")
    return x, None


def _value_dtype(x: Any) -> Any:
    if not checks.is_quantized(x):
        return x.dtype
    return np.dtype(np.float32) if x.scale is None else x.scale.dtype


def _unwrap_group_sizes(group_sizes: Any) -> Any:
    """Returns the array of a tokamax.RaggedDotGroupSizes. The representative sizes are only for autotuning."""
    if isinstance(group_sizes, jax.Array | np.ndarray):
        return group_sizes
    checks.check_is_array("group_sizes", group_sizes)
    value = getattr(group_sizes, "value", None)
    return np.asarray(group_sizes) if value is None else value


def _gated_activation(name: str | None, product: Callable[[], jax.Array], dtype: Any) -> str | None:
    """Checks that tokamax's gated activation `name` suits product and dtype. Returns its name in raggemm, or None."""
    if name is None:
        return None
    if name not in _GATED:
        raise NotImplementedError(f"fuse_gateup_activation: is {name!r}, must be one of {', '.join(map(repr, _GATED))}")
    if (columns := jax.eval_shape(product).shape[-1]) % 2:
        raise ValueError(f"fuse_gateup_activation: the product has {columns} columns, must have an even number")
    if dtype not in FLOATS:
        raise ValueError(f"fuse_gateup_activation: is {name!r} for a result of {dtype}, must be of a float type")
    return _GATED[name]


def _varying_axes(manual_axis_type: Any) -> frozenset[str]:
    for field in ("unreduced", "reduced"):
        if axes := getattr(manual_axis_type, field, None):
            raise NotImplementedError(f"manual_axis_type: {field} is {set(axes)}, only varying is supported")
    return frozenset(getattr(manual_axis_type, "varying", ()))


def ragged_dot(
    lhs: Any,
    rhs: Any,
    *,
    group_sizes: Any,
    ragged_dot_dimension_numbers: jax.lax.RaggedDotDimensionNumbers | None = None,
    precision: Any = None,
    preferred_element_type: Any = None,
    return_residuals: bool = False,
    group_offset: Any = None,
    activation: Any = None,
    manual_axis_type: Any = None,
    zero_initialize: bool = False,
    fuse_gateup_activation: str | None = None,
    **unknown: Any,
) -> jax.Array:
    """Computes raggemm.compat.lax.ragged_dot_general with the signature of an implementation of tokamax.

    Args:
      lhs, rhs: arrays as in raggemm.compat.lax, QArrays or AsQArrays.
      group_sizes: an array, a sequence of ints, or a tokamax.RaggedDotGroupSizes.
      ragged_dot_dimension_numbers: dimension numbers. The default is the dimension numbers of ragged_dot.
      precision: see raggemm.compat.lax.
      preferred_element_type: dtype of the result. The default is jnp.result_type(lhs, rhs), where a QArray has the type
        of its scales.
      return_residuals: must be False.
      activation: function applied to the sums, in float32 or float64, before the result is rounded. tokamax documents
        this order, and its kernels follow it. tokamax's "xla" implementation rounds first.
      group_offset: see raggemm.compat.lax.
      manual_axis_type: a jax.sharding.ManualAxisType with only varying set: axes of the enclosing shard_map along which
        the result varies, besides those of the operands.
      zero_initialize: no effect. Elements that belong to no group are always zero.
      fuse_gateup_activation: "silu", "gelu", "gelu_tanh" (in tokamax the same as "gelu") or "swigluoai". The first half
        of the columns is the gate, and the second half is multiplied by the activated gate. `activation` is applied
        after that.
    """
    del zero_initialize
    for name, value in {"return_residuals": return_residuals or None, **unknown}.items():
        if value is not None:
            raise NotImplementedError(f"{name}: {value!r} is not supported")
    platform = backend.get_default_device().platform
    if platform != "cpu":
        raise NotImplementedError(f"raggemm runs on the platform cpu only, not on {platform}")
    try:
        (lhs, lhs_value), (rhs, rhs_value) = _unwrap_operand("lhs", lhs), _unwrap_operand("rhs", rhs)
        types = [_value_dtype(x if value is None else value) for x, value in ((lhs, lhs_value), (rhs, rhs_value))]
        dtype = checks.result_dtype(preferred_element_type or jnp.result_type(*types))
        has_epilogue = dtype in FLOATS and (activation is not None or fuse_gateup_activation is not None)
        product_dtype = compute_dtype(*types, dtype) if has_epilogue else dtype
        numbers = RAGGED_DOT_NUMBERS if ragged_dot_dimension_numbers is None else ragged_dot_dimension_numbers
        sizes_and_offset = _unwrap_group_sizes(group_sizes), group_offset
        axes = _varying_axes(manual_axis_type)

        def check(lhs: Any, rhs: Any, sizes_and_offset: Any) -> Callable[[], jax.Array]:
            sizes, offset = sizes_and_offset
            return prepare_call((lhs, rhs, sizes), numbers, precision, product_dtype, offset)

        product = check(lhs, rhs, sizes_and_offset)
        gated = _gated_activation(fuse_gateup_activation, product, dtype)
    except (TypeError, ValueError) as error:
        raise NotImplementedError(str(error)) from error
    # Outside of the try, because wrong group sizes are no reason to take the next implementation.
    if lhs_value is None and rhs_value is None:
        out = product()
    else:
        out = straight_through(lambda *args: check(*args)(), (lhs, rhs), (lhs_value, rhs_value), sizes_and_offset)
    if gated is not None:
        out = apply_activation(Activation(gated), *jnp.split(out, 2, axis=-1))
    out = out.astype(dtype) if activation is None else activation(out).astype(dtype)
    return versions.mark_varying(out, axes)
