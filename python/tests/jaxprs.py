"""What a function asks for: reading its jaxpr."""

from collections import Counter

import jax


def _equations(jaxpr):
    for equation in jaxpr.eqns:
        yield equation
        for parameter in jax.tree.leaves(equation.params, is_leaf=lambda x: hasattr(x, "eqns") or hasattr(x, "jaxpr")):
            inner = getattr(parameter, "jaxpr", parameter)
            if hasattr(inner, "eqns"):
                yield from _equations(inner)


def calls(f, *args) -> Counter[str]:
    """How many grouped GEMMs of each mode f binds, those in the bodies of loops and branches included."""
    jaxpr = jax.make_jaxpr(f)(*args).jaxpr
    return Counter(x.params["call"].mode.name for x in _equations(jaxpr) if x.primitive.name == "grouped_gemm")
