"""Reads jaxprs of functions, and the text of compiled programs."""

import re
from collections import Counter

import jax
import numpy as np

TARGET = 'custom_call_target="raggemm_grouped_gemm_v1"'


def custom_calls(lowered) -> int:
    return lowered.compile().as_text().count(TARGET)


def collectives(program) -> set[str]:
    """Returns the kinds of collectives in a compiled program."""
    kinds = r"\b(all-gather|all-reduce|all-to-all|collective-permute|reduce-scatter)(?:-start)?\("
    return set(re.findall(kinds, program.as_text()))


def copies_of_weights(lowered, elements: int) -> list[str]:
    """Returns instructions that only move data and whose result has a multiple of `elements` elements.

    Results of other instructions must not have such a size.
    """
    moved = []
    for line in lowered.compile().as_text().splitlines():
        match = re.search(
            r"= \w+\[([\d,]*)\]\S* (broadcast|transpose|copy|concatenate|gather|pad|dynamic-slice)\(", line
        )
        if match and match[1] and np.prod([int(n) for n in match[1].split(",")]) % elements == 0:
            moved.append(line.strip())
    return moved


def _equations(jaxpr):
    for equation in jaxpr.eqns:
        yield equation
        for parameter in jax.tree.leaves(equation.params, is_leaf=lambda x: hasattr(x, "eqns") or hasattr(x, "jaxpr")):
            inner = getattr(parameter, "jaxpr", parameter)
            if hasattr(inner, "eqns"):
                yield from _equations(inner)


def primitives(f, *args) -> Counter[str]:
    """Returns how often f binds each primitive."""
    return Counter(x.primitive.name for x in _equations(jax.make_jaxpr(f)(*args).jaxpr))


def calls(f, *args) -> Counter[str]:
    """Returns how many grouped GEMMs of each mode f binds, even in loops and branches."""
    jaxpr = jax.make_jaxpr(f)(*args).jaxpr
    return Counter(x.params["call"].mode.name for x in _equations(jaxpr) if x.primitive.name == "grouped_gemm")
