"""The tensors of TransformerEngine's JAX package, its scaling modes, and how the elements and scales of each lie."""

import dataclasses
import functools
import math
import operator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from raggemm._src import checks
from raggemm._src.dtypes import FLOATS
from raggemm._src.quantization import E2M1, E4M3, E5M2, E8M0
from raggemm.compat.transformer_engine._ragged import ceiling, most_blocks

F32 = np.dtype(np.float32)


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


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=("data", "scale_inv", "amax", "first_dims", "last_dims"),
    meta_fields=(
        *("scaling_mode", "dq_dtype", "is_colwise", "data_layout", "flatten_axis", "original_shape", "pre_swizzled"),
    ),
)
@dataclasses.dataclass
class GroupedScaledTensor1x:
    """A quantized operand; TransformerEngine's own class, or any object with these attributes, will do too.

    Its matrices: data is flat, of original_shape, of which the axes before flatten_axis collapse to rows and the
    others to columns. Groups divide the rows (first_dims, [G]) or the columns (last_dims, [G]), and what is behind
    their sum belongs to none. With neither of them axis 0 is the group axis where flatten_axis is 2 or more, and there
    is one matrix where it is 1. Matrices of groups that divide the columns lie one after the other, each dense.

    data_layout "T" means that each group's matrix is stored transposed, one after the other: original_shape and
    flatten_axis are then those of the transposed one, [K,M] or [G,N,K], while first_dims, last_dims, is_colwise and
    contracting_dims mean the axes before that.

    scaling_mode, by name or as an enum with these names:

    | name                                           | data            | scale_inv                            |
    |------------------------------------------------|-----------------|--------------------------------------|
    | NO_SCALING                                     | a float type    | not read                             |
    | DELAYED_TENSOR_SCALING, CURRENT_TENSOR_SCALING | float8          | float32 (G,)                         |
    | MXFP8_1D_SCALING                               | float8          | float8_e8m0fnu, one for 32 elements  |
    | NVFP4_1D_SCALING                               | float4_e2m1fn   | float8_e4m3fn, one for 16 elements   |
    | NVFP4_2D_SCALING                               | float4_e2m1fn   | float8_e4m3fn, one for 16x16         |

    float8 is float8_e4m3fn or float8_e5m2. NVFP4 elements are also times amax / (6 * 448) in float32, or 1 where that
    is 0 or no number; amax has the shape (G,), (1,) or ().

    Blocks of 32 or 16 lie along a row, or along a column if is_colwise, and begin anew in each group, whose last block
    may be partial. scale_inv has a matrix of scales for each group, of the shape ceil(rows / block) x columns if
    is_colwise, and rows x ceil(columns / block) else; transposed with data. They follow one another as they are,
    neither padded nor swizzled, and nothing lies between them. So scale_inv is as long as the scales of all groups can
    be together: where blocks lie along the axis of L elements that G groups divide, these are
    min(L, (L + (block - 1) * G) // block) blocks, of which the last may be unused.

    pre_swizzled: scale_inv is as TransformerEngine's kernels have it; see unswizzled.
    """

    data: Any
    scale_inv: Any
    amax: Any
    first_dims: Any
    last_dims: Any
    scaling_mode: Any
    dq_dtype: Any
    is_colwise: bool
    data_layout: str
    flatten_axis: int
    original_shape: tuple[int, ...]
    pre_swizzled: bool = False


@functools.partial(jax.tree_util.register_dataclass, data_fields=("rowwise_tensor", "colwise_tensor"), meta_fields=())
@dataclasses.dataclass
class ScaledTensor2x:
    """The result of grouped_quantize for q_layout ROWWISE_COLWISE."""

    rowwise_tensor: GroupedScaledTensor1x
    colwise_tensor: GroupedScaledTensor1x


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=("scale",),
    meta_fields=("q_dtype", "scaling_mode", "q_layout"),
)
@dataclasses.dataclass(frozen=True)
class GroupedQuantizer:
    """How to quantize; TransformerEngine's own quantizers, or any object with these attributes, will do too.

    q_dtype: of the elements. scaling_mode: see GroupedScaledTensor1x. q_layout, "ROWWISE", "COLWISE" or
    "ROWWISE_COLWISE", is what grouped_quantize makes; products take no notice of it. scale, (G,), (1,) or (), is for
    DELAYED_TENSOR_SCALING; a quantizer with an attribute `quantizers`, one for each group, has theirs.
    """

    q_dtype: Any
    scaling_mode: Any
    q_layout: Any = "ROWWISE_COLWISE"
    scale: Any = None


class QuantizerSet(NamedTuple):
    """The quantizers of grouped_dense, None for an array that is not quantized.

    Any object with these attributes will do too.
    """

    x: Any = None
    kernel: Any = None
    dgrad: Any = None


class Mode(NamedTuple):
    """A scaling mode: the types of elements and scales, the shape of a rowwise block, and colwise data's layout."""

    elements: tuple[np.dtype, ...]
    scale: np.dtype | None = None
    block: tuple[int, int] | None = None
    colwise_layout: str = "T"

    @property
    def has_amax_factor(self) -> bool:
        return self.elements == (E2M1,)


_TENSOR = Mode((E4M3, E5M2), F32)
MODES = {
    "NO_SCALING": Mode(tuple(FLOATS)),
    "DELAYED_TENSOR_SCALING": _TENSOR,
    "CURRENT_TENSOR_SCALING": _TENSOR,
    "MXFP8_1D_SCALING": Mode((E4M3, E5M2), E8M0, (1, 32), "N"),
    "NVFP4_1D_SCALING": Mode((E2M1,), E4M3, (1, 16)),
    "NVFP4_2D_SCALING": Mode((E2M1,), E4M3, (16, 16)),
}


def name_of(what: str, value: Any, allowed: Any) -> str:
    """Returns the name of an enum's member, or a string, if it is one of `allowed`."""
    name = getattr(value, "name", value)
    if name not in allowed:
        raise ValueError(f"{what}: is {value!r}, must be {', '.join(allowed)}")
    return name


@dataclasses.dataclass(frozen=True)
class Layout:
    """How the matrices of a tensor are stored.

    lead: 1 with a group axis, else 0. split: the first axis of the columns. ragged: the stored axis of the matrix that
    groups divide, 0 or 1.
    """

    shape: tuple[int, ...]
    lead: int
    split: int
    ragged: int | None
    groups: int
    transposed: bool = False

    @classmethod
    def of(cls, shape: tuple[int, ...], lead: int, split: int, ragged: int | None, sizes: Any) -> "Layout":
        groups = sizes.shape[0] if sizes is not None else shape[0] if lead else 1
        return cls(shape, lead, split, ragged, groups)

    @property
    def matrix(self) -> tuple[int, int]:
        return math.prod(self.shape[self.lead : self.split]), math.prod(self.shape[self.split :])

    def turned(self) -> "Layout":
        """Returns the layout of each matrix transposed."""
        lead, split = self.lead, self.split
        shape = self.shape[:lead] + self.shape[split:] + self.shape[lead:split]
        ragged = None if self.ragged is None else 1 - self.ragged
        return Layout(shape, lead, lead + len(shape) - split, ragged, self.groups, not self.transposed)

    def stored(self, axis: int) -> int:
        """Returns the stored axis for an axis of the tensor that is not transposed."""
        if not self.transposed or not -len(self.shape) <= axis < len(self.shape):
            return axis
        axis, first = axis % len(self.shape), self.turned().split
        if axis < self.lead:
            return axis
        return axis + len(self.shape) - first if axis < first else axis - first + self.lead

    def scales(self, block: tuple[int, int]) -> tuple[int, ...]:
        """The shape of scale_inv, where a block has this stored shape: [G,rows,columns], or without G where groups
        divide an axis."""
        counts = [
            most_blocks(extent, self.groups, size) if axis == self.ragged else ceiling(extent, size)
            for axis, (extent, size) in enumerate(zip(self.matrix, block, strict=True))
        ]
        return (*((self.groups,) if self.ragged is None else ()), *counts)


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=("data", "scale", "amax", "sizes"),
    meta_fields=("mode", "layout", "block", "dtype"),
)
@dataclasses.dataclass(frozen=True)
class Scaled:
    """A GroupedScaledTensor1x that was checked, with flat data and scales and the shape of a block as it is stored."""

    mode: Mode
    layout: Layout
    block: tuple[int, int] | None
    dtype: Any
    data: jax.Array
    scale: jax.Array | None
    amax: jax.Array | None
    sizes: jax.Array | None


def is_set(sizes: Any) -> bool:
    return sizes is not None and np.size(sizes) > 0


def flattened(name: str, flatten_axis: Any, shape: tuple[int, ...]) -> int:
    axis = checks.check_integer("flatten_axis", flatten_axis)
    axis += len(shape) if axis < 0 else 0
    if not 0 < axis < len(shape):
        raise ValueError(f"{name}: is {flatten_axis}, must lie between the axes of shape {shape}")
    return axis


def dims_of(name: str, x: Any) -> tuple[int | None, jax.Array | None]:
    """Returns the axis that the groups divide, 0 with first_dims and 1 with last_dims, and their sizes."""
    if is_set(x.first_dims) and is_set(x.last_dims):
        raise ValueError(f"{name}: first_dims and last_dims are both set, at most one may be; see raggemm.grouped_gemm")
    for axis, field in enumerate(("first_dims", "last_dims")):
        if is_set(getattr(x, field)):
            return axis, checks.as_group_sizes(getattr(x, field), f"{name}.{field}")
    return None, None


def layout_of(name: str, x: Any) -> tuple[Layout, jax.Array | None]:
    fields = [f.name for f in dataclasses.fields(GroupedScaledTensor1x) if f.name not in ("amax", "pre_swizzled")]
    missing = [field for field in fields if not hasattr(x, field)]
    if missing:
        raise TypeError(f"{name}: {type(x).__name__} has no attribute {', '.join(missing)}")
    transposed = name_of(f"{name}.data_layout", x.data_layout, ("N", "T")) == "T"
    shape = tuple(map(operator.index, x.original_shape))
    split = flattened(f"{name}.flatten_axis", x.flatten_axis, shape)
    axis, sizes = dims_of(name, x)
    layout = Layout.of(
        shape, int(axis is None and split > 1), split, None if axis is None else axis ^ transposed, sizes
    )
    return dataclasses.replace(layout, transposed=transposed), sizes


def stored_block(mode: Mode, is_colwise: bool, transposed: bool) -> tuple[int, int] | None:
    if mode.block is None:
        return None
    return mode.block[::-1] if is_colwise != transposed else mode.block


def scaled(name: str, x: Any) -> Scaled:
    """x, anything with the attributes of a GroupedScaledTensor1x, checked. TypeError and ValueError where it cannot
    be one; elements have no derivative."""
    layout, sizes = layout_of(name, x)
    mode = MODES[name_of(f"{name}.scaling_mode", x.scaling_mode, MODES)]
    for field, why in (("pre_swizzled", "unswizzled gives such a one"), ("has_rht_applied", "none is rotated here")):
        if getattr(x, field, False):
            raise ValueError(f"{name}.{field}: is True, must be False; {why}")
    data, why = jnp.asarray(x.data), f", the elements of original_shape {layout.shape}"
    checks.check_shape(f"{name}.data", data, (math.prod(layout.shape),), why=why)
    checks.check_dtype(f"{name}.data: of {x.scaling_mode}", data.dtype, mode.elements)
    block = stored_block(mode, x.is_colwise, layout.transposed)
    scale, amax = None, None
    if mode.scale is not None:
        scale = checks.as_float_array(f"{name}.scale_inv", x.scale_inv, (mode.scale,))
        length = layout.groups if block is None else math.prod(layout.scales(block))
        what = "group" if block is None else f"{block[0]}x{block[1]} of {layout.matrix} as stored"
        checks.check_shape(
            f"{name}.scale_inv", scale, (length,), why=f", one for each {what}, of {layout.groups} groups"
        )
        data = jax.lax.stop_gradient(data)
    if mode.has_amax_factor:
        amax = amax_of(f"{name}.amax", getattr(x, "amax", None), layout.groups)
    return Scaled(mode, layout, block, x.dq_dtype, data, scale, amax, sizes)


def amax_of(name: str, amax: Any, groups: int) -> jax.Array:
    """(G,), or () of one for all groups, in float32."""
    if amax is None:
        raise ValueError(f"{name}: is None, must have the shape ({groups},), (1,) or ()")
    amax = checks.as_float_array(name, amax).astype(F32)
    if amax.shape not in ((groups,), (1,), ()):
        raise ValueError(f"{name}: shape is {amax.shape}, must be ({groups},), (1,) or ()")
    return amax if amax.shape == (groups,) else amax.reshape(())
