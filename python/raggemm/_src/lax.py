"""Functions with the signatures of jax.lax. raggemm.compat.lax documents their semantics."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from raggemm._src import checks, dimension_numbers
from raggemm._src.api import jit_eager_calls
from raggemm._src.arguments import default_precision, precision_attribute
from raggemm._src.dimension_numbers import RAGGED_DOT_NUMBERS, Result, widen_sizes
from raggemm._src.dtypes import FLOATS, QUANTIZED
from raggemm._src.operands import ArgNames, check_dtypes, check_quantized_dtypes


def _split_operand(name: str, x: Any) -> tuple[jax.Array, checks.QuantParams | None]:
    return checks.split_quantized(name, x) if checks.is_quantized(x) else (checks.as_array(name, x), None)


def _aval_for_jax(x: jax.Array, quant_params: checks.QuantParams | None, partner: jax.Array) -> jax.ShapeDtypeStruct:
    """Returns the shape and dtype of x for jax.lax's rule for result dtypes.

    A quantized x has the dtype of the other operand, `partner`, if that is a float, else float32.
    """
    dtype = x.dtype if quant_params is None else partner.dtype if partner.dtype in FLOATS else np.dtype(np.float32)
    return jax.ShapeDtypeStruct(x.shape, dtype)


def _infer_out(lhs: Any, rhs: Any, group_sizes: Any, numbers: Any, dtype: Any, has_offset: bool) -> Any:
    """Returns the shape and dtype of the result, by jax.lax's rule.

    The rule does not support group_offset. With an offset, it gets only as many sizes as rhs has groups.
    """
    sizes_shape = group_sizes.shape
    group_axes = tuple(numbers.rhs_group_dimensions)
    if has_offset and len(group_axes) == 1 and 0 <= group_axes[0] < rhs.ndim and sizes_shape:
        sizes_shape = (*sizes_shape[:-1], min(rhs.shape[group_axes[0]], sizes_shape[-1]))
    avals = lhs, rhs, jax.ShapeDtypeStruct(sizes_shape, jax.dtypes.canonicalize_dtype(group_sizes.dtype))

    def call(lhs, rhs, group_sizes):
        return jax.lax.ragged_dot_general(lhs, rhs, group_sizes, numbers, preferred_element_type=dtype)

    # jax.lax requires out_sharding on a mesh with explicit axes, so an empty mesh replaces the caller's.
    with jax.sharding.use_abstract_mesh(jax.sharding.AbstractMesh((), ())):
        return jax.eval_shape(call, *avals)


def _check_group_offset(group_offset: Any, numbers: Any) -> jax.Array | None:
    if group_offset is None:
        return None
    (_, _), (lhs_batch, _) = numbers.dot_dimension_numbers
    if numbers.lhs_ragged_dimensions[0] in lhs_batch:
        raise NotImplementedError("group_offset: is not supported with a ragged batch dimension")
    return checks.as_group_offset(group_offset, TypeError)


def prepare_call(
    operands: tuple[Any, Any, Any], numbers: Any, precision: Any, preferred_element_type: Any, group_offset: Any
) -> Callable[[], jax.Array]:
    """Checks the arguments of ragged_dot_general. Returns a function that computes the product.

    operands: lhs, rhs and group_sizes.
    """
    lhs, rhs, group_sizes = operands
    if not isinstance(numbers, jax.lax.RaggedDotDimensionNumbers):
        raise TypeError(
            f"ragged_dot_dimension_numbers: is a {type(numbers).__name__}, must be a jax.lax.RaggedDotDimensionNumbers"
        )
    (lhs, lhs_params), (rhs, rhs_params) = _split_operand("lhs", lhs), _split_operand("rhs", rhs)
    checks.check_is_array("group_sizes", group_sizes)
    group_sizes = group_sizes if isinstance(group_sizes, jax.Array) else np.asarray(group_sizes)
    dtype = None if preferred_element_type is None else checks.result_dtype(preferred_element_type)
    avals = _aval_for_jax(lhs, lhs_params, rhs), _aval_for_jax(rhs, rhs_params, lhs)
    out = _infer_out(*avals, group_sizes, numbers, dtype, group_offset is not None)
    quant_params: dict[str, jax.Array] = {}
    for side, x, parts in (("lhs", lhs, lhs_params), ("rhs", rhs, rhs_params)):
        if parts is not None:
            given = {f"{side}_scale": parts.scale, f"{side}_zero": parts.zero}
            quant_params |= {name: values for name, values in given.items() if values is not None}
        elif (lhs_params, rhs_params) != (None, None):
            checks.check_dtype(side, x.dtype, (*FLOATS, *QUANTIZED))
    if (lhs_params, rhs_params) == (None, None):
        check_dtypes(ArgNames(), lhs.dtype, rhs.dtype, out.dtype, narrow=True)
    else:
        check_quantized_dtypes(ArgNames(), lhs.dtype, rhs.dtype)
        checks.check_dtype("preferred_element_type", out.dtype, FLOATS)
    attribute = precision_attribute(default_precision(precision), lhs.dtype, rhs.dtype, out.dtype)
    sizes = checks.as_integer_array("group_sizes", widen_sizes(group_sizes))
    offset = _check_group_offset(group_offset, numbers)
    result = Result(out.dtype, attribute)
    return functools.partial(
        dimension_numbers.ragged_dot_general, lhs, rhs, sizes, offset, quant_params, numbers=numbers, result=result
    )


@jit_eager_calls("lhs", "rhs", "group_sizes", "group_offset")
def ragged_dot_general(
    lhs: Any,
    rhs: Any,
    group_sizes: Any,
    ragged_dot_dimension_numbers: jax.lax.RaggedDotDimensionNumbers,
    precision: Any = None,
    preferred_element_type: Any = None,
    group_offset: Any = None,
    out_sharding: Any = None,
) -> jax.Array:
    """Computes jax.lax.ragged_dot_general. raggemm.compat.lax lists the differences.

    One call computes all batch elements. An operand is transposed in memory only if the library cannot read its layout.

    Args:
      lhs, rhs: float16, bfloat16, float32 or float64, or both integers of up to 8 bits for an int32 result. Either may
        be a QuantizedTensor. An array of a quantized element type counts as numbers without scales. The other operand
        must then be a float. Two float8 or float4 arrays are also allowed, except two of float8_e5m2. There are three
        forms. The ragged dimension of lhs is
        1. not contracted: [b...,m...,k...] x [g,b...,k...,n...] -> [b...,m...,n...],
        2. contracted: [b...,m...,k...] x [b...,k...,n...] -> [g,b...,m...,n...], or
        3. a batch dimension: [b...,m...,k...] x [b...,k...,n...] -> [b...,m...,n...]. The values of group_sizes are
           ignored, as in jax.lax on CPU.
      group_sizes: any integer type except uint64, [g], or [b...,x...,g] with the dimensions x... of jax.lax.
      ragged_dot_dimension_numbers: as in jax.lax, in any order.
      precision: as in raggemm.compat.lax. None means jax_default_matmul_precision.
      preferred_element_type: dtype of the result. The default is that of jax.lax.dot_general. A QuantizedTensor counts
        as the dtype of the other operand if that is a float, else as float32.
      group_offset: integer, () or (1,): index of the first group to compute, for forms 1 and 2. In form 1 rhs has the
        groups from this index on. Form 2 computes all groups, so only 0 is in range.
      out_sharding: sharding of the result, on a mesh with explicit axes.
    """
    operands = lhs, rhs, group_sizes
    call = prepare_call(operands, ragged_dot_dimension_numbers, precision, preferred_element_type, group_offset)
    return checks.reshard(call(), out_sharding)


@jit_eager_calls("lhs", "rhs", "group_sizes", "group_offset")
def ragged_dot(
    lhs: Any,
    rhs: Any,
    group_sizes: Any,
    precision: Any = None,
    preferred_element_type: Any = None,
    group_offset: Any = None,
    out_sharding: Any = None,
) -> jax.Array:
    """Computes jax.lax.ragged_dot: lhs[rows of group i] x rhs[i], [m,k] x [g,k,n] with group_sizes [g] -> [m,n].

    The arguments are those of ragged_dot_general, without dimension numbers.
    """
    return ragged_dot_general(
        lhs, rhs, group_sizes, RAGGED_DOT_NUMBERS, precision, preferred_element_type, group_offset, out_sharding
    )


def _check_exchange(operand: Any, output: Any, slices: dict[str, Any], devices: int) -> tuple[Any, ...]:
    """Checks the arguments of ragged_all_to_all. Returns operand, output and a list of the slices' values in int32."""
    operand, output = checks.as_array("operand", operand), checks.as_array("output", output)
    if not output.ndim:
        raise ValueError("output: shape is (), must have at least 1 axis")
    checks.check_dtype("operand", operand.dtype, (output.dtype,))
    if operand.ndim != output.ndim or operand.shape[1:] != output.shape[1:]:
        raise ValueError(f"operand: shape is {operand.shape}, must be output's {output.shape} except along axis 0")
    arrays = {name: checks.check_rank(name, checks.as_integer_array(name, x), "K") for name, x in slices.items()}
    count = len(arrays["input_offsets"])
    if count % devices or not count:
        raise ValueError(f"input_offsets: shape is ({count},), must be a multiple of the {devices} devices, and not 0")
    for name, x in arrays.items():
        checks.check_shape(name, x, (count,), why=", that of input_offsets")
    return operand, output, [x.astype(jnp.int32) for x in arrays.values()]


def ragged_all_to_all(
    operand: Any,
    output: Any,
    input_offsets: Any,
    send_sizes: Any,
    output_offsets: Any,
    recv_sizes: Any,
    *,
    axis_name: Any,
    axis_index_groups: Any = None,
) -> jax.Array:
    """Computes jax.lax.ragged_all_to_all from an all_gather of operand. raggemm.compat.lax lists the differences.

    Each device temporarily holds the operands of all devices. XLA has no ragged all_to_all on CPU.

    Args:
      operand: any dtype, [n,...]: rows of this device.
      output: the dtype of operand, [m,...]: rows of the result that no device sends.
      input_offsets, send_sizes: integers, [k]: slices of operand that are sent. k is a multiple of the number of
        devices, and each device gets as many consecutive slices.
      output_offsets: integers, [k]: first row of each sent slice in its receiver's result.
      recv_sizes: integers, [k]: sizes of the slices that this device receives, in the order of the senders. They are
        the send_sizes of the senders. If the two differ, the smaller one counts.
      axis_name: one mesh axis, or a tuple of mesh axes.
      axis_index_groups: groups of devices of equal size that exchange among themselves, as lists of axis indices.

    Returns:
      [m,...], output with the received slices. If slices overlap in it, the one that begins last is seen.
    """
    devices = len(axis_index_groups[0]) if axis_index_groups else lax.axis_size(axis_name)
    names = ("input_offsets", "send_sizes", "output_offsets", "recv_sizes")
    slices = dict(zip(names, (input_offsets, send_sizes, output_offsets, recv_sizes), strict=True))
    operand, output, (*sent, recv) = _check_exchange(operand, output, slices, devices)
    if not operand.size or not output.size:  # XLA has no all_gather of empty arrays.
        return output
    groups = {"axis_index_groups": axis_index_groups}
    starts, sizes, firsts = lax.all_to_all(jnp.stack(sent), axis_name, 1, 1, tiled=True, **groups)
    rows = lax.all_gather(operand, axis_name, tiled=True, **groups)

    sizes = jnp.minimum(sizes, recv)
    begins = jnp.where(sizes > 0, firsts, len(output))  # Empty slices begin past the end.
    order = jnp.argsort(begins).astype(jnp.int32)
    row = jnp.arange(len(output), dtype=jnp.int32)
    begun = jnp.searchsorted(begins[order], row, side="right")
    last = order[jnp.maximum(begun - 1, 0)]  # slice that begins last at or before each row
    index = row - firsts[last]
    is_received = (begun > 0) & (index < sizes[last])
    sender = last // (len(recv) // devices)
    source = sender * len(operand) + starts[last] + index
    received = rows.at[jnp.where(is_received, source, len(rows))].get(mode="fill", fill_value=0)
    return jnp.where(is_received.reshape(-1, *(1,) * (output.ndim - 1)), received, output)
