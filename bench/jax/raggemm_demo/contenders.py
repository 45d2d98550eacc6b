"""The contenders: the expert block on raggemm and on what JAX has. By hand, with every group padded to one static size,
as a loop over experts and as an einsum; and a loop that is unrolled for one routing.

Each competitor stands in the fastest of the forms that were tried. What lost, at 250 rows of 128 experts on two cores
with AVX-512: ragged_dot on operands cast to float32, as fast and twice the memory; einsum on such operands, 1.7 times
the time and 60 times the memory. Dots of bfloat16 operands with float32 results are those for which XLA takes the CPU's
bfloat16 unit (256 rows of 2048x768 on Zen 4: 346 GFLOP/s, where fmas allow 231); with bfloat16 results, for which it
casts the operands to float32, they take twice the time. Which of the loops is faster depends on the size of a matrix.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from raggemm._functions.moe_mlp import moe_mlp
from raggemm._functions.quantized import dequantize
from raggemm._functions.tensors import QuantizedTensor
from raggemm.ops import gmm

from raggemm_demo.layers import Block, Weights, expert_products, gated_product

RAGGEMM = "raggemm"
FUSED = "raggemm fused"
RAGGED_DOT = "lax.ragged_dot"
LOOPS = ("padded loop, bfloat16", "padded loop, float32")
EINSUM = "padded einsum"
CONTENDERS = (RAGGEMM, FUSED, RAGGED_DOT, *LOOPS, EINSUM)


def _matrix(weights: jax.Array | QuantizedTensor, g: int | jax.Array) -> jax.Array:
    """Of expert g; where quantized, dequantized to bfloat16."""
    if isinstance(weights, QuantizedTensor):
        return dequantize(QuantizedTensor(weights.data[g], weights.scale[g]), jnp.bfloat16)
    return weights[g]


def _dot(subscripts: str, a: jax.Array, b: jax.Array, dtype: Any = jnp.float32) -> jax.Array:
    return jnp.einsum(subscripts, a.astype(dtype), b.astype(dtype), preferred_element_type=jnp.float32)


class _OneExpert:
    """One expert of the block on a slice of the rows, forward and backward, with jnp's dots; for loops over experts.

    Called in a branch (lax.cond) that XLA can't decide: without one it converts the weights of all experts to float32
    in front of everything else. That takes 5 times the time and 100 times the memory in a loop, 3 times the time and 45
    times the memory in an unrolled one (250 rows of 128 experts, two cores, AVX-512).

    Forward its dots are on operands of `dtype`, backward of float32, which cotangents are; sums are float32.
    """

    def __init__(self, weights: Weights, dtype: Any):
        self._weights, self._dtype = weights, dtype

    def forward(self, g: int | jax.Array, rows: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        """float32 (y, gate, up) of expert g."""
        gate, up, down = (_matrix(w, g) for w in self._weights)
        gate, up = (_dot("mk,kn->mn", rows, matrix, self._dtype) for matrix in (gate, up))
        return _dot("mk,kn->mn", gated_product(gate, up), down, self._dtype), gate, up

    def backward(self, g: int | jax.Array, rows: jax.Array, gate_up: tuple, dy: jax.Array) -> tuple[jax.Array, ...]:
        """bfloat16 gradients for the rows and for the three matrices of expert g; of float32 gate, up and dy."""
        gated, gated_transpose = jax.vjp(gated_product, *gate_up)
        dgated = _dot("mn,kn->mk", dy, self._weights.down[g])
        dgate, dup = gated_transpose(dgated.astype(gated.dtype))
        drows = _dot("mn,kn->mk", dgate, self._weights.gate[g]) + _dot("mn,kn->mk", dup, self._weights.up[g])
        dweights = (_dot("mk,mn->kn", *operands) for operands in ((rows, dgate), (rows, dup), (gated, dy)))
        return tuple(d.astype(rows.dtype) for d in (drows, *dweights))


def _as_words(array: jax.Array) -> jax.Array:
    # XLA on CPU updates part of an array of bfloat16 by rewriting all of it, hundreds of megabytes for each expert.
    return lax.bitcast_convert_type(array, jnp.uint16)


def _first_rows(sizes: jax.Array) -> jax.Array:
    return jnp.cumsum(sizes) - sizes


def loop_block(padded_size: int, dtype: Any) -> Block:
    """Expert by expert, on padded_size rows from its first; its dots on operands of `dtype`. Right for groups of at
    most padded_size rows, as einsum_block.

    Its derivative is written by hand. Reverse mode through the loop would add a gradient of all experts' weights for
    each expert.
    """
    padding = ((0, padded_size), (0, 0))

    def rows_of(array, first):
        return lax.dynamic_slice_in_dim(array, first, padded_size)

    def write(array, rows, first):
        # Also writes on rows of later experts, which come later.
        return lax.dynamic_update_slice_in_dim(array, rows, first, 0)

    def forward(x, weights, sizes, widths):
        """The first len(widths) of y, gate and up, whose rows have these widths, with padding."""
        one, first, padded = _OneExpert(weights, dtype), _first_rows(sizes), jnp.pad(x, padding)

        def expert(g, outputs):
            new = one.forward(g, rows_of(padded, first[g]))
            return tuple(write(*args, first[g]) for args in zip(outputs, new, strict=False))

        def active_expert(g, outputs):
            return lax.cond(sizes[g] > 0, expert, lambda _, outputs: outputs, g, outputs)

        outputs = tuple(jnp.zeros((len(padded), width), jnp.float32) for width in widths)
        return lax.fori_loop(0, sizes.shape[0], active_expert, outputs)

    @jax.custom_vjp
    def block(x, weights, sizes):
        (y,) = forward(x, weights, sizes, x.shape[1:])
        return y[: x.shape[0]]

    def keep_gate_and_up(x, weights, sizes):
        hidden, intermediate = weights.gate.shape[1:]
        y, gate, up = forward(x, weights, sizes, (hidden, intermediate, intermediate))
        return y[: x.shape[0]], (x, weights, sizes, gate, up)

    def transpose(kept, dy):
        x, weights, sizes, gate, up = kept
        one, first = _OneExpert(weights, dtype), _first_rows(sizes)
        padded, dy = jnp.pad(x, padding), jnp.pad(dy, padding)
        active = jnp.argsort(sizes == 0, stable=True)

        def of_expert(g):
            own_dy = jnp.where(jnp.arange(padded_size)[:, None] < sizes[g], rows_of(dy, first[g]), 0)
            kept = rows_of(gate, first[g]), rows_of(up, first[g])
            drows, *dweights = one.backward(g, rows_of(padded, first[g]), kept, own_dy)
            return _as_words(drows), *(_as_words(d[None]) for d in dweights)

        def nothing(g):
            return jax.tree.map(jnp.zeros_like, jax.eval_shape(of_expert, g))

        def expert(i, gradients):
            g = active[i]
            new = lax.cond(sizes[g] > 0, of_expert, nothing, g)
            return tuple(write(*args) for args in zip(gradients, new, (first[g], g, g, g), strict=True))

        zeros = tuple(jnp.zeros(primal.shape, jnp.uint16) for primal in (padded, *weights))
        gradients = lax.fori_loop(0, jnp.count_nonzero(sizes), expert, zeros)
        dx, *dweights = (lax.bitcast_convert_type(d, x.dtype) for d in gradients)
        return dx[: x.shape[0]], Weights(*dweights), None

    block.defvjp(keep_gate_and_up, transpose)
    return block


def einsum_block(padded_size: int) -> Block:
    """All experts at once, each on padded_size rows from its first."""

    def dot(a, b):
        return jnp.einsum("gmk,gkn->gmn", a, b, preferred_element_type=jnp.float32)

    def block(x, weights, sizes):
        rows, first = jnp.arange(x.shape[0]), _first_rows(sizes)
        padded = jnp.pad(x, ((0, padded_size), (0, 0)))[first[:, None] + jnp.arange(padded_size)]
        y = dot(gated_product(dot(padded, weights.gate), dot(padded, weights.up)), weights.down)
        expert = jnp.repeat(jnp.arange(sizes.shape[0]), sizes, total_repeat_length=x.shape[0])
        return y[expert, rows - first[expert]]

    return block


def unrolled_block(static_sizes: Sequence[int]) -> Block:
    """The block compiled for one routing, the bound of whoever can pay a compilation for each: each active expert in
    turn, on exactly its rows. The sizes that it is called with must be the static ones."""
    active = [g for g, size in enumerate(static_sizes) if size]

    def split(array):
        rows = lax.split(array, static_sizes)
        return [rows[g] for g in active]

    def each_expert(function, sizes, operands):
        """function(g, *operands of g) of the active experts: for each of its results a list."""

        def nothing(*operands):
            return jax.tree.map(jnp.zeros_like, jax.eval_shape(function, *operands))

        results = []
        for g, *of_expert in zip(active, *operands, strict=True):
            results.append(lax.cond(sizes[g] > 0, function, nothing, np.int32(g), *of_expert))
        return zip(*results, strict=True)

    def forward(x, weights, sizes):
        return each_expert(_OneExpert(weights, jnp.bfloat16).forward, sizes, [split(x)])

    @jax.custom_vjp
    def block(x, weights, sizes):
        y, _, _ = forward(x, weights, sizes)
        return jnp.concatenate(y)

    def keep_gate_and_up(x, weights, sizes):
        y, *gate_up = forward(x, weights, sizes)
        return jnp.concatenate(y), (x, weights, sizes, gate_up)

    def transpose(kept, dy):
        x, weights, sizes, gate_up = kept
        operands = [split(x), list(zip(*gate_up, strict=True)), split(dy)]
        drows, *dmatrices = each_expert(_OneExpert(weights, jnp.bfloat16).backward, sizes, operands)

        def stack(primal, matrices):
            words = jnp.zeros(primal.shape, jnp.uint16)
            for g, matrix in zip(active, matrices, strict=True):
                words = words.at[g].set(_as_words(matrix))
            return lax.bitcast_convert_type(words, primal.dtype)

        return jnp.concatenate(drows), Weights(*map(stack, weights, dmatrices)), None

    block.defvjp(keep_gate_and_up, transpose)
    return block


def fused_block(x: jax.Array, weights: Weights, sizes: jax.Array) -> jax.Array:
    """The block in one call, whose tokens are the rows."""
    rows = jnp.arange(x.shape[0], dtype=jnp.int32)
    dtype = jnp.float32
    return moe_mlp(x, rows, None, sizes, weights.up, weights.down, w_gate=weights.gate, preferred_element_type=dtype)


def ragged_dot(lhs: jax.Array, rhs: jax.Array, sizes: jax.Array) -> jax.Array:
    return lax.ragged_dot(lhs, rhs, sizes, preferred_element_type=jnp.float32)


def blocks(padded_size: int) -> dict[str, Block]:
    """Every contender; the padded ones are right for groups of at most padded_size rows."""
    return {
        RAGGEMM: lambda *operands: expert_products(gmm, *operands).y,
        FUSED: fused_block,
        RAGGED_DOT: lambda *operands: expert_products(ragged_dot, *operands).y,
        LOOPS[0]: loop_block(padded_size, jnp.bfloat16),
        LOOPS[1]: loop_block(padded_size, jnp.float32),
        EINSUM: einsum_block(padded_size),
    }
