"""The JAX primitive moe_mlp: the whole MLP of the experts as one custom call.

Its value is the custom call's. What derivatives and batches are is said by a sequence of grouped GEMMs that computes
the same, which the call carries: this package imports nothing that could make one. The sequence is behind
jax.checkpoint, so that a gradient keeps only what came in, or besides it the products' results.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir
from jax.sharding import PartitionSpec

from raggemm._primitive import jax_versions, library
from raggemm._primitive.column_blocks import from_blocks, to_blocks
from raggemm._primitive.derivatives import grouped_gemm_saveable
from raggemm._primitive.options import attributes
from raggemm._primitive.primitive import check_platform, runs_compiled

primitive = Primitive("moe_mlp")
runs_compiled(primitive)
# Of arguments, then of tangents of some of them, in which it is linear.
tangent = Primitive("moe_mlp_tangent")
runs_compiled(tangent)

_REQUIRED = ("x", "row_tokens", "group_sizes", "w_up", "w_down")


@dataclasses.dataclass(frozen=True, repr=False)
class MlpCall:
    """The one static parameter of the primitive."""

    sequence: Callable[["MlpCall", dict[str, Any]], jax.Array]  # of the arguments by name
    # Of those, a cotangent of out, and names of arguments: their cotangents by name.
    cotangents: Callable[["MlpCall", dict[str, Any], jax.Array, tuple[str, ...]], dict[str, Any]]
    activation: str  # as the attribute, as are the next three
    merged: str
    up_is_trans: bool
    down_is_trans: bool
    up_layout: str  # w_gate's, too
    down_layout: str
    dtype: np.dtype  # of out
    saves_products: bool
    operands: tuple[str, ...]  # the optional ones that are there, in the order of the custom call

    def named(self, flat: Sequence[Any]) -> dict[str, Any]:
        return dict(zip((*_REQUIRED, *self.operands), flat, strict=True))

    def flat(self, args: dict[str, Any]) -> list[Any]:
        return [args[name] for name in (*_REQUIRED, *self.operands)]

    def attributes(self) -> dict[str, str | bool]:
        """The custom call's attributes: those that differ from the defaults in proto/config.proto."""
        given: dict[str, str | bool] = {
            "activation": self.activation,
            "merged": self.merged,
            "up_is_trans": self.up_is_trans,
            "down_is_trans": self.down_is_trans,
            "up_layout": self.up_layout,
            "down_layout": self.down_layout,
            "operands": ",".join(self.operands),
        }
        return {name: value for name, value in given.items() if value}

    def unpacked(self, args: dict[str, Any]) -> tuple["MlpCall", dict[str, Any]]:
        """The same with weights that are not in column blocks: derivatives and batches look at them as matrices."""
        columns = self.columns(args)
        plain = {name: from_blocks(args[name], n) for name, n in columns.items()}
        return dataclasses.replace(self, up_layout="", down_layout=""), args | plain

    def columns(self, args: dict[str, Any]) -> dict[str, int]:
        """Of the weights that are in column blocks."""
        hidden, down = args["x"].shape[1], args["w_down"].shape
        inner = down[2 if self.down_layout or self.down_is_trans else 1]
        of_up = 2 * inner if self.merged else inner
        found = {name: of_up for name in ("w_up", "w_gate") if self.up_layout and name in args}
        return found | ({"w_down": hidden} if self.down_layout else {})

    def unfused(self, *flat: Any) -> jax.Array:
        call, args = self.unpacked(self.named(flat))
        return call.sequence(call, args)

    def rematerialized(self) -> Callable[..., jax.Array]:
        return jax.checkpoint(self.unfused, policy=grouped_gemm_saveable if self.saves_products else None)

    def __repr__(self) -> str:
        words = " ".join(f"{name}={value}" for name, value in self.attributes().items())
        return f"MLP({words} -> {np.dtype(self.dtype)})"


@primitive.def_abstract_eval
def _abstract_out(x, *_, call: MlpCall):
    return x.update(dtype=call.dtype, weak_type=False, sharding=x.sharding.update(spec=PartitionSpec(None, None)))


def _of_moved(
    function: Callable[..., jax.Array], flat: Sequence[Any], moved: Sequence[int]
) -> Callable[..., jax.Array]:
    """A function of flat arguments as one of some of them."""

    def of_moved(*values: Any) -> jax.Array:
        changed = list(flat)
        for i, value in zip(moved, values, strict=True):
            changed[i] = value
        return function(*changed)

    return of_moved


@dataclasses.dataclass(frozen=True)
class TangentCall:
    """The one static parameter of the primitive of tangents."""

    call: MlpCall
    moved: tuple[int, ...]  # which arguments have tangents

    @property
    def names(self) -> tuple[str, ...]:
        names = (*_REQUIRED, *self.call.operands)
        return tuple(names[i] for i in self.moved)

    def split(self, flat: Sequence[Any]) -> tuple[Sequence[Any], Sequence[Any]]:
        count = len(flat) - len(self.moved)
        return flat[:count], flat[count:]

    def of_moved(self, primals: Sequence[Any]) -> Callable[..., jax.Array]:
        """The sequence as a function of the arguments that have tangents."""
        return _of_moved(self.call.rematerialized(), primals, self.moved)

    def __call__(self, *flat: Any) -> jax.Array:
        primals, dots = self.split(flat)
        return jax.jvp(self.of_moved(primals), [primals[i] for i in self.moved], list(dots))[1]

    def __repr__(self) -> str:
        return f"{self.call}({', '.join(self.names)})"


@tangent.def_abstract_eval
def _abstract_tangent(x, *_, call: TangentCall):
    return _abstract_out(x, call=call.call)


def _jvp(primals, tangents, *, call: MlpCall):
    moved = tuple(i for i, dot in enumerate(tangents) if not isinstance(dot, ad.Zero))
    of = TangentCall(call, moved)
    dots = [tangents[i] for i in moved]
    if call.saves_products:  # which are computed one by one for that: the fused call would compute them twice
        return jax.jvp(of.of_moved(primals), [primals[i] for i in moved], dots)
    return primitive.bind(*primals, call=call), tangent.bind(*primals, *dots, call=of)


def _tangent_jvp(primals, tangents, *, call: TangentCall):
    moved = tuple(i for i, dot in enumerate(tangents) if not isinstance(dot, ad.Zero))
    function = _of_moved(call, primals, moved)
    return jax.jvp(function, [primals[i] for i in moved], [tangents[i] for i in moved])


def _tangent_transpose(ct, *flat, call: TangentCall):
    primals, _ = call.split(flat)
    none = [None] * len(primals)
    if isinstance(ct, ad.Zero):
        return [*none, *[None] * len(call.moved)]
    if any(name.endswith("_scale") for name in call.names):
        _, pull = jax.vjp(call.of_moved(primals), *[primals[i] for i in call.moved])
        return [*none, *pull(ct)]
    args = call.call.named(primals)
    found = call.call.cotangents(*call.call.unpacked(args), ct, call.names)
    for name in call.call.columns(args).keys() & found.keys():
        found[name] = to_blocks(found[name], args[name].shape[3])
    return [*none, *[found[name] for name in call.names]]


def _tangent_batch(flat, axes, *, call: TangentCall):
    flat = [jax_versions.gathered(x) for x in flat]
    return jax.vmap(call, tuple(axes))(*flat), 0


def _tangent_lowering(ctx, *operands, call: TangentCall):
    return mlir.lower_fun(call, multiple_results=False)(ctx, *operands)


def _batch(flat, axes, *, call: MlpCall):
    flat = [jax_versions.gathered(x) for x in flat]  # along the axis of a vmap they may still be divided
    return jax.vmap(call.rematerialized(), tuple(axes))(*flat), 0


def _fused(*flat, call: MlpCall, options: dict[str, str | int]) -> jax.Array:
    """What the primitive is on the platform cpu. options: attributes that say how to compute it."""
    args = call.named(flat)
    (tokens, hidden), (rows,), (groups,) = (args[name].shape for name in ("x", "row_tokens", "group_sizes"))
    intermediate = args["w_down"].shape[2 if call.down_layout or call.down_is_trans else 1]
    extents = (tokens, hidden, intermediate, rows, groups)
    if any(map(jax.export.is_symbolic_dim, extents)):  # of which no workspace is known
        return call.unfused(*flat)
    results = (
        jax.ShapeDtypeStruct((tokens, hidden), call.dtype),
        jax.ShapeDtypeStruct((library.moe_mlp_workspace(*extents),), np.int64),
    )
    with jax.named_scope("moe_mlp"):
        out, _ = jax.ffi.ffi_call(library.MLP_TARGET, results)(*flat, **call.attributes(), **options)
    return out


def _lowering(ctx, *operands, call: MlpCall):
    check_platform(ctx, primitive)
    function = functools.partial(_fused, call=call, options=attributes())
    return mlir.lower_fun(function, multiple_results=False)(ctx, *operands)


ad.primitive_jvps[primitive] = _jvp
ad.primitive_jvps[tangent] = _tangent_jvp
ad.primitive_transposes[tangent] = _tangent_transpose
batching.primitive_batchers[tangent] = _tangent_batch
mlir.register_lowering(tangent, _tangent_lowering)
batching.primitive_batchers[primitive] = _batch
mlir.register_lowering(primitive, _lowering)
