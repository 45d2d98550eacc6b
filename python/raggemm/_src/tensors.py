"""The pytrees that calls accept: QuantizedTensor, PackedWeights and GroupedTensor."""

import dataclasses
import functools
import json
import math
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from raggemm._src.call import COLUMN_BLOCKS, STRIDED
from raggemm._src.dtypes import FLOATS, QUANTIZED, elements_per_byte


def _summarize(x: Any) -> str:
    shape, dtype = getattr(x, "shape", None), getattr(x, "dtype", None)
    if isinstance(x, Container) or dtype is None or not isinstance(shape, tuple):
        return repr(x)
    return f"{'float0' if dtype == jax.dtypes.float0 else dtype}[{','.join(map(str, shape))}]"


class Container:
    """Base class of QuantizedTensor, PackedWeights and GroupedTensor: a repr with shapes, and serialization by flax."""

    def __repr__(self) -> str:
        parts = (f"{name}={_summarize(x)}" for name, x in _fields(self).items() if x is not None)
        return f"{type(self).__name__}({', '.join(parts)})"

    def __post_init__(self) -> None:
        """Registers the class with flax.serialization if the program has imported flax."""
        flax = sys.modules.get("flax.serialization")
        # While another thread imports flax.serialization, it has no to_bytes.
        if flax is not None and hasattr(flax, "to_bytes") and not flax.is_serializable(type(self)):
            flax.register_serialization_state(type(self), _save, _restore, override=True)


def _fields(x: Any) -> dict[str, Any]:
    return {field.name: getattr(x, field.name) for field in dataclasses.fields(x)}


def _save(x: Any) -> dict[str, Any]:
    to_state = sys.modules["flax.serialization"].to_state_dict
    return {name: to_state(part) for name, part in _fields(x).items()}


def _restore(target: Any, state: dict[str, Any]) -> Any:
    """Restores a dataclass of the same type as `target` from the saved fields."""
    own = _fields(target)
    if set(own) != set(state):
        raise ValueError(f"{type(target).__name__} has the fields {list(own)}, the saved state has {list(state)}")
    from_state = sys.modules["flax.serialization"].from_state_dict
    return dataclasses.replace(target, **{name: from_state(own[name], x, name) for name, x in state.items()})


def _is_array(index: Any) -> bool:
    if not isinstance(index, np.ndarray | jax.Array) or index.ndim > 1:
        return False
    return jnp.issubdtype(index.dtype, jnp.integer) or (index.dtype == bool and index.ndim == 1)


def _check_index(index: Any, extent: int) -> Any:
    if isinstance(index, int | np.integer) and not isinstance(index, bool):
        if not -extent <= index < extent:
            raise IndexError(f"index is {index}, must be in [{-extent}, {extent}), the extent of axis 0")
    elif not isinstance(index, slice) and not _is_array(index):
        raise TypeError(
            f"index is {index!r}, must be an integer, a slice, or an array of integers or bools with at most one axis: "
            "only axis 0 is indexed"
        )
    return index


def as_bits(x: jax.Array) -> jax.Array:
    """Returns an array of a quantized type as unsigned integers with the same bits, and other arrays unchanged.

    XLA could change the bits of a NaN if it moved 8-bit floats.
    """
    if x.dtype in FLOATS or x.dtype not in QUANTIZED:
        return x
    return lax.bitcast_convert_type(x, {1: jnp.uint8, 2: jnp.uint4, 4: jnp.uint2}[elements_per_byte(x.dtype)])


def refine_blocks(values: jax.Array, shape: Sequence[int], sizes: Sequence[int]) -> jax.Array:
    """Repeats values of blocks for smaller blocks that divide an axis, for each axis whose last block is partial.

    values: one value for each block of `sizes` elements of an array of `shape`. The smaller blocks have gcd(size,
    extent) elements. An axis with one block keeps its one value.
    """
    for axis, (extent, size) in enumerate(zip(shape, sizes, strict=True)):
        if size < extent and extent % size:
            common = math.gcd(size, extent)
            values = lax.slice_in_dim(jnp.repeat(values, size // common, axis), 0, extent // common, axis=axis)
    return values


def _take(x: Any, index: Any) -> Any:
    return (jnp.asarray(x) if isinstance(index, jax.Array) else x)[index]


def _index_elements(data: Any, index: Any) -> Any:
    """Returns data[index]. Keeps the bits of a NaN."""
    if isinstance(data, np.ndarray) and not isinstance(index, jax.Array):
        return data[index]
    bits = as_bits(jnp.asarray(data))[index]
    return bits if bits.dtype == data.dtype else lax.bitcast_convert_type(bits, data.dtype)


def index_tensor(data: Any, params: dict[str, Any], index: Any) -> tuple[Any, dict[str, Any]]:
    """Indexes axis 0 of data. Returns the selected elements, and their scale and zero point from `params`."""
    shape = jnp.shape(data)
    if not shape:
        raise IndexError("data has no axis to index")
    index = _check_index(index, shape[0])
    drops = not isinstance(index, slice) and np.ndim(index) == 0

    def index_param(name: str, param: Any) -> Any:
        own = () if param is None else jnp.shape(param)
        if own == ():
            return param
        if own[0] == shape[0] and (len(own) == len(shape) or len(own) == 1 < len(shape) - 1):
            return _take(param, index)
        if own[0] == 1 and len(own) == len(shape):
            return _take(param, 0) if drops else param
        raise IndexError(f"{name}: shape is {own} with data {shape}, which cannot be indexed along axis 0")

    return _index_elements(data, index), {name: index_param(name, x) for name, x in params.items()}


PACKED_VERSION = 1


@functools.partial(jax.tree_util.register_dataclass, data_fields=("data", "scale", "zero_point"), meta_fields=())
@dataclasses.dataclass(frozen=True, repr=False)
class QuantizedTensor(Container):
    """A quantized array. Its value is (data - zero_point) * scale.

    data: an array of int8, uint8, int4, uint4, int2, float8_e4m3fn, float8_e5m2 or float4_e2m1fn.

    scale: None for 1, or an array of float32, bfloat16, float16, float8_e8m0fnu or float8_e4m3fn. Its shape is
    - (): one scale for all elements;
    - [G]: one scale per group. Groups are axis 0 of data with three or more axes, and for data [M,K] the groups of rows
      that group_sizes gives;
    - an extent for each axis of data that divides the extent of data: one scale per block. For data [G,K,N], [G,1,N]
      has one scale per column of each group, [1,1,N] one per column for all groups, and [G,K/32,N] one per 32 elements
      along K.

    zero_point: None for 0, or an array of data's integer dtype, in any shape that scale may have.

    A product scales sums if the scale is constant along K. Except in ragged K, it also scales sums if the scale is not
    float8 and has blocks of 32, 64, 96, ... elements along K. Otherwise it scales elements. A scaled element of 2^128
    or more is infinite. A scaled element below 2^-126 becomes 0 if the other operand is bfloat16 or quantized, except
    with raggemm.options(bf16_sums="fma"). float8_e8m0fnu scales reach both limits: MXFP4 with codes 0 and 1, and 253
    and 254 (docs/quantized.md).

    The constructor checks nothing. Functions check their arguments: TypeError for a wrong dtype, ValueError for a wrong
    shape. They also accept objects with qvalue, scale and zero_point, such as qwix's QArray.

    tensor[index] indexes axis 0, and returns a QuantizedTensor. index is an integer, a slice, or an array of integers
    or bools with one axis. An integer drops the axis. A traced integer is clamped. Any other index is a TypeError. An
    integer out of range is an IndexError, and so is any index if scales or zero points have blocks along axis 0, or are
    [G] with data [M,K]. len and iteration also use axis 0.

    flax.serialization saves the tensor as a dict of its fields, if flax was imported before the tensor was created.
    """

    data: Any
    scale: Any = None
    zero_point: Any = None

    def __getitem__(self, index: Any) -> "QuantizedTensor":
        data, params = index_tensor(self.data, {"scale": self.scale, "zero_point": self.zero_point}, index)
        return QuantizedTensor(data, **params)

    def __len__(self) -> int:
        return len(self.data)

    def __iter__(self) -> "Iterator[QuantizedTensor]":
        return (self[i] for i in range(len(self)))

    def __array__(self, *_: Any, **__: Any) -> np.ndarray:
        """Raises TypeError, because NumPy would convert the tensor as a sequence."""
        raise TypeError("a QuantizedTensor is not an array; raggemm.dequantize converts it to one")

    @property
    def shape(self) -> tuple[int, ...]:
        return self.data.shape

    @property
    def ndim(self) -> int:
        return self.data.ndim

    @property
    def dtype(self) -> np.dtype:
        return self.data.dtype


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=("data", "scale", "zero_point"),
    meta_fields=("columns", "transposed", "quantized", "version", "layout"),
)
@dataclasses.dataclass(frozen=True, repr=False)
class PackedWeights(Container):
    """Weights [G,K,N] in blocks of B columns, which kernels read as one contiguous stream. prepack creates them.

        data [G,T,K,B]    T = ceil(N/B) blocks per group. A block is K consecutive rows of B columns, with zeros from
                          column N on. B is a power of two from 32 to 256.

    With the layout "WORD_BLOCKS", B is 32, and data has the elements of each tile of 4 rows and 32 columns in another
    order: the four elements of a column are adjacent. In bytes of 4-bit elements, the low bits hold column j and the
    high bits column j + 16. Only products with lhs_quantize=jnp.int8 take this layout.

    Both layouts are the same for all instruction sets. scale and zero_point are those of a QuantizedTensor [G,K,N].
    With "WORD_BLOCKS", values [G,D,N] are stored as [G,D,32*T], in the order of [G,T,D,32], with zeros for padding.

    The other fields are static: columns is N, transposed and quantized tell unprepack what to return, version
    identifies the definition of the layouts, and layout is "COLUMN_BLOCKS" or "WORD_BLOCKS".

    PackedWeights can be saved (with flax.serialization like a QuantizedTensor), donated, and sharded along G.
    """

    data: Any
    scale: Any = None
    zero_point: Any = None
    columns: int = 0
    transposed: bool = False
    quantized: bool = False
    version: int = PACKED_VERSION
    layout: str = COLUMN_BLOCKS

    @property
    def shape(self) -> tuple[int, ...]:
        """Returns the shape [G,K,N] of the weights, also if prepack transposed them."""
        return (*self.data.shape[:-3], self.data.shape[-2], self.columns)

    @property
    def ndim(self) -> int:
        return self.data.ndim - 1

    @property
    def dtype(self) -> np.dtype:
        return self.data.dtype


@functools.partial(
    jax.tree_util.register_dataclass, data_fields=("data", "first_dims", "last_dims"), meta_fields=("layout",)
)
@dataclasses.dataclass(frozen=True, repr=False)
class GroupedTensor(Container):
    """The matrices of G groups in one array. Groups divide its first axis, its last axis, or both.

    data: an array or a QuantizedTensor. The free axes collapse to one axis of a matrix, and the contracted axes to the
    other axis.

    first_dims, last_dims: integer [G], sizes of the groups along the collapsed first or last axis (G row slices, or G
    column slices). Rows or columns after the sum of the sizes belong to no group.

    layout: memory layout of groups along a ragged last axis. "STRIDED" means column slices of one row-major matrix.
    "PACKED" means consecutive dense matrices in the memory of data. The shape of data is [rows, columns] either way.
    Without a ragged last axis both layouts are the same. If both axes are ragged, data is 1-D and "PACKED".
    """

    data: Any
    first_dims: Any = None
    last_dims: Any = None
    layout: str = STRIDED


def _register(node: Any) -> None:
    jax.export.register_pytree_node_serialization(
        node,
        serialized_name=f"raggemm.{node.__name__}",  # part of the serialized format
        serialize_auxdata=lambda fields: json.dumps(fields).encode(),
        deserialize_auxdata=json.loads,
        from_children=lambda fields, children: node(*children, *fields),
    )


for _node in (GroupedTensor, QuantizedTensor, PackedWeights):
    _register(_node)
