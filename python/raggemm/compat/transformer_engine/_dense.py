"""Defines grouped_dense, a dense layer for groups of rows, and grouped_dbias, the gradient of its bias."""

import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from raggemm._src import checks
from raggemm._src.api import tgmm
from raggemm._src.dtypes import FLOATS
from raggemm._src.operands import ArgNames
from raggemm._src.tensors import GroupedTensor
from raggemm.compat.transformer_engine._products import Axes, multiply, parse_operand
from raggemm.compat.transformer_engine._quantize import check_quantizer, has_quantizers, quantize_along
from raggemm.compat.transformer_engine._tensors import QuantizerSet, ScaledOperand, parse_scaled

_ARGUMENT_NAMES = ArgNames("x", "kernel", "group_sizes")


class _DenseSpec(NamedTuple):
    kernel_axis: int  # contracted axis of kernel
    groups: int
    precision: Any
    dtype: Any
    gradient_dtypes: tuple[np.dtype | None, ...]  # dtypes of the gradients of x, kernel and bias; None for no gradient


class _Operands(NamedTuple):
    x: Any
    kernel: Any
    bias: Any
    group_sizes: Any
    group_offset: Any
    quantizers: QuantizerSet


def _quantize(name: str, x: Any, args: _Operands, axis: int) -> Any:
    if name != "kernel" and not isinstance(x, ScaledOperand):
        x = GroupedTensor(x, first_dims=args.group_sizes)
    return quantize_along(name, x, f"quantizer_set.{name}", getattr(args.quantizers, name), (axis,))


def _sum_groups(x: jax.Array, sizes: Any, dtype: Any, offset: Any = None, groups: int | None = None) -> jax.Array:
    """Returns the sum of each group's rows of x: [groups, columns of x].

    A grouped product of ones and x computes the sums, and checks the group sizes.
    """
    ones = jnp.ones((1, x.shape[0]), jnp.float32)
    return tgmm(ones, x, sizes, dtype, group_offset=offset, num_actual_groups=groups)[:, 0]


def grouped_dbias(grad: Any, group_sizes: Any) -> jax.Array:
    """Sums the rows of each group: the gradient of grouped_dense's bias.

    Args:
      grad: [M,N], float16, bfloat16, float32 or float64.
      group_sizes: integer [G]. Rows beyond their sum belong to no group.

    Returns:
      [G,N] of the dtype of grad, summed in float32 or float64 and rounded once. Empty groups are 0.
    """
    grad = checks.as_float_array("grad", grad, FLOATS)
    checks.check_rank("grad", grad, "M,N")
    return _sum_groups(grad, checks.as_group_sizes(group_sizes), grad.dtype)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _dense(spec: _DenseSpec, args: _Operands) -> jax.Array:
    axis = spec.kernel_axis
    return multiply(
        _ARGUMENT_NAMES,
        _quantize("x", args.x, args, 1),
        _quantize("kernel", args.kernel, args, axis),
        ((1,), (axis,)),
        precision=spec.precision,
        dtype=spec.dtype,
        bias=args.bias,
        group_offset=args.group_offset,
    )


def _forward(spec: _DenseSpec, args: _Operands) -> tuple[jax.Array, Any]:
    residuals = _quantize("x", args.x, args, 0), _quantize("kernel", args.kernel, args, 3 - spec.kernel_axis)
    return _dense(spec, args), (*residuals, args._replace(x=None, kernel=None, bias=None))


def _backward(spec: _DenseSpec, residuals: Any, ct: jax.Array) -> tuple[_Operands]:
    x, kernel, args = residuals
    x_dtype, kernel_dtype, bias_dtype = spec.gradient_dtypes
    options = {"precision": spec.precision, "group_offset": args.group_offset}
    dx = dkernel = dbias = None
    if x_dtype is not None:
        dgrad, axes = _quantize("dgrad", ct, args, 1), ((1,), (3 - spec.kernel_axis,))
        dx = multiply(_ARGUMENT_NAMES._replace(lhs="dgrad"), dgrad, kernel, axes, dtype=x_dtype, **options)
    if kernel_dtype is not None:
        operands, names = (x, _quantize("dgrad", ct, args, 0)), _ARGUMENT_NAMES._replace(rhs="dgrad")
        if spec.kernel_axis == 2:
            operands, names = operands[::-1], _ARGUMENT_NAMES._replace(lhs="dgrad", rhs="x")
        options |= {"dtype": kernel_dtype, "num_actual_groups": spec.groups}
        dkernel = multiply(names, *operands, ((0,), (0,)), **options)
    if bias_dtype is not None:
        dbias = _sum_groups(ct, args.group_sizes, bias_dtype, args.group_offset, spec.groups)
    return (_Operands(dx, dkernel, dbias, None, None, QuantizerSet()),)


_dense.defvjp(_forward, _backward)


def _contracted_kernel_axis(contracting_dims: Axes, x: Any, kernel: Any) -> int:
    for name, a, rank in (("x", x, 2), ("kernel", kernel, 3)):
        shape = a.layout.shape if isinstance(a, ScaledOperand) else a.shape
        if len(shape) != rank:
            raise ValueError(f"{name}: shape is {shape}, must have {rank} axes with quantizers")
    try:
        (x_axis,), (axis,) = contracting_dims
    except (TypeError, ValueError):
        x_axis, axis = 0, 0
    if x_axis not in (1, -1) or axis not in (1, 2, -1, -2):
        raise ValueError(
            f"contracting_dims is {contracting_dims}, must be ((1,), (1,)) or ((1,), (2,)) with quantizers"
        )
    return axis % 3


def _parse_x(x: Any, group_sizes: Any) -> Any:
    if not hasattr(x, "scale_inv"):
        return GroupedTensor(x, first_dims=checks.as_group_sizes(group_sizes))
    x, sizes = parse_scaled("x", x), checks.as_group_sizes(group_sizes)
    if x.sizes is None or x.sizes.shape != sizes.shape:
        raise ValueError(f"x.first_dims: shape is {np.shape(x.sizes)}, must be {sizes.shape} like group_sizes")
    return dataclasses.replace(x, sizes=sizes)


def _quantized_dense(
    operands: tuple[Any, Any, Any, Any], quantizer_set: Any, contracting_dims: Axes, precision: Any, dtype: Any
) -> jax.Array:
    x, kernel, bias, offset = operands
    sizes = checks.as_group_sizes(x.sizes if isinstance(x, ScaledOperand) else x.first_dims)
    x, kernel = (
        a
        if isinstance(a, ScaledOperand)
        else checks.as_float_array(name, a.data if isinstance(a, GroupedTensor) else a, FLOATS)
        for name, a in (("x", x), ("kernel", kernel))
    )
    axis = _contracted_kernel_axis(contracting_dims, x, kernel)
    bias = None if bias is None else checks.as_float_array("bias", bias, FLOATS)
    offset = None if offset is None else checks.as_integer_array("group_offset", offset)
    dtypes = tuple(None if a is None or isinstance(a, ScaledOperand) else a.dtype for a in (x, kernel, bias))
    groups = kernel.layout.groups if isinstance(kernel, ScaledOperand) else kernel.shape[0]
    quantizers = QuantizerSet(
        *(
            check_quantizer(f"quantizer_set.{name}", getattr(quantizer_set, name, None), count)
            for name, count in zip(QuantizerSet._fields, (sizes.shape[0], groups, sizes.shape[0]), strict=True)
        )
    )
    spec = _DenseSpec(axis, groups, precision, dtype, dtypes)
    return _dense(spec, _Operands(x, kernel, bias, sizes, offset, quantizers))


def grouped_dense(
    x: Any,
    kernel: Any,
    group_sizes: Any,
    contracting_dims: Axes = ((1,), (1,)),
    bias: Any = None,
    precision: Any = jax.lax.Precision.DEFAULT,
    preferred_element_type: Any = None,
    group_offset: Any = None,
    quantizer_set: Any = None,
    kernel_fsdp_info: tuple[str | None, int] = (None, -1),
) -> jax.Array:
    """Computes x[rows of group g] x kernel[g] + bias[g] for each group. x, kernel and bias have gradients.

    Args:
      x: [M,K], or a GroupedScaledTensor1x whose first_dims are group_sizes. Its elements have no gradient.
      kernel: [G,K,N], or [G,N,K] with contracting_dims ((1,), (2,)), or a GroupedScaledTensor1x. Its elements have no
        gradient.
      group_sizes: integer [G].
      bias: [G,N], float16, bfloat16, float32 or float64.
      precision, preferred_element_type, group_offset: see grouped_gemm.
      quantizer_set: quantizers of x, kernel and the incoming gradient (dgrad), or None. Every forward and backward
        product quantizes along its contracted axes. Gradients are straight-through. With quantizers, x must have two
        axes, and kernel three.
      kernel_fsdp_info: (mesh axis, axis of kernel) if kernel is sharded, inside a shard_map. kernel is gathered first,
        and its gradient is reduce-scattered.

    Returns:
      [M,N].
    """
    if not isinstance(kernel_fsdp_info, tuple | list) or len(kernel_fsdp_info) != 2:
        raise TypeError(f"kernel_fsdp_info is {kernel_fsdp_info!r}, must be (mesh axis, axis of kernel)")
    with_quantizers = has_quantizers(quantizer_set)
    mesh_axis, axis = kernel_fsdp_info
    if mesh_axis is not None:
        kernel = jax.lax.all_gather(kernel, mesh_axis, axis=axis, tiled=True)
    x, kernel = _parse_x(x, group_sizes), parse_operand("kernel", kernel)
    if with_quantizers:
        return _quantized_dense(
            (x, kernel, bias, group_offset), quantizer_set, contracting_dims, precision, preferred_element_type
        )
    return multiply(
        _ARGUMENT_NAMES,
        x,
        kernel,
        contracting_dims,
        precision=precision,
        dtype=preferred_element_type,
        bias=bias,
        group_offset=group_offset,
    )
