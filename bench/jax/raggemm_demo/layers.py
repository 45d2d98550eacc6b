"""The layers of the demo: recorded mixture-of-experts layers with random weights and rows.

Operands are bfloat16, sums are float32.

    y = (silu(x W_gate) * (x W_up)) W_down        for each row, with the weights of its expert

A block takes (x, weights, sizes): bfloat16 rows [rows, hidden] sorted by expert, weights, and the number of rows of
each expert, int32 [experts]. It returns y, float32 [rows, hidden].
"""

import concurrent.futures
import dataclasses
import json
import pathlib
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np

RECORDED = pathlib.Path(__file__).parents[3] / "proto" / "cases" / "moe.textproto"


@dataclasses.dataclass(frozen=True)
class Layer:
    """A recorded layer."""

    model: str
    phase: str  # prefill or decode
    hidden: int  # elements of a row of x
    intermediate: int  # columns of an expert's gate and up matrices
    sizes: tuple[int, ...]  # number of rows of each expert

    @property
    def rows(self) -> int:
        return sum(self.sizes)

    @property
    def experts(self) -> int:
        return len(self.sizes)

    @property
    def active(self) -> int:
        return sum(size > 0 for size in self.sizes)

    @property
    def padded_size(self) -> int:
        """Returns the largest number of rows of an expert, rounded up to a multiple of 8."""
        return -(-max(self.sizes) // 8) * 8

    def with_rows(self, rows: int) -> "Layer":
        """Returns the layer reduced to about `rows` rows. Every expert with rows keeps at least one. All other rows are
        reduced by the same factor, so that the load imbalance stays."""
        spare = self.rows - self.active
        scale = min(1.0, max(0, rows - self.active) / spare) if spare else 1.0
        return dataclasses.replace(self, sizes=tuple(1 + int((s - 1) * scale) if s else 0 for s in self.sizes))


class Weights(NamedTuple):
    """Matrices of all experts: gate and up [experts,hidden,intermediate], and down [experts,intermediate,hidden]."""

    gate: Any
    up: Any
    down: Any


def recorded_layers() -> list[Layer]:
    """Returns the recorded layers, model by model."""
    layers = []
    for text in RECORDED.read_text().split("\ncases {")[1:]:
        fields = re.findall(r'(\w+): ("[^"]*"|\[[\d,]*\]|\d+)', text)
        case = {name: json.loads(value) for name, value in fields}
        if case["projection"] == "up":  # Skips the case "down": it has the group sizes of "up".
            sizes = case["hidden"], case["intermediate"], tuple(case["group_sizes"])
            layers.append(Layer(case["model"], case["phase"], *sizes))
    return layers


def _random_matrices(seed: int, shape: tuple[int, ...]) -> jax.Array:
    # Fills the matrices with copies of a block of about 2^22 random numbers, because models have billions of weights.
    # The length of the block makes rows and matrices begin at different numbers. Sign, mantissa and two bits of the
    # exponent are random, for magnitudes from 2^-7 to 2^-3. Normally distributed numbers would take ten times as long.
    size = int(np.prod(shape))
    words = np.random.default_rng(seed).integers(0, 2**64, size=min(-(-size // 4), 2**20 + 7), dtype=np.uint64)
    bits = words.view(np.uint16)
    bits &= np.uint16(0x81FF)
    bits |= np.uint16(0x3C00)
    return jnp.asarray(np.resize(bits, size).view(ml_dtypes.bfloat16).reshape(shape))


def random_weights(layer: Layer) -> Weights:
    up, down = (layer.experts, layer.hidden, layer.intermediate), (layer.experts, layer.intermediate, layer.hidden)
    with concurrent.futures.ThreadPoolExecutor() as pool:
        return Weights(*pool.map(_random_matrices, (1, 2, 3), (up, up, down)))


def random_rows(layer: Layer) -> tuple[jax.Array, jax.Array]:
    """Returns random rows sorted by expert, bfloat16 [rows, hidden], and the group sizes, int32 [experts]."""
    rows = np.random.default_rng(4).standard_normal((layer.rows, layer.hidden), np.float32)
    return jnp.asarray(rows, jnp.bfloat16), jnp.asarray(layer.sizes, jnp.int32)


def random_target(layer: Layer) -> jax.Array:
    """Returns the target of the loss, float32 [rows, hidden]."""
    return jnp.asarray(np.random.default_rng(6).standard_normal((layer.rows, layer.hidden), np.float32))


Block = Callable[[jax.Array, Weights, jax.Array], jax.Array]


class Products(NamedTuple):
    gate: jax.Array  # float32 [rows, intermediate]
    up: jax.Array  # float32 [rows, intermediate]
    gated: jax.Array  # silu(gate) * up, bfloat16 [rows, intermediate]
    y: jax.Array  # float32 [rows, hidden]


def gated_product(gate: jax.Array, up: jax.Array) -> jax.Array:
    return (jax.nn.silu(gate) * up).astype(jnp.bfloat16)


def expert_products(product: Callable, x: jax.Array, weights: Weights, sizes: jax.Array) -> Products:
    """Computes the block with `product`, a function of (rows, matrices, sizes). Returns the results of all steps."""
    gate, up = product(x, weights.gate, sizes), product(x, weights.up, sizes)
    gated = gated_product(gate, up)
    return Products(gate, up, gated, product(gated, weights.down, sizes))


def distance(y: jax.Array, target: jax.Array) -> jax.Array:
    return 0.5 * jnp.sum(jnp.square(y - target)) / len(y)


def make_loss(block: Block) -> Callable[[jax.Array, Weights, jax.Array, jax.Array], jax.Array]:
    """Returns the loss of a block, as a function of (x, weights, sizes, target)."""
    return lambda x, weights, sizes, target: distance(block(x, weights, sizes), target)
