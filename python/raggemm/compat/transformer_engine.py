"""grouped_gemm and grouped_dense of TransformerEngine's JAX package, without quantization, as of version 2.20.

    from raggemm.compat import transformer_engine as te
    te.grouped_dense(x, kernel, group_sizes, bias=bias)

Deliberate differences:

  group_offset    works, where TransformerEngine raises; the kernels may then be those of fewer groups
  precision       is honoured or rejected as in raggemm.compat.lax, where TransformerEngine ignores it
  rows, columns and groups outside are zero, never undefined
  derivatives     of every order, by both functions; each gradient has the dtype of its operand, and that of the
                  bias is summed in float32 or float64 and rounded once
  quantization    is a NotImplementedError
  use_async_d2h_group_sizes
                  has no effect: there it says how the group sizes come from the device to the host
"""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from raggemm._grouped_gemm import parsed, product
from raggemm._operands import GroupedTensor, Words
from raggemm._precision import in_effect

Axes = tuple[Sequence[int], Sequence[int]]


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=("data", "amax", "first_dims", "last_dims"),
    meta_fields=("original_shape",),
)
@dataclasses.dataclass
class GroupedNoScaleTensor:
    """An operand of grouped_gemm; TransformerEngine's own class, or any object with these attributes, will do too.

    data has original_shape, or is flat with as many elements. first_dims and last_dims: integer [G], the sizes of the
    groups along the collapsed first or last axis, None or empty if it is not divided. With last_dims the groups lie
    one after the other in memory, each dense ("PACKED"), as TransformerEngine has it; see raggemm.GroupedTensor. amax
    is not read.
    """

    data: Any
    amax: Any
    first_dims: Any
    last_dims: Any
    original_shape: tuple[int, ...]


def _is_set(sizes: Any) -> bool:
    return sizes is not None and np.size(sizes) > 0


def _operand(name: str, x: Any) -> Any:
    """What raggemm.grouped_gemm takes, from an array or anything that has the attributes of a GroupedNoScaleTensor."""
    if isinstance(x, GroupedTensor | jax.Array | np.ndarray):
        return x
    if getattr(x, "scale_inv", None) is not None:
        raise NotImplementedError(f"{name}: {type(x).__name__} is quantized, which is not supported")
    missing = [a for a in ("data", "first_dims", "last_dims", "original_shape") if not hasattr(x, a)]
    if missing:
        raise TypeError(f"{name}: {type(x).__name__} is no array and has no attribute {', '.join(missing)}")
    data, shape = jnp.asarray(x.data), tuple(x.original_shape)
    if data.size != np.prod(shape, dtype=np.int64):
        raise ValueError(f"{name}: data has shape {data.shape}, which does not hold original_shape {shape}")
    if _is_set(x.first_dims) and _is_set(x.last_dims):
        raise NotImplementedError(f"{name}: first_dims and last_dims are both set; see raggemm.grouped_gemm")
    if _is_set(x.last_dims):
        return GroupedTensor(data.reshape(shape), last_dims=x.last_dims, layout="PACKED")
    return GroupedTensor(data.reshape(shape), first_dims=x.first_dims if _is_set(x.first_dims) else None)


def _check_quantizers(quantizer_set: Any) -> None:
    for name in ("x", "kernel", "dgrad"):
        if getattr(quantizer_set, name, None) is not None:
            raise NotImplementedError(f"quantizer_set: {name} is set; quantization is not supported")


def _product(
    words: Words, lhs: Any, rhs: Any, contracting_dims: Axes, *, precision: Any, dtype: Any, **options: Any
) -> jax.Array:
    """The product of what grouped_gemm of raggemm takes, with its options; dtype: preferred_element_type."""
    lhs, rhs = parsed(words, lhs, rhs, contracting_dims)
    dtype = lhs.data.dtype if dtype is None else dtype
    return product(words, lhs, rhs, preferred_element_type=dtype, precision=in_effect(precision), **options)


def grouped_gemm(
    lhs: Any,
    rhs: Any,
    contracting_dims: Axes = ((1,), (2,)),
    bias: Any = None,
    precision: Any = jax.lax.Precision.DEFAULT,
    preferred_element_type: Any = None,
    group_offset: Any = None,
    quantizer_set: Any = None,
    use_async_d2h_group_sizes: bool = False,
) -> jax.Array:
    """lhs x rhs for each group, as TransformerEngine's, where the operands carry the group sizes.

    Args:
      lhs, rhs: GroupedNoScaleTensors or arrays, of float16, bfloat16, float32 or float64. Divided rows of lhs with a
        rhs [G,K,N] or [G,N,K] give [M,N], both divided along the contracted axis give [G,M,N], and the other modes of
        raggemm.grouped_gemm but all ragged are there too.
      contracting_dims: (lhs_axes, rhs_axes) of original_shape, the group axis included.
      bias: [G,N].
      precision: as in raggemm.compat.lax.
      preferred_element_type: dtype of the result, by default that of lhs.
      group_offset: integer, () or (1,): the first group that is computed; to be given where rhs has fewer groups than
        the sizes count.
      quantizer_set: None, or one without quantizers.
      use_async_d2h_group_sizes: without effect.
    """
    del use_async_d2h_group_sizes
    _check_quantizers(quantizer_set)
    return _product(
        Words(),
        _operand("lhs", lhs),
        _operand("rhs", rhs),
        contracting_dims,
        precision=precision,
        dtype=preferred_element_type,
        bias=bias,
        group_offset=group_offset,
    )


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
      x: [M,K]; kernel: [G,K,N], or [G,N,K] with contracting_dims ((1,), (2,)); group_sizes: [G].
      bias: [G,N], of any of the four float types.
      precision, preferred_element_type, group_offset: as in grouped_gemm.
      quantizer_set: None, or one without quantizers.
      kernel_fsdp_info: (mesh axis, axis of kernel) where kernel is a shard along it: inside a shard_map it is gathered
        first, and its gradient summed and scattered.
    """
    _check_quantizers(quantizer_set)
    mesh_axis, axis = kernel_fsdp_info
    if mesh_axis is not None:
        kernel = jax.lax.all_gather(kernel, mesh_axis, axis=axis, tiled=True)
    return _product(
        Words("x", "kernel", "group_sizes"),
        GroupedTensor(x, first_dims=group_sizes),
        _operand("kernel", kernel),
        contracting_dims,
        precision=precision,
        dtype=preferred_element_type,
        bias=bias,
        group_offset=group_offset,
    )
