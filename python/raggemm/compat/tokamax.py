"""An implementation for the list that tokamax.ragged_dot and tokamax.ragged_dot_general take.

    tokamax.ragged_dot(lhs, rhs, sizes, implementation=[raggemm.compat.tokamax.ragged_dot, "xla"])

tokamax tries the list in order, and takes the next one on NotImplementedError only. So whatever is not done here is a
NotImplementedError, raised when tracing: another platform than cpu, integer operands but those of up to 8 bits for
int32, a precision that raggemm does not have, arguments that are not known, and shapes that are wrong, of which the
next one then complains. Group sizes that do not fit are an error when running, where tokamax' "xla" cuts them off.

Semantics of tokamax 0.0.17; earlier ones lack some arguments. Its derivatives are those of each implementation: these
are raggemm's, of every order.

Both operands may be QArrays, with scales of any blocks, and zero points: the elements are multiplied, and scales act on
sums where they can, while "xla" multiplies the dequantized arrays, rounded to the scales' type. Scales have a gradient,
as there, elements have none: those of float8 have one there. An AsQArray is quantized by its own as_qarray(), and the
gradient passes straight through it, as tokamax' own derivative rule has it: it is that of the product with the
quantized values, in the array's type.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import backend

from raggemm._src import checks, versions
from raggemm._src.activations import apply_activation
from raggemm._src.api import straight_through
from raggemm._src.dimension_numbers import RAGGED_DOT_NUMBERS
from raggemm._src.dtypes import FLOATS, compute_dtype
from raggemm._src.lax import prepare_call

__all__ = ["ragged_dot"]

# Names that tokamax gives gated activations. Its "gelu" is jax.nn.gelu's default, by tanh.
_GATED = {"silu": "SILU", "gelu": "GELU_TANH", "gelu_tanh": "GELU_TANH", "swigluoai": "SWIGLU_OAI"}


def _operand(name: str, x: Any) -> tuple[Any, Any]:
    """Returns the operand of the product, and for an AsQArray the array that gets its gradient."""
    if hasattr(x, "as_qarray"):
        return jax.lax.stop_gradient(checks.as_quantized_tensor(name, x.as_qarray())), x.value
    if not isinstance(x, jax.Array | np.ndarray) and not checks.is_quantized(x):
        raise NotImplementedError(f"{name}: {type(x).__name__} is not supported, only arrays and QArrays are")
    return x, None


def _dtype(x: Any) -> Any:
    """A quantized array has that of its scales, or float32 without."""
    if not checks.is_quantized(x):
        return x.dtype
    return np.dtype(np.float32) if x.scale is None else x.scale.dtype


def _unwrapped(group_sizes: Any) -> Any:
    """The array in tokamax' GroupSizes, whose representative sizes are for its autotuning."""
    if isinstance(group_sizes, jax.Array | np.ndarray):
        return group_sizes
    checks.check_is_array("group_sizes", group_sizes)
    value = getattr(group_sizes, "value", None)
    return np.asarray(group_sizes) if value is None else value


def _gated(name: str | None, call: Callable[[], jax.Array], dtype: Any) -> str | None:
    """The activation of fuse_gateup_activation, for the product that the call gives as a result of this dtype."""
    if name is None:
        return None
    if name not in _GATED:
        raise NotImplementedError(f"fuse_gateup_activation: is {name!r}, must be one of {', '.join(map(repr, _GATED))}")
    if (columns := jax.eval_shape(call).shape[-1]) % 2:
        raise ValueError(f"fuse_gateup_activation: halves the columns of the product, of which there are {columns}")
    if dtype not in FLOATS:
        raise ValueError(f"fuse_gateup_activation: is {name!r} for a result of {dtype}, which must be one of floats")
    return _GATED[name]


def _varying_axes(manual_axis_type: Any) -> frozenset[str]:
    """Returns the axes along which the result varies. Sums that are left to the caller are not supported."""
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
    """Computes raggemm.compat.lax.ragged_dot_general, called as tokamax calls its implementations.

    Args:
      lhs, rhs: arrays as of raggemm.compat.lax, QArrays or AsQArrays.
      group_sizes: an array, a sequence of ints, or a tokamax.RaggedDotGroupSizes.
      ragged_dot_dimension_numbers: by default those of ragged_dot.
      precision: as in raggemm.compat.lax.
      preferred_element_type: dtype of the result, by default jnp.result_type(lhs, rhs), with a QArray's scales for it.
      return_residuals: must be False.
      activation: applied in the type of the sums, float32 or float64, before the result is rounded. That is what
        tokamax documents and its kernels do; its "xla" rounds first.
      group_offset: as in raggemm.compat.lax, where tokamax' "xla" has none.
      manual_axis_type: a jax.sharding.ManualAxisType, of which only varying may be set: axes of the enclosing
        shard_map along which the result varies, besides those along which an operand does.
      zero_initialize: without effect, for what is outside of all groups is always zero.
      fuse_gateup_activation: "silu", "gelu", "gelu_tanh" (tokamax means the same by both) or "swigluoai": the first
        half of the result's columns is the gate, the second is multiplied by it. The result has half the columns, and
        `activation` is applied to it.
    """
    del zero_initialize
    for name, value in {"return_residuals": return_residuals or None, **unknown}.items():
        if value is not None:
            raise NotImplementedError(f"{name}: {value!r} is not supported")
    platform = backend.get_default_device().platform
    if platform != "cpu":
        raise NotImplementedError(f"raggemm runs on the platform cpu only, not on {platform}")
    try:
        (lhs, lhs_value), (rhs, rhs_value) = _operand("lhs", lhs), _operand("rhs", rhs)
        types = [_dtype(x if value is None else value) for x, value in ((lhs, lhs_value), (rhs, rhs_value))]
        dtype = checks.result_dtype(preferred_element_type or jnp.result_type(*types))
        fuses = dtype in FLOATS and (activation is not None or fuse_gateup_activation is not None)
        sums = compute_dtype(*types, dtype) if fuses else dtype
        numbers = RAGGED_DOT_NUMBERS if ragged_dot_dimension_numbers is None else ragged_dot_dimension_numbers
        places = _unwrapped(group_sizes), group_offset
        axes = _varying_axes(manual_axis_type)

        def checked_product(lhs: Any, rhs: Any, places: Any) -> Callable[[], jax.Array]:
            return prepare_call((lhs, rhs, places[0]), numbers, precision, sums, places[1])

        call = checked_product(lhs, rhs, places)
        gated = _gated(fuse_gateup_activation, call, dtype)
    except (TypeError, ValueError) as error:
        raise NotImplementedError(str(error)) from error
    # Not in the try: what is wrong with the sizes is found when running, and is no reason to try the next one.
    if lhs_value is None and rhs_value is None:
        out = call()
    else:
        out = straight_through(lambda *args: checked_product(*args)(), (lhs, rhs), (lhs_value, rhs_value), places)
    if gated is not None:
        out = apply_activation(gated, *jnp.split(out, 2, axis=-1))
    out = out.astype(dtype) if activation is None else activation(out).astype(dtype)
    return versions.mark_varying(out, axes)
