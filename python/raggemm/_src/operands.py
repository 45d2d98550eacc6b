"""Checks lhs and rhs of a product."""

import dataclasses
import functools
import math
import operator
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from raggemm._src import checks
from raggemm._src.call import PACKED, STRIDED
from raggemm._src.dtypes import QUANTIZED, find_bad_dtype, format_dtypes
from raggemm._src.tensors import GroupedTensor


class ArgNames(NamedTuple):
    """Names of grouped_gemm's arguments in the error messages of a front end."""

    lhs: str = "lhs"
    rhs: str = "rhs"
    sizes: str | None = None  # name of all arrays of group sizes; None: names such as lhs.first_dims
    c: str = "c"
    bias: str = "bias"
    row_index: str = "row_index"
    lhs_quantize: str = "lhs_quantize"


# End of the error message for different numbers of matrices and group sizes.
EQUAL_COUNTS = "the two must be equal, unless group_offset names the first group"


def check_dtypes(arg_names: ArgNames, lhs: Any, rhs: Any, out: Any, narrow: bool = False) -> None:
    """Raises TypeError if a product does not support the dtypes lhs, rhs and out. narrow: see find_bad_dtype."""
    if (bad := find_bad_dtype(lhs, rhs, out, narrow)) is not None:
        name, allowed = bad
        arg_name = {"lhs": arg_names.lhs, "rhs": arg_names.rhs, "result": "preferred_element_type"}[name]
        dtype = {"lhs": lhs, "rhs": rhs, "result": out}[name]
        operands = f"with {arg_names.lhs} of {lhs} and {arg_names.rhs} of {rhs}"
        hint = checks.QUANTIZED_TENSOR_HINT if {lhs, rhs} & set(QUANTIZED) else ""
        raise TypeError(f"{arg_name}: dtype is {dtype}, must be {format_dtypes(allowed)} {operands}{hint}")


def check_quantized_dtypes(arg_names: ArgNames, lhs: Any, rhs: Any) -> None:
    if lhs == rhs == jnp.float8_e5m2:
        raise TypeError(
            f"{arg_names.lhs} and {arg_names.rhs} are both of float8_e5m2: one of them must have another dtype"
        )


def check_layout(name: str, layout: str) -> None:
    if not isinstance(layout, str) or layout not in (STRIDED, PACKED):
        raise ValueError(f'{name} is {layout!r}, must be "STRIDED" or "PACKED"')


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=("data", "first_dims", "last_dims", "quant_params"),
    meta_fields=("name", "axes", "sizes_name", "layout", "has_group_axis", "columns"),
)
@dataclasses.dataclass(frozen=True)
class Operand:
    """lhs or rhs of a product, with checked fields."""

    name: str
    data: jax.Array
    axes: tuple[int, ...]  # contracted axes of `shape`, adjacent and sorted. All ragged: axis of one group's matrix.
    first_dims: jax.Array | None = None
    last_dims: jax.Array | None = None
    sizes_name: str | None = "group_sizes"  # name of the dims arrays; None: names such as lhs.first_dims
    layout: str = STRIDED
    has_group_axis: bool = False
    quant_params: checks.QuantParams | None = None
    columns: int | None = None  # number of columns of PackedWeights. Their data is [G,T,K,B].

    @classmethod
    def parse(cls, name: str, sizes_name: str | None, x: Any, axes: Sequence[int]) -> "Operand":
        tensor = x if isinstance(x, GroupedTensor) else GroupedTensor(x)
        data, quant_params, columns, packed_layout = checks.split_weights(name, tensor.data)
        check_layout(f"{name}.layout", tensor.layout)
        first_dims, last_dims = (
            None if x is None else checks.as_group_sizes(x, sizes_name or f"{name}.{field}")
            for field, x in (("first_dims", tensor.first_dims), ("last_dims", tensor.last_dims))
        )
        both = first_dims is not None and last_dims is not None
        if both and (data.ndim != 1 or tensor.layout != PACKED):
            raise ValueError(
                f"{name}: with first_dims and last_dims data must be 1-D with layout PACKED, got shape {data.shape} "
                f"with {tensor.layout}"
            )
        contracted = _normalize_axes(name, axes, 2 if both else data.ndim if columns is None else 3)
        if both and len(contracted) == 2:
            raise ValueError(f"{name}: contracting_dims {contracted} must be one axis of each group's own matrix")
        layout = tensor.layout if columns is None else packed_layout
        operand = cls(name, data, contracted, first_dims, last_dims, sizes_name, layout, quant_params=quant_params)
        return dataclasses.replace(operand, columns=columns).check_column_blocks()

    def check_column_blocks(self) -> "Operand":
        """Raises ValueError for PackedWeights that are ragged, or not contracted over K of [G,K,N]."""
        if self.columns is not None and (self.axes != (1,) or self.dims):
            raise ValueError(
                f"{self.name}: PackedWeights are rhs [G,K,N] of ragged M, contracted over axis 1, whatever was packed; "
                "unprepack them for other products"
            )
        return self

    @functools.cached_property
    def shape(self) -> tuple[int, ...]:
        if self.columns is None:
            return self.data.shape
        return (self.data.shape[0], self.data.shape[2], self.columns)

    @functools.cached_property
    def rank(self) -> int:
        """Returns the number of axes. If groups divide both axes, this is 2, although data is 1-D."""
        return 2 if len(self.dims) == 2 else len(self.shape)

    @functools.cached_property
    def dims(self) -> dict[str, jax.Array]:
        named = {"first_dims": self.first_dims, "last_dims": self.last_dims}
        return {self.sizes_name or f"{self.name}.{x}": sizes for x, sizes in named.items() if sizes is not None}

    @functools.cached_property
    def contracts_first(self) -> bool:
        """Returns True for a matrix [contracted, free], False for [free, contracted]."""
        # A matrix without a free axis is [contracted,1] if it has first_dims, else [1,contracted].
        if self.rank == len(self.axes):
            return self.first_dims is not None
        return self.axes[0] == self.has_group_axis

    @functools.cached_property
    def ragged_axis(self) -> str | None:
        """Returns the axis that groups divide: "free", "contracted", "both" or None."""
        if len(self.dims) != 1:
            return "both" if self.dims else None
        return "contracted" if (self.first_dims is not None) == self.contracts_first else "free"

    def mark_group_axis(self) -> "Operand":
        if self.axes[0] == 0:
            raise ValueError(
                f"{self.name}: axis 0 of shape {self.shape} is the group axis, so contracting_dims must not contain 0, "
                f"got {self.axes}"
            )
        return dataclasses.replace(self, has_group_axis=True)

    def check_contracted_axes(self) -> None:
        if self.axes[0] != self.has_group_axis and self.axes[-1] != self.rank - 1:
            raise ValueError(
                f"{self.name}: contracting_dims {self.axes} are in the middle of shape {self.shape}, must be the "
                f"first or the last axes{' after the group axis' if self.has_group_axis else ''}"
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
        """Returns the shape of the operand in canonical form: [1,G,rows,cols] with a group axis, else [1,1,rows,cols].

        The shape is [1,1,length] if both axes are ragged, and [1,G,T,K,B] for PackedWeights.
        """
        if self.ragged_axis == "both":
            return (1, 1, *self.data.shape)
        if self.columns is not None:
            return (1, *self.data.shape)
        matrix = [math.prod(self.free_shape), math.prod(self.contracted_shape)]
        if self.contracts_first:
            matrix.reverse()
        return (1, self.data.shape[0] if self.has_group_axis else 1, *matrix)


def _normalize_axes(name: str, axes: Sequence[int], rank: int) -> tuple[int, ...]:
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
    """Checks that contracted extents are equal. For different numbers of axes, only their products must be equal."""
    a, b = lhs.contracted_shape, rhs.contracted_shape
    if a != b if len(a) == len(b) else math.prod(a) != math.prod(b):
        message = f"{lhs.name} contracts {a} of shape {lhs.shape}, but {rhs.name} contracts {b} of shape {rhs.shape}"
        raise ValueError(f"{message}{contraction_hint(lhs, rhs)}")


def contraction_hint(lhs: Operand, rhs: Operand) -> str:
    a, b = math.prod(lhs.contracted_shape), math.prod(rhs.contracted_shape)
    return checks.packed_int4_hint(lhs.data.dtype, a, b) or checks.packed_int4_hint(rhs.data.dtype, b, a)


def make_operands(
    lhs: Any, rhs: Any, group_sizes: Any, axes: tuple[int, int], rhs_rank: int = 3, error: type[Exception] = ValueError
) -> tuple[Operand, Operand]:
    """Converts lhs [rows,cols] and rhs to Operands. axes: (contracted axis of lhs, contracted axis of rhs).

    If rhs_rank is 3, groups divide the rows of lhs. If rhs_rank is 2, groups divide the contracted axes.
    """
    (lhs, lhs_params), (rhs, rhs_params, columns, layout) = (
        checks.split_quantized("lhs", lhs),
        checks.split_weights("rhs", rhs),
    )
    group_sizes = checks.as_integer_array("group_sizes", group_sizes)
    left = Operand("lhs", lhs, axes[:1], quant_params=lhs_params)
    right = Operand("rhs", rhs, axes[1:], layout=layout, quant_params=rhs_params, columns=columns)
    for name, shape, rank in (
        ("lhs", left.shape, 2),
        ("rhs", right.shape, rhs_rank),
        ("group_sizes", group_sizes.shape, 1),
    ):
        if len(shape) != rank:
            raise error(f"{name}: shape is {shape}, must have {rank} {'axis' if rank == 1 else 'axes'}")
    right = right.check_column_blocks()
    if left.shape[axes[0]] != right.shape[axes[1]]:
        raise error(
            f"axis {axes[0]} of lhs, shape {left.shape}, and axis {axes[1]} of rhs, shape {right.shape}, are "
            f"contracted, but differ: {left.shape[axes[0]]} and {right.shape[axes[1]]}{contraction_hint(left, right)}"
        )
    if rhs_rank == 3:
        return dataclasses.replace(left, first_dims=group_sizes), right
    ragged = [{"last_dims" if axis else "first_dims": group_sizes} for axis in axes]
    return dataclasses.replace(left, **ragged[0]), dataclasses.replace(right, **ragged[1])


def parse_operands(arg_names: ArgNames, lhs: Any, rhs: Any, contracting_dims: Any) -> tuple[Operand, Operand]:
    try:
        axes = tuple(map(tuple, contracting_dims))
    except TypeError:
        axes = ()
    if len(axes) != 2:
        raise ValueError(f"contracting_dims must be (lhs_axes, rhs_axes), as in ((1,), (1,)), got {contracting_dims}")
    return (
        Operand.parse(arg_names.lhs, arg_names.sizes, lhs, axes[0]),
        Operand.parse(arg_names.rhs, arg_names.sizes, rhs, axes[1]),
    )
