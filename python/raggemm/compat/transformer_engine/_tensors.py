"""The tensors and scaling modes of TransformerEngine's JAX package, and the layouts of their elements and scales."""

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
from raggemm.compat.transformer_engine._ragged import cdiv, max_blocks

F32 = np.dtype(np.float32)


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=("data", "amax", "first_dims", "last_dims"),
    meta_fields=("original_shape",),
)
@dataclasses.dataclass
class GroupedNoScaleTensor:
    """An operand of grouped_gemm without scales. Any object with these attributes also works.

    With last_dims the groups' matrices are dense and contiguous ("PACKED" in raggemm.GroupedTensor).
    """

    data: Any  # elements, in original_shape or flat
    amax: Any  # not read
    first_dims: Any  # group sizes along the collapsed first axis, integer [G]; None or empty if not ragged
    last_dims: Any  # group sizes along the collapsed last axis, like first_dims
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
    """A quantized operand. Any object with these attributes also works, such as TransformerEngine's.

    data has the elements of an array of original_shape, flattened. Axes before flatten_axis collapse to rows, and all
    further axes to columns. Groups divide the rows (first_dims, [G]) or the columns (last_dims, [G]). The last rows or
    columns may belong to no group. Groups of columns are contiguous dense matrices. Without first_dims and last_dims,
    axis 0 is the group axis if flatten_axis is 2 or more, and there is one matrix if flatten_axis is 1.

    With data_layout "T" each group's matrix is stored transposed, and the matrices are contiguous. original_shape and
    flatten_axis describe the transposed matrix, [K,M] or [G,N,K]. first_dims, last_dims, is_colwise and
    contracting_dims describe the untransposed matrix.

    scaling_mode is a name or an enum with these names:

    | name                                           | data            | scale_inv                            |
    |------------------------------------------------|-----------------|--------------------------------------|
    | NO_SCALING                                     | a float type    | not read                             |
    | DELAYED_TENSOR_SCALING, CURRENT_TENSOR_SCALING | float8          | float32 (G,)                         |
    | MXFP8_1D_SCALING                               | float8          | float8_e8m0fnu, 1 per 32 elements    |
    | NVFP4_1D_SCALING                               | float4_e2m1fn   | float8_e4m3fn, 1 per 16 elements     |
    | NVFP4_2D_SCALING                               | float4_e2m1fn   | float8_e4m3fn, 1 per 16x16 block     |

    float8 is float8_e4m3fn or float8_e5m2. NVFP4 has a second scale per group, amax / (6 * 448) in float32, or 1 if
    amax is 0 or not finite. amax has the shape (G,), (1,) or ().

    Blocks of 32 or 16 lie along a row, or along a column if is_colwise. Each group starts a new block, and its last
    block may be partial. scale_inv has one matrix per group: ceil(rows / block) x columns if is_colwise, else
    rows x ceil(columns / block), and transposed if data is. The matrices are contiguous, without padding or swizzling.
    scale_inv has room for the largest possible number of blocks: min(L, (L + (block - 1) * G) // block) along an axis
    of L elements that G groups divide. The last scales may be unused.

    pre_swizzled: scale_inv has the layout of TransformerEngine's kernels; see unswizzled.
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
    """A quantizer. Any object with these attributes also works, such as a quantizer of TransformerEngine.

    It may have an attribute `quantizers`, a list with one quantizer per group. DELAYED_TENSOR_SCALING uses their
    scales.
    """

    q_dtype: Any
    scaling_mode: Any  # name or enum, see GroupedScaledTensor1x
    q_layout: Any = "ROWWISE_COLWISE"  # "ROWWISE", "COLWISE" or "ROWWISE_COLWISE"; for grouped_quantize
    scale: Any = None  # scales, (G,), (1,) or (), for DELAYED_TENSOR_SCALING only


class QuantizerSet(NamedTuple):
    """The quantizers of the arrays of grouped_dense. None does not quantize.

    Any object with these attributes also works.
    """

    x: Any = None
    kernel: Any = None
    dgrad: Any = None  # quantizer of the incoming gradient


class Mode(NamedTuple):
    """A scaling mode of TransformerEngine."""

    elements: tuple[np.dtype, ...]  # allowed types
    scale: np.dtype | None = None  # Type of scales. None: no scales.
    block: tuple[int, int] | None = None  # Shape of a rowwise block. None: one scale per group.
    colwise_layout: str = "T"  # data_layout of colwise data. "T": each matrix is transposed.

    @property
    def has_amax_scale(self) -> bool:
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


def enum_name(what: str, value: Any, allowed: Any) -> str:
    name = getattr(value, "name", value)
    if name not in allowed:
        raise ValueError(f"{what}: is {value!r}, must be {', '.join(allowed)}")
    return name


@dataclasses.dataclass(frozen=True)
class Layout:
    shape: tuple[int, ...]
    lead: int  # number of group axes in shape, 0 or 1
    split: int  # index in shape of the first axis that belongs to the columns
    ragged: int | None  # axis of the stored matrix that groups divide, 0 or 1; None: neither
    groups: int
    transposed: bool = False  # True: the stored matrices are transposed

    @classmethod
    def from_shape(cls, shape: tuple[int, ...], lead: int, split: int, ragged: int | None, sizes: Any) -> "Layout":
        groups = sizes.shape[0] if sizes is not None else shape[0] if lead else 1
        return cls(shape, lead, split, ragged, groups)

    @property
    def matrix(self) -> tuple[int, int]:
        return math.prod(self.shape[self.lead : self.split]), math.prod(self.shape[self.split :])

    def transpose(self) -> "Layout":
        lead, split = self.lead, self.split
        shape = self.shape[:lead] + self.shape[split:] + self.shape[lead:split]
        ragged = None if self.ragged is None else 1 - self.ragged
        return Layout(shape, lead, lead + len(shape) - split, ragged, self.groups, not self.transposed)

    def stored_axis(self, axis: int) -> int:
        if not self.transposed or not -len(self.shape) <= axis < len(self.shape):
            return axis
        axis, first = axis % len(self.shape), self.transpose().split
        if axis < self.lead:
            return axis
        return axis + len(self.shape) - first if axis < first else axis - first + self.lead

    def scale_shape(self, block: tuple[int, int]) -> tuple[int, ...]:
        """Returns the shape of the scales, counted in blocks: [G,rows,columns], or [rows,columns] if an axis is ragged.

        block: rows and columns of a block in the stored matrix.
        """
        counts = [
            max_blocks(extent, self.groups, size) if axis == self.ragged else cdiv(extent, size)
            for axis, (extent, size) in enumerate(zip(self.matrix, block, strict=True))
        ]
        return (*((self.groups,) if self.ragged is None else ()), *counts)


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=("data", "scale", "amax", "sizes"),
    meta_fields=("mode", "layout", "block", "dtype"),
)
@dataclasses.dataclass(frozen=True)
class ScaledOperand:
    """A checked GroupedScaledTensor1x, or a result of quantize_along."""

    mode: Mode
    layout: Layout
    block: tuple[int, int] | None  # shape of a block in the stored matrix; None: one scale per group
    dtype: Any  # dq_dtype of the GroupedScaledTensor1x
    data: jax.Array  # flat elements
    scale: jax.Array | None  # flat scales; None: no scaling
    amax: jax.Array | None
    sizes: jax.Array | None  # sizes of the groups along the ragged axis; None: not ragged


def is_given(sizes: Any) -> bool:
    return sizes is not None and np.size(sizes) > 0


def check_flatten_axis(name: str, flatten_axis: Any, shape: tuple[int, ...]) -> int:
    axis = checks.check_integer("flatten_axis", flatten_axis)
    axis += len(shape) if axis < 0 else 0
    if not 0 < axis < len(shape):
        raise ValueError(f"{name}: is {flatten_axis}, must be between the axes of shape {shape}")
    return axis


def ragged_dims(name: str, x: Any) -> tuple[int | None, jax.Array | None]:
    if is_given(x.first_dims) and is_given(x.last_dims):
        raise ValueError(f"{name}: first_dims and last_dims are both set, at most one may be; see raggemm.grouped_gemm")
    for axis, field in enumerate(("first_dims", "last_dims")):
        if is_given(getattr(x, field)):
            return axis, checks.as_group_sizes(getattr(x, field), f"{name}.{field}")
    return None, None


def parse_layout(name: str, x: Any) -> tuple[Layout, jax.Array | None]:
    fields = [f.name for f in dataclasses.fields(GroupedScaledTensor1x) if f.name not in ("amax", "pre_swizzled")]
    missing = [field for field in fields if not hasattr(x, field)]
    if missing:
        raise TypeError(f"{name}: {type(x).__name__} lacks the attributes {', '.join(missing)}")
    transposed = enum_name(f"{name}.data_layout", x.data_layout, ("N", "T")) == "T"
    shape = tuple(map(operator.index, x.original_shape))
    split = check_flatten_axis(f"{name}.flatten_axis", x.flatten_axis, shape)
    axis, sizes = ragged_dims(name, x)
    layout = Layout.from_shape(
        shape, int(axis is None and split > 1), split, None if axis is None else axis ^ transposed, sizes
    )
    return dataclasses.replace(layout, transposed=transposed), sizes


def stored_block(mode: Mode, is_colwise: bool, transposed: bool) -> tuple[int, int] | None:
    if mode.block is None:
        return None
    return mode.block[::-1] if is_colwise != transposed else mode.block


def parse_scaled(name: str, x: Any) -> ScaledOperand:
    layout, sizes = parse_layout(name, x)
    mode = MODES[enum_name(f"{name}.scaling_mode", x.scaling_mode, MODES)]
    for field, why in (("pre_swizzled", "call unswizzled"), ("has_rht_applied", "rotated tensors are not supported")):
        if getattr(x, field, False):
            raise ValueError(f"{name}.{field}: is True, must be False; {why}")
    data, why = jnp.asarray(x.data), f", the elements of original_shape {layout.shape}"
    checks.check_shape(f"{name}.data", data, (math.prod(layout.shape),), why=why)
    checks.check_dtype(f"{name}.data for {x.scaling_mode}", data.dtype, mode.elements)
    block = stored_block(mode, x.is_colwise, layout.transposed)
    scale, amax = None, None
    if mode.scale is not None:
        scale = checks.as_float_array(f"{name}.scale_inv", x.scale_inv, (mode.scale,))
        length = layout.groups if block is None else math.prod(layout.scale_shape(block))
        what = "group" if block is None else f"{block[0]}x{block[1]} block of the stored {layout.matrix}"
        checks.check_shape(
            f"{name}.scale_inv", scale, (length,), why=f", one for each {what}, of {layout.groups} groups"
        )
        data = jax.lax.stop_gradient(data)
    if mode.has_amax_scale:
        amax = check_amax(f"{name}.amax", getattr(x, "amax", None), layout.groups)
    return ScaledOperand(mode, layout, block, x.dq_dtype, data, scale, amax, sizes)


def check_amax(name: str, amax: Any, groups: int) -> jax.Array:
    """Checks amax. Returns it in float32 with the shape (G,), or () if groups share it."""
    if amax is None:
        raise ValueError(f"{name}: is None, must have the shape ({groups},), (1,) or ()")
    amax = checks.as_float_array(name, amax).astype(F32)
    if amax.shape not in ((groups,), (1,), ()):
        raise ValueError(f"{name}: shape is {amax.shape}, must be ({groups},), (1,) or ()")
    return amax if amax.shape == (groups,) else amax.reshape(())
