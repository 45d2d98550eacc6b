"""The JAX primitives of the experts' MLP, and their derivatives.

TangentCall computes the MLP by grouped GEMMs. They run under jax.checkpoint, so that derivatives of the tangent save
only the arguments.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.extend.core import Primitive
from jax.interpreters import ad

from raggemm._src.call import to_column_blocks
from raggemm._src.mlp_reference import MlpCall, compute_cotangents
from raggemm._src.primitive import register_jitted_impl

# The primitive of the whole MLP. Operands: the arguments of moe_mlp. Results: the value of the MLP and, if a gradient
# keeps them, the first products (up and gate).
mlp_p = Primitive("moe_mlp")
# The tangent of the MLP. Operands: the arguments, the kept first products, and a tangent for each argument number in
# TangentCall.argnums. The primitive is linear in these tangents. Result: the tangent of the value.
tangent_p = Primitive("moe_mlp_tangent")
# The gradient of the MLP. Operands: the arguments, the kept first products, and the cotangent of the value. Results:
# the cotangents of the arguments that BackwardCall.wanted names.
backward_p = Primitive("moe_mlp_backward")
mlp_p.multiple_results = backward_p.multiple_results = True


@dataclasses.dataclass(frozen=True)
class TangentCall:
    call: MlpCall
    argnums: tuple[int, ...]

    @property
    def wanted(self) -> tuple[str, ...]:
        return tuple(self.call.names[i] for i in self.argnums)

    def split(self, flat: Sequence[Any]) -> tuple[Sequence[Any], Sequence[Any], Sequence[Any]]:
        count, rest = len(self.call.names), len(flat) - len(self.argnums)
        return flat[:count], flat[count:rest], flat[rest:]

    def value_fn(self, primals: Sequence[Any]) -> Callable[..., jax.Array]:
        value = jax.checkpoint(lambda *flat: self.call(*flat)[0])
        return _restrict_to_argnums(value, primals, self.argnums)

    def __call__(self, *flat: Any) -> jax.Array:
        primals, _, dots = self.split(flat)
        return jax.jvp(self.value_fn(primals), [primals[i] for i in self.argnums], list(dots))[1]

    def out_avals(self, *flat: Any) -> Any:
        return self.call.out_avals(*self.split(flat)[0])[0]

    def __repr__(self) -> str:
        return f"{self.call}({', '.join(self.wanted)})"


@dataclasses.dataclass(frozen=True)
class BackwardCall:
    call: MlpCall
    wanted: tuple[str, ...]

    def attributes(self) -> dict[str, Any]:
        operands = ",".join((*self.call.operands, *self.call.saved_products))
        return self.call.attributes() | {"operands": operands, "results": ",".join(self.wanted)}

    def __call__(self, *flat: Any) -> list[jax.Array]:
        args = self.call.unflatten(flat[: len(self.call.names)])
        found = compute_cotangents(self.call, args, flat[-1], self.wanted)
        return [found[name] for name in self.wanted]

    def out_avals(self, *flat: Any) -> list[Any]:
        args = self.call.unflatten(flat[: len(self.call.names)])
        return [args[name].update(weak_type=False) for name in self.wanted]

    def __repr__(self) -> str:
        return f"{self.call}({', '.join(self.wanted)})"


def _restrict_to_argnums(
    function: Callable[..., Any], flat: Sequence[Any], argnums: Sequence[int]
) -> Callable[..., Any]:
    def restricted(*values: Any) -> Any:
        changed = list(flat)
        for i, value in zip(argnums, values, strict=True):
            changed[i] = value
        return function(*changed)

    return restricted


def _nonzero_argnums(tangents: Sequence[Any]) -> tuple[int, ...]:
    return tuple(i for i, dot in enumerate(tangents) if not isinstance(dot, ad.Zero))


def _jvp(primals, tangents, *, call: MlpCall):
    argnums = _nonzero_argnums(tangents)
    dots = [tangents[i] for i in argnums]
    if call.returns_products:  # the call is part of a derivative, so this is a second derivative
        return jax.jvp(_restrict_to_argnums(call, primals, argnums), [primals[i] for i in argnums], dots)
    tangent = TangentCall(dataclasses.replace(call, returns_products=call.saves_products), argnums)
    out, *saved = mlp_p.bind(*primals, call=tangent.call)
    return [out], [tangent_p.bind(*primals, *saved, *dots, call=tangent)]


def _jvp_of_reference(primals, tangents, *, call: TangentCall | BackwardCall):
    argnums = _nonzero_argnums(tangents)
    function = _restrict_to_argnums(call, primals, argnums)
    return jax.jvp(function, [primals[i] for i in argnums], [tangents[i] for i in argnums])


def _tangent_transpose(ct, *flat, call: TangentCall):
    primals, saved, dots = call.split(flat)
    none = [None] * (len(primals) + len(saved))
    if isinstance(ct, ad.Zero):
        return [*none, *[None] * len(dots)]
    if any(name.endswith("_scale") or name.startswith("alpha_") for name in call.wanted):
        _, pull = jax.vjp(call.value_fn(primals), *[primals[i] for i in call.argnums])
        return [*none, *pull(ct)]
    args = call.call.unflatten(primals)
    plain, matrices = call.call.unpack_weights(args)
    backward = BackwardCall(plain, call.wanted)
    found = dict(zip(call.wanted, backward_p.bind(*plain.flatten(matrices), *saved, ct, call=backward), strict=True))
    for name in call.call.block_columns(args).keys() & found.keys():
        found[name] = to_column_blocks(found[name], args[name].shape[3])
    return [*none, *[found[name] for name in call.wanted]]


for _p in (mlp_p, tangent_p, backward_p):
    register_jitted_impl(_p)
    _p.def_abstract_eval(lambda *avals, call: call.out_avals(*avals))
    ad.primitive_jvps[_p] = _jvp if _p is mlp_p else _jvp_of_reference
ad.primitive_transposes[tangent_p] = _tangent_transpose
