"""An implementation for the list that tokamax.ragged_dot and tokamax.ragged_dot_general take.

    tokamax.ragged_dot(lhs, rhs, sizes, implementation=[raggemm.compat.tokamax.ragged_dot, "xla"])

tokamax tries the list in order, and takes the next one on NotImplementedError only. So whatever is not done here is a
NotImplementedError, raised when tracing: another platform than cpu, quantized and integer operands, a precision that
raggemm does not have, arguments that are not known, and shapes that are wrong, of which the next one then complains.
Group sizes that do not fit are an error when running, where tokamax' "xla" cuts them off.

Semantics of tokamax 0.0.12. Its derivatives are those of each implementation: these are raggemm's, of every order.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import backend

from raggemm import jax_lax
from raggemm._operands import result_dtype
from raggemm._primitive.call import FLOATS, compute_dtype
from raggemm.jax_lax.dimension_numbers import BASIC


def _check_operand(name: str, x: Any) -> None:
    if not isinstance(x, jax.Array | np.ndarray):
        raise NotImplementedError(f"{name}: {type(x).__name__} is not supported, only arrays are")


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
      lhs, rhs: arrays of float16, bfloat16, float32 or float64; or both of int8 or uint8, for int32.
      group_sizes: an array, a sequence of ints, or a tokamax.RaggedDotGroupSizes.
      ragged_dot_dimension_numbers: by default those of ragged_dot.
      precision: as in raggemm.compat.lax.
      preferred_element_type: dtype of the result, by default jnp.result_type(lhs, rhs).
      return_residuals: must be False.
      activation: applied in the type of the sums, float32 or float64, before the result is rounded. That is what
        tokamax documents and its kernels do; its "xla" rounds first.
    """
    _check_operand("lhs", lhs)
    _check_operand("rhs", rhs)
    for name, value in {"return_residuals": return_residuals or None, **unknown}.items():
        if value is not None:
            raise NotImplementedError(f"{name}: {value!r} is not supported")
    platform = backend.get_default_device().platform
    if platform != "cpu":
        raise NotImplementedError(f"raggemm runs on the platform cpu only, not on {platform}")
    try:
        dtype = result_dtype(preferred_element_type or jnp.result_type(lhs, rhs))
        fuses = activation is not None and dtype in FLOATS
        sums = compute_dtype(lhs.dtype, rhs.dtype, dtype) if fuses else dtype
        numbers = BASIC if ragged_dot_dimension_numbers is None else ragged_dot_dimension_numbers
        call = jax_lax.checked_call((lhs, rhs, _unwrapped(group_sizes)), numbers, precision, sums, None)
    except (TypeError, ValueError) as error:
        raise NotImplementedError(str(error)) from error
    # Not in the try: what is wrong with the sizes is found when running, and is no reason to try the next one.
    return call() if activation is None else activation(call()).astype(dtype)
