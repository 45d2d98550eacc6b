"""The operands of the front ends: what they may be, and their checks, which calls outside of jit make only once."""

import dataclasses
import functools
import inspect
import math
import operator
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, ParamSpec, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from raggemm._functions.containers import Container
from raggemm._functions.tensors import (
    STAND_FOR_NUMBERS,
    Factors,
    check_is_plain,
    dtype_of,
    nibbles_hint,
    weight_parts,
)
from raggemm._primitive.call import COLUMN_BLOCKS, INTEGERS, PACKED, QUANTIZED, STRIDED, listed, odd_type

_P = ParamSpec("_P")
_R = TypeVar("_R")


@functools.partial(
    jax.tree_util.register_dataclass, data_fields=("data", "first_dims", "last_dims"), meta_fields=("layout",)
)
@dataclasses.dataclass(frozen=True, repr=False)
class GroupedTensor(Container):
    """A matrix for each of G groups in one array, where the groups divide the first axis, the last, or both.

    data, an array or a QuantizedTensor, is N-D and collapses to a matrix between its free and its contracted axes.
    first_dims and last_dims, integer [G], are the sizes of the groups along its collapsed first and last axis: G row
    slices or G column slices. Their
    sum may be less than the axis, what is behind it belongs to no group.

    layout says how the groups of a ragged last axis lie in memory: "STRIDED", column slices of one row-major matrix,
    as JAX means it; or "PACKED", each group's matrix dense, one after the other in the memory of `data`, as
    TransformerEngine means it (the shape of `data` stays [rows, columns]). Elsewhere it makes no difference. With
    both axes ragged data is 1-D and "PACKED".
    """

    data: Any
    first_dims: Any = None
    last_dims: Any = None
    layout: str = STRIDED


class Words(NamedTuple):
    """What errors call the arguments of a front end: its own words for those of grouped_gemm."""

    lhs: str = "lhs"
    rhs: str = "rhs"
    sizes: str | None = None  # of every dims array; None: as in lhs.first_dims
    c: str = "c"
    bias: str = "bias"
    row_index: str = "row_index"


# Ends the errors of a call whose matrices and group sizes differ in number.
EQUAL_COUNTS = "the two must be equal, unless group_offset says which group is the first"


def check_types(words: Words, lhs: Any, rhs: Any, out: Any, narrow: bool = False) -> None:
    """Floats go with floats, in any mix; bytes with bytes, for int32; narrow: as odd_type says."""
    if (odd := odd_type(lhs, rhs, out, narrow)) is not None:
        name, allowed = odd
        word = {"lhs": words.lhs, "rhs": words.rhs, "result": "preferred_element_type"}[name]
        dtype = {"lhs": lhs, "rhs": rhs, "result": out}[name]
        beside = f"with {words.lhs} of {lhs} and {words.rhs} of {rhs}"
        hint = STAND_FOR_NUMBERS if {lhs, rhs} & set(QUANTIZED) else ""
        raise TypeError(f"{word}: dtype is {dtype}, must be {listed(allowed)} {beside}{hint}")


def check_quantized_types(words: Words, lhs: Any, rhs: Any) -> None:
    """Of what has factors, or is beside it: all but one pair go together."""
    if lhs == rhs == jnp.float8_e5m2:
        raise TypeError(f"{words.lhs} and {words.rhs} are both of float8_e5m2: one of them must have more digits")


def result_dtype(preferred: Any) -> np.dtype:
    """preferred_element_type as JAX has it: float64 is float32 without jax_enable_x64, with a warning where it was
    asked for by that name."""
    named = dtype_of("preferred_element_type", preferred)
    dtype = jax.dtypes.canonicalize_dtype(named)
    if dtype == np.float32 and preferred is not float and named == np.float64:
        warnings.warn(
            "preferred_element_type: dtype float64 is not available, the result is float32; see jax_enable_x64",
            stacklevel=2,
        )
    return dtype


def integer_array(name: str, x: Any) -> jax.Array:
    """x as a JAX array; a value that does not fit into it is an error, where jnp.asarray would wrap it."""
    if not isinstance(x, jax.Array):
        check_is_plain(name, x)
        x = np.asarray(x)
    if x.dtype not in INTEGERS:
        raise TypeError(f"{name}: dtype is {x.dtype}, must be {listed(INTEGERS)}")
    if isinstance(x, np.ndarray) and x.dtype == np.int64:
        limits = jnp.iinfo(jax.dtypes.canonicalize_dtype(np.int64))
        wrong = np.flatnonzero((x < limits.min) | (x > limits.max))
        if wrong.size:
            raise ValueError(
                f"{name}: value {x.flat[wrong[0]]} at index {wrong[0]} exceeds {limits.max}; see jax_enable_x64"
            )
    return jnp.asarray(x)


def resharded(out: jax.Array, out_sharding: Any) -> jax.Array:
    """As out_sharding says, if there is one."""
    if out_sharding is None:
        return out
    if not isinstance(out_sharding, jax.sharding.Sharding | jax.sharding.PartitionSpec):
        raise TypeError(f"out_sharding is {out_sharding!r}, must be a NamedSharding or a PartitionSpec")
    return jax.sharding.reshard(out, out_sharding)


def check_layout(name: str, layout: str) -> None:
    if not isinstance(layout, str) or layout not in (STRIDED, PACKED):
        raise ValueError(f'{name} is {layout!r}, must be "STRIDED" or "PACKED"')


def _sizes(name: str, x: Any) -> jax.Array | None:
    if x is None:
        return None
    sizes = integer_array(name, x)
    if sizes.ndim != 1:
        raise ValueError(f"{name}: shape is {sizes.shape}, must be [G]")
    return sizes


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=("data", "first_dims", "last_dims", "factors"),
    meta_fields=("name", "axes", "sizes_name", "layout", "has_group_axis", "columns"),
)
@dataclasses.dataclass(frozen=True)
class Operand:
    """lhs or rhs, checked by itself: data with its contracted axes, which are adjacent and sorted."""

    name: str
    data: jax.Array
    axes: tuple[int, ...]
    first_dims: jax.Array | None = None
    last_dims: jax.Array | None = None
    sizes_name: str | None = "group_sizes"  # of the dims arrays; None: as in lhs.first_dims
    layout: str = STRIDED
    has_group_axis: bool = False
    factors: Factors | None = None
    columns: int | None = None  # of PackedWeights, whose data is [G,T,K,B]

    @classmethod
    def parse(cls, name: str, sizes_name: str | None, x: Any, axes: Sequence[int]) -> "Operand":
        tensor = x if isinstance(x, GroupedTensor) else GroupedTensor(x)
        data, factors, columns = weight_parts(name, tensor.data)
        check_layout(f"{name}.layout", tensor.layout)
        first_dims = _sizes(sizes_name or f"{name}.first_dims", tensor.first_dims)
        last_dims = _sizes(sizes_name or f"{name}.last_dims", tensor.last_dims)
        both = first_dims is not None and last_dims is not None
        if both and (data.ndim != 1 or tensor.layout != PACKED):
            raise ValueError(
                f"{name}: with first_dims and last_dims data must be 1-D with layout PACKED, got shape {data.shape} "
                f"with {tensor.layout}"
            )
        contracted = _normalized(name, axes, 2 if both else data.ndim if columns is None else 3)
        if both and len(contracted) == 2:
            raise ValueError(f"{name}: contracting_dims {contracted} must be one axis of each group's own matrix")
        layout = tensor.layout if columns is None else COLUMN_BLOCKS
        operand = cls(name, data, contracted, first_dims, last_dims, sizes_name, layout, factors=factors)
        return dataclasses.replace(operand, columns=columns).with_checked_blocks()

    def with_checked_blocks(self) -> "Operand":
        """The same, where PackedWeights can be contracted so."""
        if self.columns is not None and (self.axes != (1,) or self.dims):
            raise ValueError(
                f"{self.name}: PackedWeights are [G,K,N] of ragged M, contracted over axis 1, whatever was packed; "
                "unprepack them for other products"
            )
        return self

    @functools.cached_property
    def shape(self) -> tuple[int, ...]:
        """Of data, but for that of PackedWeights as it was before."""
        if self.columns is None:
            return self.data.shape
        return (self.data.shape[0], self.data.shape[2], self.columns)

    @functools.cached_property
    def rank(self) -> int:
        """Of data, or of each group's own matrix where both axes are ragged."""
        return 2 if len(self.dims) == 2 else len(self.shape)

    @functools.cached_property
    def dims(self) -> dict[str, jax.Array]:
        """The dims arrays that are set, by name."""
        named = {"first_dims": self.first_dims, "last_dims": self.last_dims}
        return {self.sizes_name or f"{self.name}.{x}": sizes for x, sizes in named.items() if sizes is not None}

    @functools.cached_property
    def contracts_first(self) -> bool:
        """Whether the matrix is [contracted, free] rather than [free, contracted]."""
        if self.rank == len(self.axes):  # no free axis, so that it is either
            return self.first_dims is not None
        return self.axes[0] == self.has_group_axis

    @functools.cached_property
    def ragged_axis(self) -> str | None:
        """The axis that the groups divide: "free", "contracted" or "both"."""
        if len(self.dims) != 1:
            return "both" if self.dims else None
        return "contracted" if (self.first_dims is not None) == self.contracts_first else "free"

    def with_group_axis(self) -> "Operand":
        """The same with axis 0 as the group axis."""
        if self.axes[0] == 0:
            raise ValueError(
                f"{self.name}: axis 0 of shape {self.shape} is the group axis, behind which contracting_dims "
                f"must lie, got {self.axes}"
            )
        return dataclasses.replace(self, has_group_axis=True)

    def check_sides(self) -> None:
        """The contracted axes must be the first or the last ones behind the group axis."""
        if self.axes[0] != self.has_group_axis and self.axes[-1] != self.rank - 1:
            raise ValueError(
                f"{self.name}: contracting_dims {self.axes} lie in the middle of shape {self.shape}, must be the "
                f"first or the last axes{' behind the group axis' if self.has_group_axis else ''}"
            )

    @property
    def free_shape(self) -> tuple[int, ...]:
        shape = enumerate(self.shape)
        return tuple(n for axis, n in shape if axis >= self.has_group_axis and axis not in self.axes)

    @property
    def contracted_shape(self) -> tuple[int, ...]:
        return tuple(self.shape[axis] for axis in self.axes)

    @property
    def canonical_shape(self) -> tuple[int, ...]:
        """[1,G,rows,cols] with a group axis, else [1,1,rows,cols], or [1,1,length] with both axes ragged."""
        if self.ragged_axis == "both":
            return (1, 1, *self.data.shape)
        if self.columns is not None:
            return (1, *self.data.shape)
        matrix = [math.prod(self.free_shape), math.prod(self.contracted_shape)]
        if self.contracts_first:
            matrix.reverse()
        return (1, self.data.shape[0] if self.has_group_axis else 1, *matrix)


def _normalized(name: str, axes: Sequence[int], rank: int) -> tuple[int, ...]:
    """Contracted axes counted from the front; refuses all but sorted adjacent ones."""
    try:
        axes = tuple(map(operator.index, axes))
    except TypeError:
        raise ValueError(f"{name}: contracting_dims {axes} must be integers") from None
    if not axes:
        raise ValueError(f"{name}: contracting_dims names no axis")
    if any(not -rank <= axis < rank for axis in axes):
        raise ValueError(f"{name}: contracting_dims {axes} are out of range for rank {rank}")
    normalized = tuple(axis % rank for axis in axes)
    if normalized != tuple(range(normalized[0], normalized[0] + len(normalized))):
        order = "unsorted" if list(normalized) != sorted(normalized) else "not adjacent"
        raise ValueError(f"{name}: contracting_dims {axes} are {order}, must be adjacent axes in order")
    return normalized


def check_contraction(lhs: Operand, rhs: Operand) -> None:
    """The contracted extents agree: axis by axis, or as products where one operand splits the axis and one does not."""
    a, b = lhs.contracted_shape, rhs.contracted_shape
    if a != b if len(a) == len(b) else math.prod(a) != math.prod(b):
        said = f"{lhs.name} contracts {a} of shape {lhs.shape}, but {rhs.name} contracts {b} of shape {rhs.shape}"
        raise ValueError(f"{said}{contraction_hint(lhs, rhs)}")


def contraction_hint(lhs: Operand, rhs: Operand) -> str:
    """Returns a hint if one of the two seems to hold two elements in a byte, else nothing."""
    a, b = math.prod(lhs.contracted_shape), math.prod(rhs.contracted_shape)
    return nibbles_hint(lhs.data.dtype, a, b) or nibbles_hint(rhs.data.dtype, b, a)


def _is_concrete(x: Any) -> bool:
    return isinstance(x, jax.Array) and not isinstance(x, jax.core.Tracer)


def _is_hashable(x: Any) -> bool:
    try:
        hash(x)
    except TypeError:
        return False
    return True


def compiled_when_eager(
    *arrays: str, without_effect: tuple[str, ...] = ()
) -> Callable[[Callable[_P, _R]], Callable[_P, _R]]:
    """A decorator: calls whose parameters `arrays` are all JAX arrays with values, or None, go through jax.jit, where
    the other parameters are static, but for those without effect, which it never sees: a new function in each call
    would be a new program. JAX' caches know what those calls depend on besides: dtypes, shapes, shardings,
    configuration, options.

    All other calls are left as they are: traced ones, which some jit compiles already, and those with values that are
    checked as they come (integers of Python and NumPy) or that JAX does not take as static.
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
                return function(*args, **kwargs)  # a TypeError
            given |= kwargs
            for name in without_effect:
                given.pop(name, None)
            if all(x is None or (_is_concrete(x) if name in arrays else _is_hashable(x)) for name, x in given.items()):
                return compiled(**given)
            return function(*args, **kwargs)

        return call

    return decorate
