"""grouped_dense with quantizers: each of its three products quantizes along what it contracts."""

import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from raggemm._operands import GroupedTensor, Words, integer_array
from raggemm._primitive.call import FLOATS
from raggemm._tensors import float_array
from raggemm.compat.transformer_engine._products import Axes, multiplied
from raggemm.compat.transformer_engine._quantize import along, checked_quantizer
from raggemm.compat.transformer_engine._ragged import Rows
from raggemm.compat.transformer_engine._tensors import QuantizerSet, Scaled, group_sizes_of, scaled

WORDS = Words("x", "kernel", "group_sizes")


class _How(NamedTuple):
    """What of a dense layer is no array. dtypes: of x, kernel and bias, None of what has no gradient."""

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


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _dense(how: _How, args: _Operands) -> jax.Array:
    axis = how.kernel_axis
    return multiplied(
        WORDS,
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
        dx = multiplied(WORDS._replace(lhs="dgrad"), by_rows, kernel, axes, dtype=of_x, **options)
    if of_kernel is not None:
        pair, words = (x, _along("dgrad", ct, args, 0)), WORDS._replace(rhs="dgrad")
        if how.kernel_axis == 2:
            pair, words = pair[::-1], WORDS._replace(lhs="dgrad", rhs="x")
        options |= {"dtype": of_kernel, "num_actual_groups": how.groups}
        dkernel = multiplied(words, *pair, ((0,), (0,)), **options)
    if of_bias is not None:
        group = Rows.of(args.group_sizes, ct.shape[0]).group
        if args.group_offset is not None:
            group -= args.group_offset.reshape(-1)[0].astype(group.dtype)
        wide = ct.astype(jnp.promote_types(ct.dtype, jnp.float32))
        dbias = jax.ops.segment_sum(wide, group, how.groups).astype(of_bias)
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


def rows_of_groups(x: Any, group_sizes: Any) -> Any:
    """x of a dense layer as an operand."""
    if not hasattr(x, "scale_inv"):
        return GroupedTensor(x, first_dims=group_sizes_of("group_sizes", group_sizes))
    x, sizes = scaled("x", x), group_sizes_of("group_sizes", group_sizes)
    if x.sizes is None or x.sizes.shape != sizes.shape:
        raise ValueError(f"x.first_dims: shape is {np.shape(x.sizes)}, must be {sizes.shape} as group_sizes")
    return dataclasses.replace(x, sizes=sizes)


def quantized_dense(
    operands: tuple[Any, Any, Any, Any], quantizer_set: Any, contracting_dims: Axes, precision: Any, dtype: Any
) -> jax.Array:
    """grouped_dense of the operands x and kernel, bias and group_offset."""
    x, kernel, bias, offset = operands
    sizes = group_sizes_of("group_sizes", x.sizes if isinstance(x, Scaled) else x.first_dims)
    x, kernel = (
        a if isinstance(a, Scaled) else float_array(name, a.data if isinstance(a, GroupedTensor) else a, FLOATS)
        for name, a in (("x", x), ("kernel", kernel))
    )
    axis = _contracted(contracting_dims, x, kernel)
    bias = None if bias is None else float_array("bias", bias, FLOATS)
    offset = None if offset is None else integer_array("group_offset", offset)
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
