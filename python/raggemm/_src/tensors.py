"""The pytrees that calls take: QuantizedTensor, PackedWeights and GroupedTensor.

Each has a short repr without numbers, is saved by flax.serialization as a dict of its fields, and may be an argument or
a result of what jax.export serializes.
"""

import dataclasses
import functools
import json
import sys
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from raggemm._src.call import STRIDED
from raggemm._src.dtypes import FLOATS, QUANTIZED, elements_per_byte


def _summarize(x: Any) -> str:
    """dtype[shape] of an array or what stands for one, the repr of all else that a pytree may hold."""
    shape, dtype = getattr(x, "shape", None), getattr(x, "dtype", None)
    if isinstance(x, Container) or dtype is None or not isinstance(shape, tuple):
        return repr(x)
    return f"{'float0' if dtype == jax.dtypes.float0 else dtype}[{','.join(map(str, shape))}]"


class Container:
    """Base of dataclasses: shows shapes and no numbers, and is saved by flax.serialization as a dict of its fields."""

    def __repr__(self) -> str:
        parts = (f"{name}={_summarize(x)}" for name, x in _fields(self).items() if x is not None)
        return f"{type(self).__name__}({', '.join(parts)})"

    def __post_init__(self) -> None:
        """Registers the class with flax.serialization, once a program has imported that: it knows types by a table
        alone, and importing it here would take seconds of every program."""
        flax = sys.modules.get("flax.serialization")
        # Without to_bytes it is being imported, by another thread.
        if flax is not None and hasattr(flax, "to_bytes") and not flax.is_serializable(type(self)):
            flax.register_serialization_state(type(self), _save, _restore, override=True)


def _fields(x: Any) -> dict[str, Any]:
    return {field.name: getattr(x, field.name) for field in dataclasses.fields(x)}


def _save(x: Any) -> dict[str, Any]:
    to_state = sys.modules["flax.serialization"].to_state_dict
    return {name: to_state(part) for name, part in _fields(x).items()}


def _restore(target: Any, state: dict[str, Any]) -> Any:
    """Returns the saved dataclass, its static fields too; nested ones are as the target's."""
    own = _fields(target)
    if set(own) != set(state):
        raise ValueError(f"{type(target).__name__} has the fields {list(own)}, what was saved {list(state)}")
    from_state = sys.modules["flax.serialization"].from_state_dict
    return dataclasses.replace(target, **{name: from_state(own[name], x, name) for name, x in state.items()})


def _is_array(index: Any) -> bool:
    """Returns True for an array of integers, or of bools along one axis."""
    if not isinstance(index, np.ndarray | jax.Array) or index.ndim > 1:
        return False
    return jnp.issubdtype(index.dtype, jnp.integer) or (index.dtype == bool and index.ndim == 1)


def _check_index(index: Any, extent: int) -> Any:
    """Returns the index if an array takes it along axis 0."""
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
    """Elements of quantized formats as integers, for whatever moves floats of eight bits may change a NaN."""
    if x.dtype in FLOATS or x.dtype not in QUANTIZED:
        return x
    return lax.bitcast_convert_type(x, {1: jnp.uint8, 2: jnp.uint4, 4: jnp.uint2}[elements_per_byte(x.dtype)])


def _take(x: Any, index: Any) -> Any:
    return (jnp.asarray(x) if isinstance(index, jax.Array) else x)[index]


def _index_elements(data: Any, index: Any) -> Any:
    """Have no derivative, which would be lost here."""
    if isinstance(data, np.ndarray) and not isinstance(index, jax.Array):
        return data[index]
    bits = as_bits(jnp.asarray(data))[index]
    return bits if bits.dtype == data.dtype else lax.bitcast_convert_type(bits, data.dtype)


def index_tensor(data: Any, factors: dict[str, Any], index: Any) -> tuple[Any, dict[str, Any]]:
    """data[index] along axis 0, and the factors, in any shape that a QuantizedTensor's scale may have, that belong to
    it."""
    shape = jnp.shape(data)
    if not shape:
        raise IndexError("data has no axis to index")
    index = _check_index(index, shape[0])
    drops = not isinstance(index, slice) and np.ndim(index) == 0

    def of_factor(name: str, factor: Any) -> Any:
        own = () if factor is None else jnp.shape(factor)
        if own == ():
            return factor
        if own[0] == shape[0] and (len(own) == len(shape) or len(own) == 1 < len(shape) - 1):
            return _take(factor, index)
        if own[0] == 1 and len(own) == len(shape):
            return _take(factor, 0) if drops else factor
        raise IndexError(f"{name}: shape is {own} with data {shape}, of which no index along axis 0 takes a part")

    return _index_elements(data, index), {name: of_factor(name, x) for name, x in factors.items()}


# Version of the layout of PackedWeights; another layout gets another number.
PACKED_VERSION = 1


@functools.partial(jax.tree_util.register_dataclass, data_fields=("data", "scale", "zero_point"), meta_fields=())
@dataclasses.dataclass(frozen=True, repr=False)
class QuantizedTensor(Container):
    """An array of few bits an element, which stands for (data - zero_point) * scale.

    data is of int8, uint8, int4, uint4, int2, float8_e4m3fn, float8_e5m2 or float4_e2m1fn.

    scale is None, which is 1, or an array of float32, bfloat16, float16, float8_e8m0fnu or float8_e4m3fn, of shape
    - (): one for all;
    - [G]: one for each group, which is axis 0 of data with three axes or more, and the groups of rows that group sizes
      make of data [M,K];
    - data's rank: each extent divides data's, whose blocks of equal size share a value. Of data [G,K,N]: [G,1,N] is one
      for each column of each group, [1,1,N] for each column of all groups, [G,K/32,N] for 32 along K.

    A product multiplies elements by a scale that differs along K. Beside bfloat16 rows such an element counts as 0 if
    it is below 2^-126, unless raggemm.options(bf16_sums="fma") is in effect. Beside rows of any type it is infinite
    from 2^128 on. Scales of float8_e8m0fnu reach both ends: MXFP4 with codes 0 and 1, and with 253 and 254
    (docs/quantized.md).

    zero_point is None, which is 0, or an array of data's own dtype, an integer, of any shape that a scale may have.

    It holds whatever it is given, as every pytree must. Functions that take one check it: TypeError for a wrong dtype,
    ValueError for a wrong shape. They also take what has qvalue, scale and zero_point instead, as qwix' QArray.

    tensor[index] is the part of it along axis 0, such as the experts of data [G,K,N]: a QuantizedTensor of data[index]
    and of the scales and zero points that belong to it, those that all share as they are. index is an integer, which
    drops the axis, a slice, or an array of integers or bools with one axis; a traced integer is clamped, as of any JAX
    array. All else is a TypeError; IndexError for an integer that is out of range, and where several rows share a
    scale, but not all. len and iteration are along that axis too.

    flax.serialization saves and restores one, as the dict of its fields, where flax was imported before it was made.
    """

    data: Any
    scale: Any = None
    zero_point: Any = None

    def __getitem__(self, index: Any) -> "QuantizedTensor":
        data, factors = index_tensor(self.data, {"scale": self.scale, "zero_point": self.zero_point}, index)
        return QuantizedTensor(data, **factors)

    def __len__(self) -> int:
        return len(self.data)

    def __iter__(self) -> "Iterator[QuantizedTensor]":
        return (self[i] for i in range(len(self)))

    def __array__(self, *_: Any, **__: Any) -> np.ndarray:
        """Keeps NumPy from taking it for a sequence."""
        raise TypeError("a QuantizedTensor is no array; raggemm.dequantize makes one of it")

    @property
    def shape(self) -> tuple[int, ...]:
        return self.data.shape

    @property
    def ndim(self) -> int:
        return self.data.ndim

    @property
    def dtype(self) -> np.dtype:
        """The one of data."""
        return self.data.dtype


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=("data", "scale", "zero_point"),
    meta_fields=("columns", "transposed", "quantized", "version"),
)
@dataclasses.dataclass(frozen=True, repr=False)
class PackedWeights(Container):
    """Weights [G,K,N] as prepack makes them: in blocks of B columns, so that kernels read them from end to end.

        data [G,T,K,B]    of each group T = ceil(N/B) blocks, each K rows of B columns one after the other; zeros
                          behind column N. B is a power of two, 32 to 256.

    Every instruction set reads it. scale and zero_point are those of a QuantizedTensor [G,K,N]. The rest is static:
    columns is N, transposed and quantized say what unprepack gives back, version that of the layout.

    A pytree of plain arrays: it can be saved, by flax.serialization as a QuantizedTensor is, donated, and sharded along
    G, the first axis of data.
    """

    data: Any
    scale: Any = None
    zero_point: Any = None
    columns: int = 0
    transposed: bool = False
    quantized: bool = False
    version: int = PACKED_VERSION

    @property
    def shape(self) -> tuple[int, ...]:
        """[G,K,N]."""
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
    """A matrix for each of G groups in one array, where the groups divide the first axis, the last, or both.

    data, an array or a QuantizedTensor, is N-D and collapses to a matrix between its free and its contracted axes.
    first_dims and last_dims, integer [G], are the sizes of the groups along its collapsed first and last axis: G row
    slices or G column slices. Their sum may be less than the axis, what is behind it belongs to no group.

    layout says how the groups of a ragged last axis lie in memory: "STRIDED", column slices of one row-major matrix,
    as JAX means it; or "PACKED", each group's matrix dense, one after the other in the memory of `data`, as
    TransformerEngine means it (the shape of `data` stays [rows, columns]). Elsewhere it makes no difference. With
    both axes ragged data is 1-D and "PACKED".
    """

    data: Any
    first_dims: Any = None
    last_dims: Any = None
    layout: str = STRIDED


def _register(node: Any) -> None:
    jax.export.register_pytree_node_serialization(
        node,
        serialized_name=f"raggemm.{node.__name__}",  # is in what is serialized
        serialize_auxdata=lambda fields: json.dumps(fields).encode(),
        deserialize_auxdata=json.loads,
        from_children=lambda fields, children: node(*children, *fields),
    )


for _node in (GroupedTensor, QuantizedTensor, PackedWeights):
    _register(_node)
