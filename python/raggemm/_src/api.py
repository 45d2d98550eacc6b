"""gmm and tgmm with the signatures of megablox, and ragged_dot with that of jax.lax."""

import functools
import inspect
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import jax
import jax.numpy as jnp

from raggemm._src import checks
from raggemm._src.arguments import (
    DEFAULT_LHS_BLOCK,
    check_lhs_quantize,
    default_precision,
    existing_out_options,
    is_code_matrix,
)
from raggemm._src.dtypes import FLOATS
from raggemm._src.grouped_gemm import compute_product
from raggemm._src.operands import EQUAL_COUNTS, ArgNames, make_operands
from raggemm._src.quantization import quantize

_P = ParamSpec("_P")
_R = TypeVar("_R")


def _is_concrete(x: Any) -> bool:
    return isinstance(x, jax.Array) and not isinstance(x, jax.core.Tracer)


def _is_hashable(x: Any) -> bool:
    try:
        hash(x)
    except TypeError:
        return False
    return True


def jit_eager_calls(
    *arrays: str, without_effect: tuple[str, ...] = ()
) -> Callable[[Callable[_P, _R]], Callable[_P, _R]]:
    """Returns a decorator that runs eager calls of a function through jax.jit.

    So arguments are checked only once for each signature. A call is eager if each argument in `arrays` is None or an
    untraced JAX array. All other arguments are static in jit, so they must be hashable, too.

    Args:
      arrays: names of the parameters that are arrays.
      without_effect: names of parameters without effect. jit does not get them. Otherwise it would compile again for a
        new `tiling`.
    """

    def decorate(function: Callable[_P, _R]) -> Callable[_P, _R]:
        parameters = inspect.signature(function).parameters
        names = tuple(parameters)
        positional = tuple(name for name, x in parameters.items() if x.kind is not x.KEYWORD_ONLY)
        compiled = jax.jit(function, static_argnames=tuple(name for name in names if name not in arrays))

        @functools.wraps(function)
        def call(*args: _P.args, **kwargs: _P.kwargs) -> _R:
            given: dict[str, Any] = dict(zip(positional, args, strict=False))
            if len(args) > len(positional) or given.keys() & kwargs.keys():
                return function(*args, **kwargs)  # raises TypeError
            given |= kwargs
            for name in without_effect:
                given.pop(name, None)
            if all(x is None or (_is_concrete(x) if name in arrays else _is_hashable(x)) for name, x in given.items()):
                return compiled(**given)
            return function(*args, **kwargs)

        return call

    return decorate


def straight_through(
    product: Callable[..., jax.Array], operands: tuple[Any, Any], values: tuple[Any, Any], sizes: Any
) -> jax.Array:
    """Computes product(*operands, sizes), with straight-through derivatives of quantized operands.

    product: a function that is linear in each operand. values: for each operand, the array before quantization, or
    None. This array gets the derivative of the quantized operand.
    """

    @jax.custom_jvp
    def call(fixed, own, values, sizes):
        return product(*_merge_operands(fixed, own), sizes)

    @call.defjvp
    def _(primals, tangents):
        fixed, own, _, sizes = primals
        out, tangent = jax.jvp(lambda own: product(*_merge_operands(fixed, own), sizes), (own,), (tangents[1],))
        for side, dot in tangents[2].items():
            replaced = _merge_operands(fixed, own)
            replaced[side] = dot
            tangent = tangent + product(*replaced, sizes)
        return out, tangent

    quantized = {side: x for side, x in enumerate(operands) if values[side] is not None}
    own = {side: x for side, x in enumerate(operands) if values[side] is None}
    return call(quantized, own, {side: values[side] for side in quantized}, sizes)


def _merge_operands(fixed: dict[int, Any], own: dict[int, Any]) -> list[Any]:
    both = fixed | own
    return [both[0], both[1]]


__all__ = ["gmm", "ragged_dot", "tgmm"]

_ARG_NAMES = ArgNames(sizes="group_sizes", c="existing_out")


@jit_eager_calls("lhs", "rhs", "group_sizes", "group_offset", "existing_out", without_effect=("tiling", "interpret"))
def gmm(
    lhs: Any,
    rhs: Any,
    group_sizes: Any,
    preferred_element_type: Any = jnp.float32,
    tiling: Any = (128, 128, 128),
    group_offset: Any = None,
    existing_out: Any = None,
    transpose_rhs: bool = False,
    interpret: bool = False,
    *,
    lhs_quantize: Any = None,
    lhs_block: int | None = DEFAULT_LHS_BLOCK,
) -> jax.Array:
    """Computes lhs[rows of group g] x rhs[g] for each group, as jax.experimental.pallas.ops.tpu.megablox.gmm.

    Rows of the result in no processed group come from existing_out, or are zero without it. The gradient of
    existing_out is zero for overwritten rows. In megablox it is the whole cotangent.

    Args:
      lhs: [m, k]. lhs and rhs are float16, bfloat16, float32 or float64 in any mix, or both are int8 or uint8 and the
        result is int32. Either may be a QuantizedTensor.
      rhs: [num_groups, k, n], or [num_groups, n, k] with transpose_rhs, or PackedWeights without transpose_rhs.
      group_sizes: [total groups], int32, int64 or uint32: rows of each group. The sum may be less than m.
      preferred_element_type: dtype of the result. The default is float32, also for float64 operands.
      tiling, interpret: without effect.
      group_offset: integer, () or (1,): index in group_sizes of the group of rhs[0]. Required if rhs has fewer groups
        than group_sizes (else ValueError). In megablox the default is 0.
      existing_out: [m, n] of preferred_element_type (else ValueError). Its rows in processed groups are not read.
      transpose_rhs: see rhs.
      lhs_quantize: dtype to which lhs is quantized. Derivatives ignore the rounding (straight-through).
        - int8, if rhs is a QuantizedTensor or PackedWeights of integers or float4_e2m1fn: the call quantizes the rows,
          and multiplies codes by codes. The scale of a block is the maximum of abs(x) / 127, and a code is x / scale,
          rounded to nearest even. A row with NaN or infinity gives NaN. lhs must not be float64 (else TypeError).
          docs/numerics.md has the rule of every bit.
        - int8 with any other rhs, or another dtype: quantize is applied to lhs before the call. Second derivatives
          treat the quantized elements as constants. Must not be given with existing_out.
      lhs_block: number of elements of a row that share a scale if lhs_quantize is int8: a multiple of 32, or None for
        the whole row. If rhs has several scales or zero points along k, their blocks must be of a multiple of 16
        elements, and divide lhs_block or be a multiple of it (else ValueError). All other dtypes have one scale per
        row.

    Returns:
      [m, n].
    """
    del tiling, interpret
    dtype, block = check_lhs_quantize(lhs_quantize, lhs_block)
    if dtype is not None and (block is None or not is_code_matrix(rhs)):
        if existing_out is not None:
            raise ValueError(f"existing_out: must not be given with lhs_quantize of {dtype} and this rhs")

        def multiply(lhs: Any, rhs: Any, group_sizes: Any) -> jax.Array:
            return gmm(lhs, rhs, group_sizes, preferred_element_type, (), group_offset, None, transpose_rhs)

        return _call_quantized(multiply, lhs, rhs, group_sizes, dtype, block)
    return compute_product(
        _ARG_NAMES,
        *make_operands(lhs, rhs, group_sizes, (1, 2 if checks.check_bool("transpose_rhs", transpose_rhs) else 1)),
        group_offset=group_offset,
        preferred_element_type=preferred_element_type,
        lhs_block=block,
        **existing_out_options(existing_out, preferred_element_type, beta=0),
    )


@jit_eager_calls("lhs", "rhs", "group_sizes", "group_offset", "existing_out", without_effect=("tiling", "interpret"))
def tgmm(
    lhs: Any,
    rhs: Any,
    group_sizes: Any,
    preferred_element_type: Any = jnp.float32,
    tiling: Any = (128, 128, 128),
    group_offset: Any = None,
    num_actual_groups: int | None = None,
    existing_out: Any = None,
    interpret: bool = False,
) -> jax.Array:
    """Computes lhs[:, columns of group g] x rhs[rows of group g] for each group, as megablox's tgmm.

    The product of an empty group is zero.

    Args:
      lhs: [k, m]. lhs and rhs have the types of gmm. Either may be a QuantizedTensor.
      rhs: [m, n].
      group_sizes: [total groups], as for gmm: extent of each group along m. The sum may be less than m.
      preferred_element_type: see gmm.
      tiling, interpret: without effect.
      group_offset: integer, () or (1,): index of the first group to compute. Required if num_actual_groups is less
        than the number of groups (else ValueError).
      num_actual_groups: number of groups to compute. The default is all.
      existing_out: [num_actual_groups, k, n] of preferred_element_type (else ValueError). It is added to the products.

    Returns:
      [num_actual_groups, k, n].
    """
    del tiling, interpret
    return compute_product(
        _ARG_NAMES,
        *make_operands(lhs, rhs, group_sizes, (1, 0), rhs_rank=2),
        group_offset=group_offset,
        num_actual_groups=num_actual_groups,
        preferred_element_type=preferred_element_type,
        **existing_out_options(existing_out, preferred_element_type, beta=1),
    )


def _promote_floats(a: Any, b: Any) -> Any:
    """Returns the dtype of a dot without preferred_element_type, by the rule of jax.lax.

    Two floats give the dtype with the larger range, or with the larger precision if ranges are equal.
    """
    if not (a in FLOATS and b in FLOATS):
        return jnp.promote_types(a, b)
    return max(a, b, key=lambda dtype: (jnp.finfo(dtype).maxexp, jnp.finfo(dtype).nmant))


def _call_quantized(
    call: Callable[..., jax.Array], lhs: Any, rhs: Any, group_sizes: Any, dtype: Any, block: int | None
) -> jax.Array:
    """Quantizes lhs before the call. block: elements of a row that share a scale. 0 or None means the whole row."""
    lhs = checks.as_float_array("lhs", lhs)
    if lhs.ndim != 2:
        return call(lhs, rhs, group_sizes)  # raises an error
    if block and lhs.shape[1] % block:
        raise ValueError(
            f"lhs_block is {block}, must divide {lhs.shape[1]}, the columns of lhs, or be None: lhs_quantize takes "
            "other blocks only if rhs has integers or float4_e2m1fn"
        )
    sizes = checks.as_integer_array("group_sizes", group_sizes)
    quantized = quantize(lhs, dtype, block=(1, block)) if block else quantize(lhs, dtype, axes=1)
    return straight_through(call, (quantized, rhs), (lhs, None), sizes)


@jit_eager_calls("lhs", "rhs", "group_sizes", "group_offset")
def ragged_dot(
    lhs: Any,
    rhs: Any,
    group_sizes: Any,
    precision: Any = None,
    preferred_element_type: Any = None,
    group_offset: Any = None,
    out_sharding: Any = None,
    *,
    lhs_quantize: Any = None,
    lhs_block: int | None = DEFAULT_LHS_BLOCK,
) -> jax.Array:
    """Computes lhs[rows of group g] x rhs[g] for each group, as jax.lax.ragged_dot.

    Wrong shapes are a TypeError, as in jax.lax.

    Args:
      lhs: [m, k]. lhs and rhs are float16, bfloat16, float32 or float64, or both int8 or uint8. Either may be a
        QuantizedTensor.
      rhs: [g, k, n], or PackedWeights.
      group_sizes: [g], or more than g sizes with group_offset. See gmm. Rows of the result in no processed group are
        zero.
      precision: any jax.lax.Precision gives the same result. float32 operands also allow the DotAlgorithmPresets
        BF16_BF16_F32_X3 and _X6 (see grouped_gemm). None means jax_default_matmul_precision.
      preferred_element_type: dtype of the result. It must be int32 for int8 and uint8. The default is the dtype of lhs
        or rhs with the larger range, or with the larger precision if ranges are equal. A QuantizedTensor does not
        count. If both are QuantizedTensors, the default is float32.
      group_offset: see gmm.
      out_sharding: sharding of the result, on a mesh with explicit axes.
      lhs_quantize, lhs_block: as in gmm. They do not change the dtype of the result.

    Returns:
      [m, n].
    """
    quantized, block = check_lhs_quantize(lhs_quantize, lhs_block)
    if quantized is not None and (block is None or not is_code_matrix(rhs)):
        lhs, others = checks.as_float_array("lhs", lhs), checks.split_weights("rhs", rhs)[0].dtype
        dtype = lhs.dtype if others not in FLOATS else _promote_floats(lhs.dtype, others)
        dtype = dtype if preferred_element_type is None else preferred_element_type

        def dot(lhs: Any, rhs: Any, group_sizes: Any) -> jax.Array:
            return ragged_dot(lhs, rhs, group_sizes, precision, dtype, group_offset, out_sharding)

        return _call_quantized(dot, lhs, rhs, group_sizes, quantized, block)
    rows, weights = make_operands(lhs, rhs, group_sizes, (1, 1), error=TypeError)
    assert rows.first_dims is not None
    groups, sizes = weights.data.shape[0], rows.first_dims.shape[0]
    if groups > sizes or (groups != sizes and group_offset is None):
        hint = f": {EQUAL_COUNTS}" if groups < sizes else ""
        raise TypeError(f"rhs has {groups} groups, but group_sizes has {sizes}{hint}")
    if group_offset is not None:
        checks.as_group_offset(group_offset, TypeError)
    dtype = preferred_element_type
    if dtype is None and rows.quant_params is None and weights.quant_params is None:
        dtype = _promote_floats(rows.data.dtype, weights.data.dtype)
    options = {"group_offset": group_offset, "preferred_element_type": dtype, "precision": default_precision(precision)}
    options["lhs_block"] = block
    return checks.reshard(compute_product(_ARG_NAMES, rows, weights, **options), out_sharding)
