import re
from collections import Counter

import jax
import jax.export
import numpy as np

TARGET = 'custom_call_target="raggemm_grouped_gemm_v1"'
# Argument of jax.export that lets programs contain these custom calls.
EXPORTABLE_CALLS = [
    jax.export.DisabledSafetyCheck.custom_call(f"raggemm_{name}_v1")
    for name in ("grouped_gemm", "moe_mlp", "moe_mlp_backward")
]


def custom_calls(lowered) -> int:
    return lowered.compile().as_text().count(TARGET)


def collectives(program) -> set[str]:
    """Returns the names of the collective operations of a compiled program, such as "all-reduce"."""
    kinds = r"\b(all-gather|all-reduce|all-to-all|collective-permute|reduce-scatter)(?:-start)?\("
    return set(re.findall(kinds, program.as_text()))


def copies_of_weights(lowered, elements: int) -> list[str]:
    """Returns the instructions that only move data, and whose results are as large as weights.

    elements: number of elements of all weights, or of one expert's matrix. Results with a multiple of this number are
      weights, so no other array may have one.
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
    return Counter(x.primitive.name for x in _equations(jax.make_jaxpr(f)(*args).jaxpr))


def calls(f, *args) -> Counter[str]:
    """Counts the grouped GEMMs of each mode, including those in loops and branches."""
    jaxpr = jax.make_jaxpr(f)(*args).jaxpr
    return Counter(x.params["call"].mode.name for x in _equations(jaxpr) if x.primitive.name == "grouped_gemm")
