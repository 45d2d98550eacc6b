"""ragged_dot and ragged_dot_general with the signatures of jax.lax. raggemm.compat.lax states their semantics."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from raggemm._src import checks, dimension_numbers
from raggemm._src.api import jit_eager_calls
from raggemm._src.arguments import default_precision, precision_attribute
from raggemm._src.dimension_numbers import RAGGED_DOT_NUMBERS, Result, widen_sizes
from raggemm._src.dtypes import FLOATS, QUANTIZED
from raggemm._src.operands import ArgNames, check_dtypes, check_quantized_dtypes


def _split_operand(name: str, x: Any) -> tuple[jax.Array, checks.QuantParams | None]:
    """Returns quantized_parts of x. The types of an array are checked later."""
    return checks.split_quantized(name, x) if checks.is_quantized(x) else (checks.as_array(name, x), None)


def _aval_for_jax(x: jax.Array, quant_params: checks.QuantParams | None, partner: jax.Array) -> jax.ShapeDtypeStruct:
    """Returns an operand for the rules of jax.lax, which give a quantized one its partner's dtype, or float32."""
    dtype = x.dtype if quant_params is None else partner.dtype if partner.dtype in FLOATS else np.dtype(np.float32)
    return jax.ShapeDtypeStruct(x.shape, dtype)


def _infer_out(lhs: Any, rhs: Any, group_sizes: Any, numbers: Any, dtype: Any, has_offset: bool) -> Any:
    """Shape and dtype of the result. With an offset rhs may lack groups, which the rule, blind to it, refuses."""
    sizes_shape = group_sizes.shape
    group_axes = tuple(numbers.rhs_group_dimensions)
    if has_offset and len(group_axes) == 1 and 0 <= group_axes[0] < rhs.ndim and sizes_shape:
        sizes_shape = (*sizes_shape[:-1], min(rhs.shape[group_axes[0]], sizes_shape[-1]))
    avals = lhs, rhs, jax.ShapeDtypeStruct(sizes_shape, jax.dtypes.canonicalize_dtype(group_sizes.dtype))

    def call(lhs, rhs, group_sizes):
        return jax.lax.ragged_dot_general(lhs, rhs, group_sizes, numbers, preferred_element_type=dtype)

    # On a mesh with explicit axes the rule wants out_sharding, which says nothing of shapes.
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
    """Everything of ragged_dot_general that shapes and dtypes can tell, and the call that is left to make. operands:
    lhs, rhs and group_sizes."""
    lhs, rhs, group_sizes = operands
    if not isinstance(numbers, jax.lax.RaggedDotDimensionNumbers):
        raise TypeError(f"ragged_dot_dimension_numbers: is a {type(numbers).__name__}, must be of jax.lax")
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
            quant_params |= {name: factor for name, factor in given.items() if factor is not None}
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
    """Computes jax.lax.ragged_dot_general, with the differences that raggemm.compat.lax names.

    It is one call of the library, whatever the batch dimensions. Operands are transposed only if no way to store a
    matrix describes them as they are.

    Args:
      lhs, rhs: float16, bfloat16, float32 or float64; or both integers of up to 8 bits for int32. Beside a float one
        may be of the types of a QuantizedTensor's data, numbers without a scale, and both may be its float8 and float4
        types, but for two of float8_e5m2. Either may be a QuantizedTensor. The ragged dimension of lhs is
        1. not contracted: [b...,m...,k...] x [g,b...,k...,n...] -> [b...,m...,n...],
        2. contracted: [b...,m...,k...] x [b...,k...,n...] -> [g,b...,m...,n...], or
        3. a batch dimension: [b...,m...,k...] x [b...,k...,n...] -> [b...,m...,n...], as without groups, outside
           of them too: as in jax.lax on CPU the values of group_sizes do not matter.
      group_sizes: any integer type but uint64; [g], or [b...,x...,g] where x... are the dimensions that jax.lax names.
      ragged_dot_dimension_numbers: as there, of any order.
      precision: see above; None is jax_default_matmul_precision.
      preferred_element_type: dtype of the result, by default that of jax.lax.dot_general, where a QuantizedTensor is
        as its partner, or float32 if that is of no float type.
      group_offset: integer, () or (1,): the first group that is computed (forms 1 and 2). rhs of form 1 has the
        groups from there on; form 2 computes as many as group_sizes has, so that only 0 is in range.
      out_sharding: of the result, on a mesh with explicit axes.
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

    The arguments are those of ragged_dot_general without dimension numbers.
    """
    return ragged_dot_general(
        lhs, rhs, group_sizes, RAGGED_DOT_NUMBERS, precision, preferred_element_type, group_offset, out_sharding
    )
