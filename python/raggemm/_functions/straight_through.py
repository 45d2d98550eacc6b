"""A product of arrays that are quantized before it, whose derivatives are those of the arrays."""

from collections.abc import Callable
from typing import Any

import jax


def straight_through(
    product: Callable[..., jax.Array], operands: tuple[Any, Any], values: tuple[Any, Any], sizes: Any
) -> jax.Array:
    """product(*operands, sizes), which is linear in each operand.

    values: the array that an operand was quantized from, whose derivative is the operand's; None for one that has a
    derivative of its own, if any.
    """

    @jax.custom_jvp
    def call(fixed, own, values, sizes):
        return product(*_merged(fixed, own), sizes)

    @call.defjvp
    def _(primals, tangents):
        fixed, own, _, sizes = primals
        out, tangent = jax.jvp(lambda own: product(*_merged(fixed, own), sizes), (own,), (tangents[1],))
        for side, dot in tangents[2].items():
            replaced = _merged(fixed, own)
            replaced[side] = dot
            tangent = tangent + product(*replaced, sizes)
        return out, tangent

    quantized = {side: x for side, x in enumerate(operands) if values[side] is not None}
    own = {side: x for side, x in enumerate(operands) if values[side] is None}
    return call(quantized, own, {side: values[side] for side in quantized}, sizes)


def _merged(fixed: dict[int, Any], own: dict[int, Any]) -> list[Any]:
    both = fixed | own
    return [both[0], both[1]]
