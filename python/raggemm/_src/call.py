"""Static parameters of the primitive: the product that one custom call computes, and the storage of its operands.

The product is out_g = op(lhs_g) x op(rhs_g) for each group g. One array of canonical shape holds an operand's matrices
of all groups. Its first axis counts P independent problems (a batch), the second R replicas or G groups:

    first ragged   [P,R,rows,x]    row slices: group g has dims[g] rows
    last ragged    [P,R,x,cols]    column slices; with layout PACKED consecutive dense blocks
    neither        [P,G,x,y]       one matrix per group
    shared         [P,1,x,y]       one matrix for all groups
    column blocks  [P,G,T,K,B]     rhs of ragged M: T blocks of B columns, zero from column N on
    both           [P,1,length]    1-D, packed

Every dims array is [P,R,G]. OPTIONAL lists the optional operands. Replicas of a problem share the per-group matrices;
ragged K sums over replicas. Ragged N and all ragged have R = 1.
"""

import dataclasses
import enum
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from raggemm._src.library import tables

STRIDED, PACKED, COLUMN_BLOCKS = "STRIDED", "PACKED", "COLUMN_BLOCKS"


class OperandRole(enum.Enum):
    """Role of an optional operand in alpha * lhs x rhs + beta * c + bias."""

    ALPHA = enum.auto()
    QUANT_PARAM = enum.auto()  # scale or zero point of lhs or rhs
    ADDEND = enum.auto()  # c, beta or bias
    GATE = enum.auto()
    GROUP_OFFSET = enum.auto()
    ROW_INDEX = enum.auto()


class OptionalOperand(NamedTuple):
    """An optional operand of a call.

    A scale or zero point has one value per group, [P,1|R,G], or one per block of its matrix, [P, second axis of the
    matrix or 1, rows of blocks, columns of blocks].
    """

    name: str
    role: OperandRole
    axes: tuple[str, ...] = ()  # names as in sharding.py; (): stored like out. A replica axis has extent 1 or R

    @property
    def is_per_group(self) -> bool:
        return "group" in self.axes

    def is_per_block(self, x: Any) -> bool:
        return self.role is OperandRole.QUANT_PARAM and len(x.shape) == 4

    @property
    def side(self) -> str:
        """Returns the matrix of a scale or zero point, "lhs" or "rhs"."""
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
    """Returns an operand from the library's table, which has no axes for scales and zero points."""
    if name not in _ROLES:
        return OptionalOperand(name, OperandRole.QUANT_PARAM, ("problem", "replica", "group"))
    is_as_out = {"row", "column"} <= set(axes)
    return OptionalOperand(name, _ROLES[name], () if is_as_out else tuple(_AXES[axis] for axis in axes))


# Optional operands, in the order of the custom call. ad.py has a tangent rule for alpha and each addend.
OPTIONAL = tuple(_make_operand(row["name"], row["axes"]) for row in tables()["operands"])


class Mode(enum.Enum):
    """The axis of a call that groups divide. See the table in include/raggemm/problem.h."""

    RAGGED_M = enum.auto()
    RAGGED_K = enum.auto()
    RAGGED_N = enum.auto()
    UNIFORM = enum.auto()
    ALL_RAGGED = enum.auto()


class Storage(NamedTuple):
    """Storage of an operand."""

    first: int | None = None  # index of the dims array of the first axis
    last: int | None = None  # index of the dims array of the last axis
    trans: bool = False  # op() transposes each group's matrix
    layout: str = STRIDED  # layout of a ragged last axis, or COLUMN_BLOCKS
    shared: bool = False  # one matrix for all groups
    columns: int = 0  # N, for column blocks

    @property
    def per_group(self) -> bool:
        """Returns True if axis 1 counts groups."""
        return self.first is None and self.last is None and not self.shared

    def transposed(self) -> "Storage":
        return self._replace(trans=not self.trans)


@dataclasses.dataclass(frozen=True, repr=False)
class Call:
    """The static parameter of the primitive."""

    lhs: Storage
    rhs: Storage
    out: Storage  # never trans
    dtype: np.dtype  # dtype of out
    precision: str = ""  # value of the attribute; "": default
    activation: str = ""  # value of the attribute; "": none
    out_extent: int | None = None  # groups of a ragged-K out, or length of an all-ragged out
    overwrites_c: bool = False  # True if beta is the constant 0
    # Argument names for the custom call's error messages.
    dims_names: tuple[str, ...] = ()  # one per dims array; (): default names
    c_name: str = "c"
    row_index_name: str = "row_index"
    lhs_name: str = "lhs"  # used with row_index only
    operands: tuple[str, ...] = ()  # given optional operands; bind() sets it

    @property
    def storages(self) -> dict[str, Storage]:
        return {"lhs": self.lhs, "rhs": self.rhs, "out": self.out}

    @property
    def ragged_slots(self) -> dict[str, int]:
        """Returns the index in Arguments.dims of each given dims array."""
        named = {f"{name}_{axis}": getattr(x, axis) for name, x in self.storages.items() for axis in ("first", "last")}
        return {name: index for name, index in named.items() if index is not None}

    def attributes(self) -> dict[str, str | bool]:
        """Returns the attributes that differ from the defaults in proto/config.proto."""
        attributes: dict[str, str | bool] = {}
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
            attributes["activation"] = self.activation
        return attributes

    def names_attribute(self) -> str:
        """Returns the attribute `names`: slot=name for each operand with another name than its slot."""
        names = {slot: self.dims_names[index] for slot, index in self.ragged_slots.items()} if self.dims_names else {}
        optional = {"c": self.c_name, "row_index": self.row_index_name}
        names |= {slot: name for slot, name in optional.items() if slot in self.operands}
        if "row_index" in self.operands:
            names["lhs"] = self.lhs_name
        return ",".join(f"{slot}={name}" for slot, name in names.items() if name != slot)

    def __repr__(self) -> str:
        """Returns the text of a call in jaxprs: the mode, then the attributes as in HLO."""
        parts = [f"{name}={value}" for name, value in self.attributes().items()]
        if self.operands:
            parts.append("operands=" + ",".join(self.operands))
        if self.overwrites_c:
            parts.append("beta=0")
        return f"{self.mode.name}({' '.join(parts)} -> {np.dtype(self.dtype)})"

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
        """Returns the canonical shape of out. args: arrays or avals of canonical shape."""
        mode, lhs, rhs = self.mode, args.lhs, args.rhs
        if mode is Mode.ALL_RAGGED:
            return (lhs.shape[0], 1, self._extent())
        rows = args.optional.get("row_index")
        m = lhs.shape[3 if self.lhs.trans else 2] if rows is None else rows.shape[2]
        n = self.rhs.columns if self.rhs.layout == COLUMN_BLOCKS else rhs.shape[2 if self.rhs.trans else 3]
        if mode is Mode.RAGGED_K:
            return (lhs.shape[0], self._extent(), m, n)
        return (lhs.shape[0], (rhs if mode is Mode.RAGGED_N else lhs).shape[1], m, n)

    def unflatten(self, args: Sequence[Any]) -> "Arguments":
        """Returns the primitive's flat arguments by name: lhs, rhs, dims arrays, then the given operands."""
        lhs, rhs, *others = args
        dims = others[: len(others) - len(self.operands)]
        return Arguments(lhs, rhs, tuple(dims), dict(zip(self.operands, others[len(dims) :], strict=True)))


class Arguments(NamedTuple):
    """The arguments of a Call: arrays, or one aval, tangent or batch axis for each."""

    lhs: Any
    rhs: Any
    dims: tuple[Any, ...]
    optional: dict[str, Any]  # by name

    def sizes(self, index: int | None) -> Any:
        """Returns the dims array with the index that a Storage holds."""
        assert index is not None
        return self.dims[index]

    @property
    def given(self) -> Iterator[OptionalOperand]:
        """Returns the given optional operands, in the order of OPTIONAL."""
        return (operand for operand in OPTIONAL if operand.name in self.optional)

    def flatten(self) -> list[Any]:
        return [self.lhs, self.rhs, *self.dims, *(self.optional[operand.name] for operand in self.given)]

    def select(self, *roles: OperandRole) -> "Arguments":
        """Returns the arguments without optional operands of other roles."""
        return self._replace(optional={x.name: self.optional[x.name] for x in self.given if x.role in roles})

    def map(self, function: Callable[[Any], Any]) -> "Arguments":
        optional = {name: function(x) for name, x in self.optional.items()}
        return Arguments(function(self.lhs), function(self.rhs), tuple(map(function, self.dims)), optional)


def custom_call_shape(shape: tuple[int, ...], storage: Storage) -> tuple[int, ...]:
    """Returns the shape of a custom call's operand, which has the same elements in order.

    It is 1-D, 3-D with a group axis, or 2-D with the matrices of all P and R stacked.
    """
    p, r, *matrix = shape
    if len(matrix) == 1:
        return (p * r * matrix[0],)
    if storage.per_group:
        return (p * r, *matrix)
    return (p * r * matrix[0], matrix[1])


def to_column_blocks(x: jax.Array, width: int) -> jax.Array:
    """Returns [...,T,K,width], the column blocks of x [...,K,N], padded with zeros."""
    *outer, k, n = x.shape
    count = -(-n // width)
    padded = jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, count * width - n)])
    return jnp.moveaxis(padded.reshape(*outer, k, count, width), -2, -3)


def from_column_blocks(x: jax.Array, columns: int) -> jax.Array:
    """Returns [...,K,columns], the matrices that to_column_blocks was given."""
    *outer, count, k, width = x.shape
    return jnp.moveaxis(x, -3, -2).reshape(*outer, k, count * width)[..., :columns]
