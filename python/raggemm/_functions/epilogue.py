"""What a grouped_gemm does with its sums: the checks of c, bias, alpha, beta, activation and gate."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from raggemm._functions.tensors import array, check_type, choice, float_array
from raggemm._primitive.activations import ACTIVATIONS, NEEDS_A_GATE
from raggemm._primitive.call import FLOATS, Mode, added_types, listed


def checked_c(name: str, c: Any, shape: tuple[int, ...], dtype: Any) -> jax.Array:
    c = array(name, c)
    if c.dtype != dtype:
        raise TypeError(f"{name}: dtype is {c.dtype}, must be out's {dtype}")
    if c.shape != shape:
        raise ValueError(f"{name}: shape is {c.shape}, must be out's {shape}")
    return c


def checked_bias(name: str, bias: Any, mode: Mode, groups: int, free_shape: tuple[int, ...], compute: Any) -> jax.Array:
    if mode in (Mode.RAGGED_N, Mode.ALL_RAGGED):
        raise ValueError(f"{name} is for ragged M, ragged K and uniform, where N is the same for all groups")
    bias = array(name, bias)
    allowed = tuple(dtype for dtype in added_types(compute) if dtype != jnp.float64 or compute == jnp.float64)
    if bias.dtype not in allowed:
        raise TypeError(f"{name}: dtype is {bias.dtype}, must be {listed(allowed)} beside sums in {compute}")
    shape = (groups, math.prod(free_shape))
    if bias.shape not in (shape, (groups, *free_shape)):
        raise ValueError(f"{name}: shape is {bias.shape}, must be {shape}, one row for each processed group")
    return bias.reshape(shape)


def checked_values(name: str, x: Any, groups: int, compute: Any) -> jax.Array:
    """alpha or beta."""
    x = array(name, x)
    is_number = x.ndim == 0 and x.weak_type and x.dtype.kind in ("i" if compute == jnp.int32 else "if")
    if not is_number:
        check_type(name, x.dtype, added_types(compute))
    if x.shape not in ((), (groups,)):
        raise ValueError(f"{name}: shape is {x.shape}, must be () or ({groups},), one value for each processed group")
    return x.astype(compute)


def checked_activation(activation: Any, gate: Any, shape: tuple[int, ...], compute: Any) -> jax.Array | None:
    """The gate, if there is one."""
    if activation is None:
        if gate is not None:
            raise ValueError("gate is given without activation")
        return None
    choice("activation", activation, map(str.lower, ACTIVATIONS))
    if compute != jnp.float32:
        raise TypeError(f"activation: {activation!r} is for sums in float32, these are in {compute}")
    if gate is None:
        if activation.upper() in NEEDS_A_GATE:
            raise ValueError(f"activation: {activation!r} needs gate")
        return None
    gate = float_array("gate", gate, tuple(dtype for dtype, sums in FLOATS.items() if sums == np.float32))
    if gate.shape != shape:
        raise ValueError(f"gate: shape is {gate.shape}, must be out's {shape}")
    return gate
