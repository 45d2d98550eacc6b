"""An implementation for the list that tokamax.ragged_dot and tokamax.ragged_dot_general take.

    tokamax.ragged_dot(lhs, rhs, sizes, implementation=[raggemm.compat.tokamax.ragged_dot, "xla"])

tokamax tries the list in order, and takes the next one on NotImplementedError only. So whatever is not done here is a
NotImplementedError, raised when tracing: another platform than cpu, integer operands but int8 and uint8 for int32, a
precision that raggemm does not have, arguments that are not known, and shapes that are wrong, of which the next one
then complains. Group sizes that do not fit are an error when running, where tokamax' "xla" cuts them off.

Semantics of tokamax 0.0.12. Its derivatives are those of each implementation: these are raggemm's, of every order.

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

from raggemm import jax_lax
from raggemm._operands import result_dtype
from raggemm._primitive.call import FLOATS, compute_dtype
from raggemm._straight_through import straight_through
from raggemm._tensors import checked, is_quantized
from raggemm.jax_lax.dimension_numbers import BASIC


def _operand(name: str, x: Any) -> tuple[Any, Any]:
    """What is multiplied, and the array whose gradient is that of the product, where x is an AsQArray."""
    if hasattr(x, "as_qarray"):
        return jax.lax.stop_gradient(checked(name, x.as_qarray())), x.value
    if not isinstance(x, jax.Array | np.ndarray) and not is_quantized(x):
        raise NotImplementedError(f"{name}: {type(x).__name__} is not supported, only arrays and QArrays are")
    return x, None


def _dtype(x: Any) -> Any:
    """A quantized array has that of its scales, or float32 without."""
    if not is_quantized(x):
        return x.dtype
    return np.dtype(np.float32) if x.scale is None else x.scale.dtype


def _unwrapped(group_sizes: Any) -> Any:
    """The array in tokamax' GroupSizes, whose representative sizes are for its autotuning."""
    if isinstance(group_sizes, jax.Array | np.ndarray):
        return group_sizes
    value = getattr(group_sizes, "value", None)
    return np.asarray(group_sizes) if value is None else value


def ragged_dot(
    lhs: Any,
    rhs: Any,
    *,
    group_sizes: Any,
    ragged_dot_dimension_numbers: jax.lax.RaggedDotDimensionNumbers | None = None,
    precision: Any = None,
    preferred_element_type: Any = None,
    return_residuals: bool = False,
    activation: Any = None,
    **unknown: Any,
) -> jax.Array:
    """As tokamax' implementations are called; see raggemm.compat.lax.ragged_dot_general for what is computed.

    Args:
      lhs, rhs: arrays as of raggemm.compat.lax, QArrays or AsQArrays.
      group_sizes: an array, a sequence of ints, or a tokamax.RaggedDotGroupSizes.
      ragged_dot_dimension_numbers: by default those of ragged_dot.
      precision: as in raggemm.compat.lax.
      preferred_element_type: dtype of the result, by default jnp.result_type(lhs, rhs), with a QArray's scales for it.
      return_residuals: must be False.
      activation: applied in the type of the sums, float32 or float64, before the result is rounded. That is what
        tokamax documents and its kernels do; its "xla" rounds first.
    """
    for name, value in {"return_residuals": return_residuals or None, **unknown}.items():
        if value is not None:
            raise NotImplementedError(f"{name}: {value!r} is not supported")
    platform = backend.get_default_device().platform
    if platform != "cpu":
        raise NotImplementedError(f"raggemm runs on the platform cpu only, not on {platform}")
    try:
        (lhs, lhs_value), (rhs, rhs_value) = _operand("lhs", lhs), _operand("rhs", rhs)
        types = [_dtype(x if value is None else value) for x, value in ((lhs, lhs_value), (rhs, rhs_value))]
        dtype = result_dtype(preferred_element_type or jnp.result_type(*types))
        fuses = activation is not None and dtype in FLOATS
        sums = compute_dtype(*types, dtype) if fuses else dtype
        numbers = BASIC if ragged_dot_dimension_numbers is None else ragged_dot_dimension_numbers
        sizes = _unwrapped(group_sizes)

        def checked_product(lhs: Any, rhs: Any, sizes: Any) -> Callable[[], jax.Array]:
            return jax_lax.checked_call((lhs, rhs, sizes), numbers, precision, sums, None)

        call = checked_product(lhs, rhs, sizes)
    except (TypeError, ValueError) as error:
        raise NotImplementedError(str(error)) from error
    # Not in the try: what is wrong with the sizes is found when running, and is no reason to try the next one.
    if lhs_value is None and rhs_value is None:
        out = call()
    else:
        out = straight_through(lambda *args: checked_product(*args)(), (lhs, rhs), (lhs_value, rhs_value), sizes)
    return out if activation is None else activation(out).astype(dtype)
