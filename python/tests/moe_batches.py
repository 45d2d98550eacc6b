"""Makes the arguments of batches of moe_mlp problems, and functions that run them."""

import jax
import jax.numpy as jnp
import numpy as np
import raggemm
from program_text import primitives
from raggemm import moe_mlp

BATCH, TOKENS, ROWS, HIDDEN, INNER, GROUPS, LOCAL = 3, 6, 40, 8, 12, 5, 3
ROUTING = ("x", "row_tokens", "group_sizes", "row_weights")
WEIGHTS = ("w_up", "w_gate", "w_down", "b_up", "b_gate", "b_down")


def same(got, want):
    jax.tree.map(np.testing.assert_array_equal, got, want)


def is_weight(name):
    return name[:2] in ("w_", "b_")


def matrices(random, kind, shape):
    w = (random.normal(size=shape) * shape[1] ** -0.5).astype(np.float32)
    if "int8" in kind:
        w = raggemm.quantize(w, jnp.int8, axes=(0, 1) if "one scale" in kind else 1)
    elif kind != "packed":
        w = w.astype(kind)
    return raggemm.prepack(w) if "packed" in kind else w


def arguments(random, gate="separate", x=np.float32, w="float32", biases=True, weighted=True, offset=False, **others):
    """Makes random arguments of moe_mlp. x: dtype of x. w: dtype or storage of the weights, such as "packed int8"."""
    groups, columns = LOCAL if offset else GROUPS, INNER * (2 if gate in ("halves", "interleaved") else 1)
    counted = random.multinomial(random.integers(ROWS + 1), random.dirichlet(np.ones(GROUPS)))
    values = {
        "x": random.normal(size=(TOKENS, HIDDEN)).astype(x),
        "row_tokens": random.integers(0, TOKENS, ROWS, np.int32),
        "row_weights": random.normal(size=ROWS).astype(np.float32) if weighted else None,
        "group_sizes": counted.astype(np.int32),
        "group_offset": random.integers(0, GROUPS - LOCAL + 1, dtype=np.int32) if offset else None,
        "row_slots": random.integers(0, 4, ROWS, np.int32) if others.get("rows") == "slots" else None,
    }
    transposes = transposed(w=w, **others).values()
    for name, shape, is_trans in zip(("up", "down"), ((HIDDEN, columns), (INNER, HIDDEN)), transposes, strict=True):
        for side in (name, "gate") if gate == "separate" and name == "up" else (name,):
            values[f"w_{side}"] = matrices(random, w, (groups, *(shape[::-1] if is_trans else shape)))
            values[f"b_{side}"] = random.normal(size=(groups, shape[1])).astype(np.float32) if biases else None
    return {name: value for name, value in values.items() if value is not None}


def transposed(w="float32", transposes=(False, False), **_):
    names = ("transpose_up", "transpose_down")
    return {name: is_trans and "packed" not in w for name, is_trans in zip(names, transposes, strict=True)}


def runs(gate="separate", rows="output", save="inputs", **others):
    """Returns a function of the array arguments of moe_mlp. The other arguments are fixed."""
    fixed = transposed(**others) | {"save": save, "weight_on": "input" if rows == "input" else "output"}
    fixed["merged"] = gate if gate in ("halves", "interleaved") else None
    return lambda values: moe_mlp(**({"row_weights": None} | values), **fixed)


def batch_of(problems, batched):
    """Returns (arguments, in_axes) for a vmap over problems.

    Stacks the arguments that `batched` names. All others come from the first problem.
    """
    stacked = {name: jax.tree.map(lambda *x: np.stack(x), *(p[name] for p in problems)) for name in batched}
    return problems[0] | stacked, {name: 0 if name in batched else None for name in problems[0]}


def part(values, batched, b):
    return {name: jax.tree.map(lambda x: x[b], v) if name in batched else v for name, v in values.items()}


def counts(f, *args):
    found = primitives(f, *args)
    return [found[name] for name in ("moe_mlp", "moe_mlp_backward", "moe_mlp_tangent", "grouped_gemm")]


def gradient(run, names):
    def pull(values, ct):
        return jax.vjp(lambda moved: run(values | moved), {name: values[name] for name in names})[1](ct)[0]

    return pull


def case(batched=(), seed=0, **options):
    """Makes a random batch of moe_mlp problems.

    Returns:
      (arguments, in_axes, run): jax.vmap(run, in_axes) computes the batch, and run alone computes one problem.
    """
    random = np.random.default_rng(seed)
    return *batch_of([arguments(random, **options) for _ in range(BATCH)], batched), runs(**options)
