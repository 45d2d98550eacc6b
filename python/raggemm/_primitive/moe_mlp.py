"""The JAX primitives of the experts' MLP, each one custom call: its value, and its gradients.

What derivatives are, and batches that are no one call, is said by sequences of grouped GEMMs that compute the same,
which a call carries: this package imports nothing that could make them. Those are behind jax.checkpoint, so that a
gradient keeps only what came in.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.extend.core import Primitive
from jax.interpreters import ad, mlir
from jax.sharding import PartitionSpec

from raggemm._primitive import library
from raggemm._primitive.call import FLOATS, PARTS_OF_BYTES
from raggemm._primitive.column_blocks import from_blocks, to_blocks
from raggemm._primitive.options import attributes
from raggemm._primitive.primitive import check_platform, runs_compiled

# Takes arguments; gives the value, then the first products where they are kept.
primitive = Primitive("moe_mlp")
# Takes arguments, what was kept, and tangents of some arguments, in which it is linear.
tangent = Primitive("moe_mlp_tangent")
# Takes arguments, what was kept, and the cotangent of the value; gives those of some arguments.
backward = Primitive("moe_mlp_backward")
primitive.multiple_results = backward.multiple_results = True

_REQUIRED = ("x", "row_tokens", "group_sizes", "w_up", "w_down")
_Args = dict[str, Any]


def of_whole_bytes(args: _Args) -> _Args:
    """The same with wider elements in weights, and their zero points, whose rows would end within a byte."""
    wide: _Args = {}
    for word in ("up", "gate", "down"):
        matrix, zero = f"w_{word}", f"{word}_zero"
        count, wider = PARTS_OF_BYTES.get(args[matrix].dtype, (1, None)) if matrix in args else (1, None)
        if count > 1 and args[matrix].shape[-1] % count:
            wide |= {name: args[name].astype(wider) for name in (matrix, zero) if name in args}
    return args | wide


@dataclasses.dataclass(frozen=True, repr=False)
class MlpCall:
    """What all of them do: the static parameter of the primitive."""

    sequence: Callable[["MlpCall", _Args], tuple[jax.Array, ...]]  # of the arguments by name: value, first products
    # Gives from those, a cotangent of the value and names of arguments their cotangents by name.
    cotangents: Callable[["MlpCall", _Args, jax.Array, tuple[str, ...]], _Args]
    activation: str  # as the attribute, as are the next three
    merged: str
    up_is_trans: bool
    down_is_trans: bool
    up_layout: str  # w_gate's, too
    down_layout: str
    dtype: np.dtype  # of the value
    saves_products: bool  # for a gradient
    weight_on: str  # as the attribute: what row_weights multiply
    operands: tuple[str, ...]  # the optional ones that are there, in the order of the custom call
    keeps: bool = False  # the first products are results

    @property
    def names(self) -> tuple[str, ...]:
        return (*_REQUIRED, *self.operands)

    @property
    def kept(self) -> tuple[str, ...]:
        """The names of what is kept."""
        if not self.keeps:
            return ()
        return ("up", "gate") if "w_gate" in self.operands else ("up",)

    def named(self, flat: Sequence[Any]) -> _Args:
        return dict(zip(self.names, flat, strict=True))

    def flat(self, args: _Args) -> list[Any]:
        return [args[name] for name in self.names]

    def attributes(self) -> dict[str, str | bool]:
        """The custom calls' attributes: those that differ from the defaults in proto/config.proto."""
        return {
            "activation": self.activation,
            "merged": self.merged,
            "up_is_trans": self.up_is_trans,
            "down_is_trans": self.down_is_trans,
            "up_layout": self.up_layout,
            "down_layout": self.down_layout,
            "weight_on": self.weight_on,
            "operands": ",".join(self.operands),
            "results": ",".join(self.kept),
        }

    def intermediate(self, args: _Args) -> int:
        return args["w_down"].shape[2 if self.down_layout or self.down_is_trans else 1]

    def columns_of_up(self, args: _Args) -> int:
        return (2 if self.merged else 1) * self.intermediate(args)

    def unpacked(self, args: _Args) -> tuple["MlpCall", _Args]:
        """The same with weights that are not in column blocks: derivatives and batches look at them as matrices."""
        plain = {name: from_blocks(args[name], n) for name, n in self.columns(args).items()}
        return dataclasses.replace(self, up_layout="", down_layout=""), of_whole_bytes(args | plain)

    def columns(self, args: _Args) -> dict[str, int]:
        """Of the weights that are in column blocks."""
        of_up = self.columns_of_up(args)
        found = {name: of_up for name in ("w_up", "w_gate") if self.up_layout and name in args}
        return found | ({"w_down": args["x"].shape[1]} if self.down_layout else {})

    def __call__(self, *flat: Any) -> tuple[jax.Array, ...]:
        """By grouped GEMMs."""
        call, args = self.unpacked(self.named(flat))
        return call.sequence(call, args)[: 1 + len(self.kept)]

    def out_avals(self, x: Any, *others: Any) -> list[Any]:
        columns, rows = self.columns_of_up(self.named((x, *others))), others[0].shape[0]

        def result(shape, dtype):
            sharding = x.sharding.update(spec=PartitionSpec(None, None))
            return x.update(shape=shape, dtype=np.dtype(dtype), weak_type=False, sharding=sharding)

        return [result(x.shape, self.dtype), *(result((rows, columns), np.float32) for _ in self.kept)]

    def __repr__(self) -> str:
        words = " ".join(f"{name}={value}" for name, value in self.attributes().items() if value)
        return f"MLP({words} -> {np.dtype(self.dtype)})"


@dataclasses.dataclass(frozen=True)
class TangentCall:
    """The one static parameter of the primitive of tangents."""

    call: MlpCall
    moved: tuple[int, ...]  # which arguments have tangents

    @property
    def wanted(self) -> tuple[str, ...]:
        return tuple(self.call.names[i] for i in self.moved)

    def split(self, flat: Sequence[Any]) -> tuple[Sequence[Any], Sequence[Any], Sequence[Any]]:
        """Arguments, what was kept, tangents."""
        count, rest = len(self.call.names), len(flat) - len(self.moved)
        return flat[:count], flat[count:rest], flat[rest:]

    def of_moved(self, primals: Sequence[Any]) -> Callable[..., jax.Array]:
        """The value as a function of the arguments that have tangents."""
        value = jax.checkpoint(lambda *flat: self.call(*flat)[0])
        return _of_moved(value, primals, self.moved)

    def __call__(self, *flat: Any) -> jax.Array:
        primals, _, dots = self.split(flat)
        return jax.jvp(self.of_moved(primals), [primals[i] for i in self.moved], list(dots))[1]

    def out_avals(self, *flat: Any) -> Any:
        return self.call.out_avals(*self.split(flat)[0])[0]

    def __repr__(self) -> str:
        return f"{self.call}({', '.join(self.wanted)})"


@dataclasses.dataclass(frozen=True)
class BackwardCall:
    """The one static parameter of the primitive of gradients."""

    call: MlpCall
    wanted: tuple[str, ...]

    def attributes(self) -> dict[str, str | bool]:
        operands = ",".join((*self.call.operands, *self.call.kept))
        return self.call.attributes() | {"operands": operands, "results": ",".join(self.wanted)}

    def __call__(self, *flat: Any) -> list[jax.Array]:
        """By grouped GEMMs, from arguments alone."""
        args = self.call.named(flat[: len(self.call.names)])
        found = self.call.cotangents(self.call, args, flat[-1], self.wanted)
        return [found[name] for name in self.wanted]

    def out_avals(self, *flat: Any) -> list[Any]:
        args = self.call.named(flat[: len(self.call.names)])
        return [args[name].update(weak_type=False) for name in self.wanted]

    def __repr__(self) -> str:
        return f"{self.call}({', '.join(self.wanted)})"


def _of_moved(function: Callable[..., Any], flat: Sequence[Any], moved: Sequence[int]) -> Callable[..., Any]:
    """A function of flat arguments as one of some of them."""

    def of_moved(*values: Any) -> Any:
        changed = list(flat)
        for i, value in zip(moved, values, strict=True):
            changed[i] = value
        return function(*changed)

    return of_moved


def _moved(tangents: Sequence[Any]) -> tuple[int, ...]:
    return tuple(i for i, dot in enumerate(tangents) if not isinstance(dot, ad.Zero))


def _jvp(primals, tangents, *, call: MlpCall):
    moved = _moved(tangents)
    dots = [tangents[i] for i in moved]
    if call.keeps:  # a derivative of a derivative
        return jax.jvp(_of_moved(call, primals, moved), [primals[i] for i in moved], dots)
    of = TangentCall(dataclasses.replace(call, keeps=call.saves_products), moved)
    out, *kept = primitive.bind(*primals, call=of.call)
    return [out], [tangent.bind(*primals, *kept, *dots, call=of)]


def _jvp_of_sequence(primals, tangents, *, call: TangentCall | BackwardCall):
    moved = _moved(tangents)
    function = _of_moved(call, primals, moved)
    return jax.jvp(function, [primals[i] for i in moved], [tangents[i] for i in moved])


def _tangent_transpose(ct, *flat, call: TangentCall):
    primals, kept, dots = call.split(flat)
    none = [None] * (len(primals) + len(kept))
    if isinstance(ct, ad.Zero):
        return [*none, *[None] * len(dots)]
    if any(name.endswith("_scale") for name in call.wanted):
        _, pull = jax.vjp(call.of_moved(primals), *[primals[i] for i in call.moved])
        return [*none, *pull(ct)]
    args = call.call.named(primals)
    plain, matrices = call.call.unpacked(args)
    of = BackwardCall(plain, call.wanted)
    found = dict(zip(call.wanted, backward.bind(*plain.flat(matrices), *kept, ct, call=of), strict=True))
    for name in call.call.columns(args).keys() & found.keys():
        found[name] = to_blocks(found[name], args[name].shape[3])
    return [*none, *[found[name] for name in call.wanted]]


def _custom_call(target: str, operands: Sequence[Any], results: list[Any], extents: Sequence[int], words: _Args) -> Any:
    workspace = jax.ShapeDtypeStruct((library.moe_mlp_workspace(target, *extents),), np.int64)
    given = {name: word for name, word in words.items() if word}
    # A call without tokens has nothing to compute, but rows that name one are an error: XLA would leave it out.
    is_check = all(0 in result.shape for result in results)
    with jax.named_scope(target.removeprefix("raggemm_").removesuffix("_v1")):
        return jax.ffi.ffi_call(target, (*results, workspace), has_side_effect=is_check)(*operands, **given)[:-1]


def _extents(call: MlpCall, args: _Args) -> tuple[int, ...]:
    (tokens, hidden), (rows,), (groups,) = (args[name].shape for name in ("x", "row_tokens", "group_sizes"))
    return tokens, hidden, call.intermediate(args), rows, groups


def _results(avals: Sequence[Any]) -> list[Any]:
    return [jax.ShapeDtypeStruct(aval.shape, aval.dtype) for aval in avals]


# Both: what they are on the platform cpu. options: attributes that say how to compute it. With symbolic extents, of
# which no workspace is known, they are grouped GEMMs.


def _forward(*flat, call: MlpCall, avals: Sequence[Any], options: dict[str, str | int]) -> Any:
    extents = _extents(call, call.named(flat))
    if any(map(jax.export.is_symbolic_dim, extents)):
        return call(*flat)
    extents = *extents, avals[0].dtype != np.float32, "row_slots" in call.operands
    return _custom_call(library.MLP_TARGET, flat, _results(avals), extents, call.attributes() | options)


def _backward(*flat, call: BackwardCall, avals: Sequence[Any], options: dict[str, str | int]) -> Any:
    args = call.call.named(flat[: len(call.call.names)])
    extents = _extents(call.call, args)
    if any(map(jax.export.is_symbolic_dim, extents)):
        return call(*flat)
    elements = (args[name].dtype for name in ("x", "w_up", "w_down"))  # w_gate is as w_up
    element_bytes = max(dtype.itemsize for dtype in elements if dtype in FLOATS)
    is_narrow = {name: aval.dtype != np.float32 for name, aval in zip(call.wanted, avals, strict=True)}
    sums_tokens = is_narrow.pop("x", False)
    extents = *extents, element_bytes, sums_tokens, any(is_narrow.values())
    operands = [*flat[: len(_REQUIRED)], flat[-1], *flat[len(_REQUIRED) : -1]]
    words = call.attributes() | options
    return _custom_call(library.MLP_BACKWARD_TARGET, operands, _results(avals), extents, words)


def _lowering_of(of: Primitive, compute: Callable[..., Any]) -> Callable[..., Any]:
    def lowering(ctx, *operands, call):
        check_platform(ctx, of)
        function = functools.partial(compute, call=call, avals=ctx.avals_out, options=attributes())
        return mlir.lower_fun(function, multiple_results=True)(ctx, *operands)

    return lowering


def _tangent_lowering(ctx, *operands, call: TangentCall):
    return mlir.lower_fun(call, multiple_results=False)(ctx, *operands)


for _primitive in (primitive, tangent, backward):
    runs_compiled(_primitive)
    _primitive.def_abstract_eval(lambda *avals, call: call.out_avals(*avals))
    ad.primitive_jvps[_primitive] = _jvp if _primitive is primitive else _jvp_of_sequence
ad.primitive_transposes[tangent] = _tangent_transpose
mlir.register_lowering(primitive, _lowering_of(primitive, _forward))
mlir.register_lowering(backward, _lowering_of(backward, _backward))
mlir.register_lowering(tangent, _tangent_lowering)
