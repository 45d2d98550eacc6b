"""grouped_dense, each of whose three products quantizes along what it contracts where there are quantizers; and
grouped_dbias."""

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
from raggemm.compat.transformer_engine._products import Axes, multiplied, operand
from raggemm.compat.transformer_engine._quantize import along, checked_quantizer, has_quantizers
from raggemm.compat.transformer_engine._tensors import QuantizerSet, Scaled, scaled

_WORDS = ArgNames("x", "kernel", "group_sizes")


class _How(NamedTuple):
    """The static arguments of a dense layer. dtypes: those of x, kernel and bias; None for one without a gradient."""

    kernel_axis: int  # the contracted one
    groups: int
    precision: Any
    dtype: Any
    dtypes: tuple[np.dtype | None, ...]


class _Operands(NamedTuple):
    x: Any
    kernel: Any
    bias: Any
    group_sizes: Any
    group_offset: Any
    quantizers: QuantizerSet


def _along(name: str, x: Any, args: _Operands, axis: int) -> Any:
    """x, kernel or the incoming gradient, quantized along this axis by the quantizer of this name."""
    if name != "kernel" and not isinstance(x, Scaled):
        x = GroupedTensor(x, first_dims=args.group_sizes)
    return along(name, x, f"quantizer_set.{name}", getattr(args.quantizers, name), (axis,))


def _sums_of_groups(x: jax.Array, sizes: Any, dtype: Any, offset: Any = None, groups: int | None = None) -> jax.Array:
    """[groups, columns of x]: a product with ones, which finds wrong sizes."""
    ones = jnp.ones((1, x.shape[0]), jnp.float32)
    return tgmm(ones, x, sizes, dtype, group_offset=offset, num_actual_groups=groups)[:, 0]


def grouped_dbias(grad: Any, group_sizes: Any) -> jax.Array:
    """The sum of the rows of each group: the gradient of grouped_dense's bias.

    Args:
      grad: [M,N], of float16, bfloat16, float32 or float64.
      group_sizes: integer [G]. Rows behind their sum belong to no group.

    Returns:
      [G,N] of the dtype of grad, summed in float32 or float64 and rounded once; 0 of an empty group.
    """
    grad = checks.as_float_array("grad", grad, FLOATS)
    checks.check_rank("grad", grad, "M,N")
    return _sums_of_groups(grad, checks.as_group_sizes(group_sizes), grad.dtype)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _dense(how: _How, args: _Operands) -> jax.Array:
    axis = how.kernel_axis
    return multiplied(
        _WORDS,
        _along("x", args.x, args, 1),
        _along("kernel", args.kernel, args, axis),
        ((1,), (axis,)),
        precision=how.precision,
        dtype=how.dtype,
        bias=args.bias,
        group_offset=args.group_offset,
    )


def _forward(how: _How, args: _Operands) -> tuple[jax.Array, Any]:
    """The result, and what the backward pass multiplies: x and kernel need not be kept."""
    saved = _along("x", args.x, args, 0), _along("kernel", args.kernel, args, 3 - how.kernel_axis)
    return _dense(how, args), (*saved, args._replace(x=None, kernel=None, bias=None))


def _backward(how: _How, saved: Any, ct: jax.Array) -> tuple[_Operands]:
    x, kernel, args = saved
    of_x, of_kernel, of_bias = how.dtypes
    options = {"precision": how.precision, "group_offset": args.group_offset}
    dx = dkernel = dbias = None
    if of_x is not None:
        by_rows, axes = _along("dgrad", ct, args, 1), ((1,), (3 - how.kernel_axis,))
        dx = multiplied(_WORDS._replace(lhs="dgrad"), by_rows, kernel, axes, dtype=of_x, **options)
    if of_kernel is not None:
        pair, words = (x, _along("dgrad", ct, args, 0)), _WORDS._replace(rhs="dgrad")
        if how.kernel_axis == 2:
            pair, words = pair[::-1], _WORDS._replace(lhs="dgrad", rhs="x")
        options |= {"dtype": of_kernel, "num_actual_groups": how.groups}
        dkernel = multiplied(words, *pair, ((0,), (0,)), **options)
    if of_bias is not None:
        dbias = _sums_of_groups(ct, args.group_sizes, of_bias, args.group_offset, how.groups)
    return (_Operands(dx, dkernel, dbias, None, None, QuantizerSet()),)


_dense.defvjp(_forward, _backward)


def _contracted(contracting_dims: Axes, x: Any, kernel: Any) -> int:
    """The contracted axis of kernel, of operands that can be quantized."""
    for name, a, rank in (("x", x, 2), ("kernel", kernel, 3)):
        shape = a.layout.shape if isinstance(a, Scaled) else a.shape
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


def _rows_of_groups(x: Any, group_sizes: Any) -> Any:
    """x of a dense layer as an operand."""
    if not hasattr(x, "scale_inv"):
        return GroupedTensor(x, first_dims=checks.as_group_sizes(group_sizes))
    x, sizes = scaled("x", x), checks.as_group_sizes(group_sizes)
    if x.sizes is None or x.sizes.shape != sizes.shape:
        raise ValueError(f"x.first_dims: shape is {np.shape(x.sizes)}, must be {sizes.shape} as group_sizes")
    return dataclasses.replace(x, sizes=sizes)


def _quantized_dense(
    operands: tuple[Any, Any, Any, Any], quantizer_set: Any, contracting_dims: Axes, precision: Any, dtype: Any
) -> jax.Array:
    """grouped_dense of the operands x and kernel, bias and group_offset."""
    x, kernel, bias, offset = operands
    sizes = checks.as_group_sizes(x.sizes if isinstance(x, Scaled) else x.first_dims)
    x, kernel = (
        a
        if isinstance(a, Scaled)
        else checks.as_float_array(name, a.data if isinstance(a, GroupedTensor) else a, FLOATS)
        for name, a in (("x", x), ("kernel", kernel))
    )
    axis = _contracted(contracting_dims, x, kernel)
    bias = None if bias is None else checks.as_float_array("bias", bias, FLOATS)
    offset = None if offset is None else checks.as_integer_array("group_offset", offset)
    dtypes = tuple(None if a is None or isinstance(a, Scaled) else a.dtype for a in (x, kernel, bias))
    groups = kernel.layout.groups if isinstance(kernel, Scaled) else kernel.shape[0]
    quantizers = QuantizerSet(
        *(
            checked_quantizer(f"quantizer_set.{name}", getattr(quantizer_set, name, None), count)
            for name, count in zip(QuantizerSet._fields, (sizes.shape[0], groups, sizes.shape[0]), strict=True)
        )
    )
    how = _How(axis, groups, precision, dtype, dtypes)
    return _dense(how, _Operands(x, kernel, bias, sizes, offset, quantizers))


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
    """x[rows of group g] x kernel[g] + bias[g] for each group, with gradients of x, kernel and bias.

    Args:
      x: [M,K]; kernel: [G,K,N], or [G,N,K] with contracting_dims ((1,), (2,)); group_sizes: [G]. Both may be
        GroupedScaledTensor1xs, whose elements have no gradient; first_dims of x are group_sizes.
      bias: [G,N], of any of the four float types.
      precision, preferred_element_type, group_offset: as in grouped_gemm.
      quantizer_set: its x and kernel quantize these along what the forward pass contracts, and again along what the
        backward pass does, in which its dgrad quantizes the incoming gradient. Gradients are those of a product without
        quantizers. Each may be None. x has two axes then, and kernel three.
      kernel_fsdp_info: (mesh axis, axis of kernel) where kernel is a shard along it: inside a shard_map it is gathered
        first, and its gradient summed and scattered.
    """
    if not isinstance(kernel_fsdp_info, tuple | list) or len(kernel_fsdp_info) != 2:
        raise TypeError(f"kernel_fsdp_info is {kernel_fsdp_info!r}, must be (mesh axis, axis of kernel)")
    quantizes = has_quantizers(quantizer_set)
    mesh_axis, axis = kernel_fsdp_info
    if mesh_axis is not None:
        kernel = jax.lax.all_gather(kernel, mesh_axis, axis=axis, tiled=True)
    x, kernel = _rows_of_groups(x, group_sizes), operand("kernel", kernel)
    if quantizes:
        return _quantized_dense(
            (x, kernel, bias, group_offset), quantizer_set, contracting_dims, precision, preferred_element_type
        )
    return multiplied(
        _WORDS,
        x,
        kernel,
        contracting_dims,
        precision=precision,
        dtype=preferred_element_type,
        bias=bias,
        group_offset=group_offset,
    )
