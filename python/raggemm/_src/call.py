"""The static half of the primitive: the product that one custom call computes, and how its operands are stored.

The product is out_g = op(lhs_g) x op(rhs_g) for each group g. An operand holds its groups' matrices in one canonical
array, with P independent problems in front, and R replicas or G groups next:

    first ragged   [P,R,rows,x]    row slices: group g has dims[g] rows
    last ragged    [P,R,x,cols]    column slices, or with layout PACKED dense blocks back to back in the same memory
    neither        [P,G,x,y]       a matrix for each group
    shared         [P,1,x,y]       one matrix for all groups
    column blocks  [P,G,T,K,B]     rhs of ragged M: T blocks of B columns, with zeros behind column N
    both           [P,1,length]    1-D, packed

Every dims array is [P,R,G], and OPTIONAL lists what else an operand may be. Replicas share their problem's matrices for
each group; ragged K sums over them. Ragged N and all ragged have R = 1.
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
    """Part of alpha * lhs x rhs + beta * c + bias, for each processed group, that an optional operand belongs to."""

    ALPHA = enum.auto()
    QUANT_PARAM = enum.auto()  # scale or zero point of lhs or rhs
    ADDEND = enum.auto()
    GATE = enum.auto()  # gate of the activation of the result
    GROUP_OFFSET = enum.auto()
    ROW_INDEX = enum.auto()  # index of rows of lhs


class OptionalOperand(NamedTuple):
    """An operand that a call may have. Its axes are named as in the partitioning: behind the problems those that may
    be common to all replicas, 1 or R of them; () for what is stored as out. A factor of lhs or rhs may also be blocks
    of it, [P, as its second axis or 1, rows, columns]."""

    name: str
    role: OperandRole
    axes: tuple[str, ...] = ()

    @property
    def is_per_group(self) -> bool:
        return "group" in self.axes

    def is_per_block(self, x: Any) -> bool:
        return self.role is OperandRole.QUANT_PARAM and len(x.shape) == 4

    @property
    def side(self) -> str:
        """Returns the side that a factor belongs to, "lhs" or "rhs"."""
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
    """Makes an operand from a row of the library's table, which leaves the axes of scales and zero points open."""
    if name not in _ROLES:
        return OptionalOperand(name, OperandRole.QUANT_PARAM, ("problem", "replica", "group"))
    is_as_out = {"row", "column"} <= set(axes)
    return OptionalOperand(name, _ROLES[name], () if is_as_out else tuple(_AXES[axis] for axis in axes))


# In the order in which the custom call gets them. What is ADDED, and alpha, have a tangent rule of their name.
OPTIONAL = tuple(_make_operand(row["name"], row["axes"]) for row in tables()["operands"])


class Mode(enum.Enum):
    """Mode of a call by the axis that the groups divide (include/raggemm/problem.h draws the table)."""

    RAGGED_M = enum.auto()
    RAGGED_K = enum.auto()
    RAGGED_N = enum.auto()
    UNIFORM = enum.auto()
    ALL_RAGGED = enum.auto()


class Storage(NamedTuple):
    """How an operand is stored. first and last: which of the call's dims arrays holds the sizes along that axis."""

    first: int | None = None
    last: int | None = None
    trans: bool = False  # op() is the transpose of each group's matrix
    layout: str = STRIDED  # layout of a ragged last axis; or COLUMN_BLOCKS
    shared: bool = False
    columns: int = 0  # N of column blocks

    @property
    def per_group(self) -> bool:
        """True if axis 1 counts groups."""
        return self.first is None and self.last is None and not self.shared

    def transposed(self) -> "Storage":
        return self._replace(trans=not self.trans)


@dataclasses.dataclass(frozen=True, repr=False)
class Call:
    """The one static parameter of the primitive."""

    lhs: Storage
    rhs: Storage
    out: Storage  # never trans
    dtype: np.dtype  # dtype of out
    precision: str = ""  # as the attribute; "": that of f32
    activation: str = ""  # as the attribute; "": none
    out_extent: int | None = None  # extent that no input tells: groups of a ragged-K out, length of an all-ragged one
    overwrites_c: bool = False  # a constant beta of 0
    # Names of arguments in errors of the custom call, in the words of the front end.
    dims_names: tuple[str, ...] = ()  # for each dims array; (): the custom call's own
    c_name: str = "c"
    row_index_name: str = "row_index"
    lhs_name: str = "lhs"  # beside it
    operands: tuple[str, ...] = ()  # the optional operands that are there; bind() tells

    @property
    def storages(self) -> dict[str, Storage]:
        return {"lhs": self.lhs, "rhs": self.rhs, "out": self.out}

    @property
    def ragged_slots(self) -> dict[str, int]:
        """The custom call's dims arrays that are set, and which of the call's each is."""
        named = {f"{name}_{axis}": getattr(x, axis) for name, x in self.storages.items() for axis in ("first", "last")}
        return {name: index for name, index in named.items() if index is not None}

    def attributes(self) -> dict[str, str | bool]:
        """The custom call's attributes: those that differ from the defaults in proto/config.proto."""
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
        """The custom call's attribute `names`: slot=word for each operand that the front end calls otherwise."""
        words = {slot: self.dims_names[index] for slot, index in self.ragged_slots.items()} if self.dims_names else {}
        optional = {"c": self.c_name, "row_index": self.row_index_name}
        words |= {slot: word for slot, word in optional.items() if slot in self.operands}
        if "row_index" in self.operands:
            words["lhs"] = self.lhs_name
        return ",".join(f"{slot}={word}" for slot, word in words.items() if word != slot)

    def __repr__(self) -> str:
        """Shows a call in jaxprs: the mode, then the words that HLO has for the same call."""
        words = [f"{name}={value}" for name, value in self.attributes().items()]
        if self.operands:
            words.append("operands=" + ",".join(self.operands))
        if self.overwrites_c:
            words.append("beta=0")
        return f"{self.mode.name}({' '.join(words)} -> {np.dtype(self.dtype)})"

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
        """Canonical shape of out, from anything with the canonical shapes of the arguments."""
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
        """The primitive's flat arguments, by name: lhs, rhs, dims arrays and what `operands` says."""
        lhs, rhs, *others = args
        dims = others[: len(others) - len(self.operands)]
        return Arguments(lhs, rhs, tuple(dims), dict(zip(self.operands, others[len(dims) :], strict=True)))


class Arguments(NamedTuple):
    """The arguments of a Call: arrays, or one of anything else for each (avals, tangents, batch axes)."""

    lhs: Any
    rhs: Any
    dims: tuple[Any, ...]
    optional: dict[str, Any]  # by name

    def sizes(self, index: int | None) -> Any:
        """The dims array that a storage refers to."""
        assert index is not None
        return self.dims[index]

    @property
    def given(self) -> Iterator[OptionalOperand]:
        """The optional operands that are there, in the order of the table."""
        return (operand for operand in OPTIONAL if operand.name in self.optional)

    def flatten(self) -> list[Any]:
        return [self.lhs, self.rhs, *self.dims, *(self.optional[operand.name] for operand in self.given)]

    def select(self, *roles: OperandRole) -> "Arguments":
        """Without the optional operands of other terms."""
        return self._replace(optional={x.name: self.optional[x.name] for x in self.given if x.role in roles})

    def map(self, function: Callable[[Any], Any]) -> "Arguments":
        optional = {name: function(x) for name, x in self.optional.items()}
        return Arguments(function(self.lhs), function(self.rhs), tuple(map(function, self.dims)), optional)


def custom_call_shape(shape: tuple[int, ...], storage: Storage) -> tuple[int, ...]:
    """Returns the shape that the custom call takes for an operand of this canonical shape.

    The elements and their order are the same. It is 1-D, 3-D with a group axis, or 2-D, where P and R stack matrices.
    """
    p, r, *matrix = shape
    if len(matrix) == 1:
        return (p * r * matrix[0],)
    if storage.per_group:
        return (p * r, *matrix)
    return (p * r * matrix[0], matrix[1])


def to_column_blocks(x: jax.Array, width: int) -> jax.Array:
    *outer, k, n = x.shape
    count = -(-n // width)
    padded = jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, count * width - n)])
    return jnp.moveaxis(padded.reshape(*outer, k, count, width), -2, -3)


def from_column_blocks(x: jax.Array, columns: int) -> jax.Array:
    *outer, count, k, width = x.shape
    return jnp.moveaxis(x, -3, -2).reshape(*outer, k, count * width)[..., :columns]
