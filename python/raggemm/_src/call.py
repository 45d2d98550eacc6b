"""The static parameters of the primitive grouped_gemm: the product of one custom call, and how operands are stored.

The product is out_g = op(lhs_g) x op(rhs_g) for each group g. op transposes a matrix or does nothing. Each operand is
one array of a canonical shape. Axis 0 counts P independent problems (a batch). Axis 1 counts R replicas or G groups.
"first" and "last" are the axes of a matrix:

    first ragged   [P,R,rows,x]    groups are slices of the rows: group g has dims[g] rows
    last ragged    [P,R,x,cols]    groups are slices of the columns; with layout PACKED consecutive dense blocks
    not ragged     [P,G,x,y]       one matrix per group
    shared         [P,1,x,y]       one matrix for all groups
    column blocks  [P,G,T,K,B]     rhs of ragged M: T blocks of B columns, zero from column N on
    word blocks    [P,G,T,K,32]    column blocks with another order of elements, see to_word_order
    both ragged    [P,1,length]    consecutive dense matrices

A dims array has the sizes of the groups, [P,R,G]. Replicas of a problem share the per-group matrices; ragged K sums
over replicas. Ragged N and all ragged have R = 1.
"""

import dataclasses
import enum
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from raggemm._src.activations import Activation, activation_attributes
from raggemm._src.dtypes import elements_per_byte
from raggemm._src.library import tables

STRIDED, PACKED, COLUMN_BLOCKS, WORD_BLOCKS = "STRIDED", "PACKED", "COLUMN_BLOCKS", "WORD_BLOCKS"
BLOCKED = (COLUMN_BLOCKS, WORD_BLOCKS)  # layouts of shape [...,T,K,B]
WORD_ROWS, WORD_COLUMNS = 4, 32  # extents of a tile of WORD_BLOCKS


class OperandRole(enum.Enum):
    """Roles of the optional operands of a call: alpha * lhs x rhs + beta * c + bias, then an activation, if any."""

    ALPHA = enum.auto()
    QUANT_PARAM = enum.auto()  # scale or zero point of lhs or rhs
    ADDEND = enum.auto()  # c, beta or bias
    GATE = enum.auto()
    GROUP_OFFSET = enum.auto()
    ROW_INDEX = enum.auto()


class OptionalOperand(NamedTuple):
    """An optional operand of a call, such as c or the scale of rhs.

    A scale or zero point has one value per group, [P,1|R,G], or one per block, [P,s,rows of blocks,columns of blocks].
    s is 1, or the second extent of the operand: R or G.
    """

    name: str
    role: OperandRole
    axes: tuple[str, ...] = ()  # Axis names, see sharding.py. Empty: the axes of out. Axis "replica" has extent 1 or R.

    @property
    def is_per_group(self) -> bool:
        return "group" in self.axes

    def is_per_block(self, x: Any) -> bool:
        return self.role is OperandRole.QUANT_PARAM and len(x.shape) == 4

    @property
    def side(self) -> str:
        return self.name[:3]


_ROLES = {
    "c": OperandRole.ADDEND,
    "bias": OperandRole.ADDEND,
    "alpha": OperandRole.ALPHA,
    "beta": OperandRole.ADDEND,
    "group_offset": OperandRole.GROUP_OFFSET,
    "gate": OperandRole.GATE,
    "row_index": OperandRole.ROW_INDEX,
}
_AXES = {"problem": "problem", "replica": "replica", "group": "group", "row": "m", "column": "n"}


def _make_operand(name: str, axes: Sequence[str]) -> OptionalOperand:
    """Converts a row of the library's table of operands.

    `axes` is empty for scales and zero points.
    """
    if name not in _ROLES:
        return OptionalOperand(name, OperandRole.QUANT_PARAM, ("problem", "replica", "group"))
    is_as_out = {"row", "column"} <= set(axes)
    return OptionalOperand(name, _ROLES[name], () if is_as_out else tuple(_AXES[axis] for axis in axes))


# All optional operands, in the order of the custom call.
OPTIONAL = tuple(_make_operand(row["name"], row["axes"]) for row in tables()["operands"])


class Mode(enum.Enum):
    """The mode of a call: which axis the groups divide. See the table in include/raggemm/problem.h."""

    RAGGED_M = enum.auto()
    RAGGED_K = enum.auto()
    RAGGED_N = enum.auto()
    UNIFORM = enum.auto()
    ALL_RAGGED = enum.auto()


class Storage(NamedTuple):
    """The storage of lhs, rhs or out in an array of canonical shape. See the docstring of this module."""

    first: int | None = None  # index in Arguments.dims of the sizes along the first axis; None: not ragged
    last: int | None = None  # index in Arguments.dims of the sizes along the last axis; None: not ragged
    trans: bool = False  # True: the product uses the transpose of each group's matrix
    layout: str = STRIDED  # STRIDED or PACKED along a ragged last axis, or a layout in BLOCKED
    shared: bool = False  # True: one matrix for all groups
    columns: int = 0  # number of columns, for layouts in BLOCKED only

    @property
    def per_group(self) -> bool:
        return self.first is None and self.last is None and not self.shared

    def transposed(self) -> "Storage":
        return self._replace(trans=not self.trans)


@dataclasses.dataclass(frozen=True, repr=False)
class Call:
    """The static parameter of the primitive grouped_gemm."""

    lhs: Storage
    rhs: Storage
    out: Storage  # out.trans is always False
    dtype: np.dtype
    precision: str = ""  # attribute of the custom call; "": default arithmetic
    activation: Activation | None = None
    out_extent: int | None = None  # ragged K: number of groups in out; all ragged: length of out
    overwrites_c: bool = False  # True if beta is the constant 0
    lhs_block: int | None = None  # attribute of the custom call; 0: whole rows; None: lhs is not quantized in the call
    # Argument names for the custom call's error messages.
    dims_names: tuple[str, ...] = ()  # names of the dims arrays; (): default names
    c_name: str = "c"
    row_index_name: str = "row_index"
    lhs_name: str = "lhs"  # name of lhs, used only with row_index
    operands: tuple[str, ...] = ()  # names of the given optional operands; bind() sets this field

    @property
    def storages(self) -> dict[str, Storage]:
        return {"lhs": self.lhs, "rhs": self.rhs, "out": self.out}

    @property
    def ragged_slots(self) -> dict[str, int]:
        named = {f"{name}_{axis}": getattr(x, axis) for name, x in self.storages.items() for axis in ("first", "last")}
        return {name: index for name, index in named.items() if index is not None}

    def attributes(self) -> dict[str, str | bool | int | np.float32]:
        attributes: dict[str, str | bool | int | np.float32] = {}
        for name, storage in self.storages.items():
            if storage.trans:
                attributes[f"{name}_is_trans"] = True
            if storage.layout != STRIDED:
                attributes[f"{name}_layout"] = storage.layout
        if self.ragged_slots:
            attributes["ragged"] = ",".join(self.ragged_slots)
        if self.precision:
            attributes["precision"] = self.precision
        if self.activation:
            attributes |= activation_attributes(self.activation)
        if self.lhs_block is not None:
            attributes["lhs_block"] = self.lhs_block
        return attributes

    def names_attribute(self) -> str:
        """Returns the custom call's attribute `names`, such as "lhs_first=group_sizes,out_first=group_sizes".

        The attribute renames operands in error messages. It renames lhs only with row_index.
        """
        names = {slot: self.dims_names[index] for slot, index in self.ragged_slots.items()} if self.dims_names else {}
        optional = {"c": self.c_name, "row_index": self.row_index_name}
        names |= {slot: name for slot, name in optional.items() if slot in self.operands}
        if "row_index" in self.operands:
            names["lhs"] = self.lhs_name
        return ",".join(f"{slot}={name}" for slot, name in names.items() if name != slot)

    def __repr__(self) -> str:
        parts = [f"{name}={value}" for name, value in self.attributes().items()]
        if self.operands:
            parts.append("operands=" + ",".join(self.operands))
        if self.overwrites_c:
            parts.append("beta=0")
        return f"{self.mode.name}({' '.join(parts)} -> {np.dtype(self.dtype)})"

    def without_rounded_rows(self) -> "Call":
        """Returns the call whose lhs is not quantized. Derivatives are those of this call."""
        return self if self.lhs_block is None else dataclasses.replace(self, lhs_block=None)

    @property
    def mode(self) -> Mode:
        if self.out.first is not None:
            return Mode.RAGGED_M if self.out.last is None else Mode.ALL_RAGGED
        if self.out.last is not None:
            return Mode.RAGGED_N
        if self.lhs.first is not None or self.lhs.last is not None:
            return Mode.RAGGED_K
        return Mode.UNIFORM

    def _extent(self) -> int:
        assert self.out_extent is not None, self.mode
        return self.out_extent

    def out_shape(self, args: "Arguments") -> tuple[int, ...]:
        mode, lhs, rhs = self.mode, args.lhs, args.rhs
        if mode is Mode.ALL_RAGGED:
            return (lhs.shape[0], 1, self._extent())
        rows = args.optional.get("row_index")
        m = lhs.shape[3 if self.lhs.trans else 2] if rows is None else rows.shape[2]
        n = self.rhs.columns if self.rhs.layout in BLOCKED else rhs.shape[2 if self.rhs.trans else 3]
        if mode is Mode.RAGGED_K:
            return (lhs.shape[0], self._extent(), m, n)
        return (lhs.shape[0], (rhs if mode is Mode.RAGGED_N else lhs).shape[1], m, n)

    def unflatten(self, args: Sequence[Any]) -> "Arguments":
        lhs, rhs, *others = args
        dims = others[: len(others) - len(self.operands)]
        return Arguments(lhs, rhs, tuple(dims), dict(zip(self.operands, others[len(dims) :], strict=True)))


class Arguments(NamedTuple):
    """The arrays of a Call. Rules of JAX also use this class for an aval, a tangent or a batch axis of each array."""

    lhs: Any
    rhs: Any
    dims: tuple[Any, ...]
    optional: dict[str, Any]

    def sizes(self, index: int | None) -> Any:
        assert index is not None
        return self.dims[index]

    @property
    def given(self) -> Iterator[OptionalOperand]:
        return (operand for operand in OPTIONAL if operand.name in self.optional)

    def flatten(self) -> list[Any]:
        return [self.lhs, self.rhs, *self.dims, *(self.optional[operand.name] for operand in self.given)]

    def select(self, *roles: OperandRole) -> "Arguments":
        return self._replace(optional={x.name: self.optional[x.name] for x in self.given if x.role in roles})

    def map(self, function: Callable[[Any], Any]) -> "Arguments":
        optional = {name: function(x) for name, x in self.optional.items()}
        return Arguments(function(self.lhs), function(self.rhs), tuple(map(function, self.dims)), optional)


def custom_call_shape(shape: tuple[int, ...], storage: Storage) -> tuple[int, ...]:
    """Converts a canonical shape to the shape that the custom call takes.

    An operand with two ragged axes becomes 1-D. In an operand with one matrix per group, problems and groups become one
    axis. In all other operands, the matrices of all problems and replicas are stacked to a 2-D array.
    """
    p, r, *matrix = shape
    if len(matrix) == 1:
        return (p * r * matrix[0],)
    if storage.per_group:
        return (p * r, *matrix)
    return (p * r * matrix[0], matrix[1])


def to_column_blocks(x: jax.Array, width: int) -> jax.Array:
    """Cuts matrices x [...,K,N] into T blocks of `width` columns: [...,T,K,width]. Columns from N on are zero."""
    *outer, k, n = x.shape
    count = -(-n // width)
    padded = jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, count * width - n)])
    return jnp.moveaxis(padded.reshape(*outer, k, count, width), -2, -3)


def from_column_blocks(x: jax.Array, columns: int) -> jax.Array:
    *outer, count, k, width = x.shape
    return jnp.moveaxis(x, -3, -2).reshape(*outer, k, count * width)[..., :columns]


def to_word_order(x: jax.Array) -> jax.Array:
    """Converts column blocks [...,K,32] of codes to the order of WORD_BLOCKS. The shape stays the same.

    Reorders the elements of each tile of 4 rows and 32 columns. The four elements of a column become adjacent, as
    instructions such as VPDPBUSD multiply them. A byte of 4-bit elements holds columns j and j + 16.
    """
    *outer, k, width = x.shape
    halves = elements_per_byte(x.dtype)
    tiles = x.reshape(*outer, k // WORD_ROWS, WORD_ROWS, halves, width // halves)
    return jnp.moveaxis(tiles, -1, -3).reshape(x.shape)


def from_word_order(x: jax.Array) -> jax.Array:
    *outer, k, width = x.shape
    halves = elements_per_byte(x.dtype)
    tiles = x.reshape(*outer, k // WORD_ROWS, width // halves, WORD_ROWS, halves)
    return jnp.moveaxis(tiles, -3, -1).reshape(x.shape)


def to_word_values(values: jax.Array, columns: int) -> jax.Array:
    """Converts scales or zero points [...,D0,N] of WORD_BLOCKS to the order of their column blocks.

    Returns [...,D0,32*T], in the order of [...,T,D0,32]. Values that several columns share do not change. columns: N.
    """
    if values.ndim < 2 or columns == 1 or values.shape[-1] != columns:
        return values
    blocks = to_column_blocks(values, WORD_COLUMNS)
    return blocks.reshape(*values.shape[:-1], blocks.shape[-3] * WORD_COLUMNS)


def from_word_values(values: jax.Array, columns: int) -> jax.Array:
    """Reverses to_word_values. columns: N."""
    count = -(-columns // WORD_COLUMNS)
    if values.ndim < 2 or values.shape[-1] != count * WORD_COLUMNS:
        return values
    *outer, rows, _ = values.shape
    return from_column_blocks(values.reshape(*outer, count, rows, WORD_COLUMNS), columns)


def from_blocks(x: jax.Array, columns: int, layout: str) -> jax.Array:
    """Returns matrices [...,K,N] of a layout in BLOCKED. columns: N."""
    return from_column_blocks(from_word_order(x) if layout == WORD_BLOCKS else x, columns)
