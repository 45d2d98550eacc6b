"""Trains a byte-level language model with mixture-of-experts layers on the licences of a Debian system.

    .venv/bin/python python/examples/moe_lm.py [--minutes=4 | --steps=N] [--seed=N]

At the end, the program prints the loss on three held-out licences and, for comparison, the loss of the best bigram
table: the entropy of a held-out byte given the previous byte. The same seed, number of steps and number of threads give
a bit-identical loss.

The model is a decoder-only transformer in float32. Its feed-forward layers are those of raggemm.nn.
"""

import argparse
import pathlib
import sys
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import raggemm
from jax import lax
from raggemm import nn

LICENCES = pathlib.Path("/usr/share/common-licenses")  # from the package base-files
HELD_OUT = ("Apache-2.0", "Artistic", "CC0-1.0")
VOCABULARY = 256
BATCH = 16
BALANCE = 0.01  # weight of the load-balance loss
WARM_UP, PEAK_RATE = 50, 2e-3  # number of warm-up steps, and learning rate after them
STEPS_BETWEEN_EVALUATIONS = 50
BITS = 1 / np.log(2)  # bits per nat


class Shape(NamedTuple):
    layers: int = 3
    width: int = 128
    heads: int = 4
    experts: int = 32
    top_k: int = 2  # experts of a token
    hidden: int = 256
    context: int = 128  # largest number of bytes in a sequence


def read_texts() -> tuple[np.ndarray, np.ndarray]:
    """Returns (bytes of the training texts, bytes of the held-out texts)."""
    files = sorted(path for path in LICENCES.iterdir() if path.is_file() and not path.is_symlink())
    missing = set(HELD_OUT) - {path.name for path in files}
    if missing or len(files) == len(HELD_OUT):
        raise FileNotFoundError(f"{LICENCES} lacks licences of Debian's base-files: {sorted(missing)}")

    def joined(held_out: bool) -> np.ndarray:
        text = b"\n".join(path.read_bytes() for path in files if (path.name in HELD_OUT) == held_out)
        return np.frombuffer(text, np.uint8).astype(np.int32)

    return joined(False), joined(True)


def pair_entropy(text: np.ndarray) -> float:
    """Returns the entropy in bits of a byte given the previous byte, from the text's bigram frequencies."""
    pairs = np.zeros((VOCABULARY, VOCABULARY))
    np.add.at(pairs, (text[:-1], text[1:]), 1)
    given = np.maximum(pairs.sum(axis=1, keepdims=True), 1)
    seen = pairs > 0
    return float(-(pairs[seen] * np.log2((pairs / given)[seen])).sum() / pairs.sum())


def initial_parameters(shape: Shape, key: jax.Array) -> dict[str, Any]:
    keys = iter(jax.random.split(key, 3 + 3 * shape.layers))

    def normal(*dims: int) -> jax.Array:
        return jax.random.normal(next(keys), dims) * dims[-2] ** -0.5

    def layer() -> dict[str, Any]:
        return {
            "attention_norm": jnp.ones(shape.width),
            "qkv": normal(shape.width, 3 * shape.width),
            "projection": normal(shape.width, shape.width),
            "moe_norm": jnp.ones(shape.width),
            "moe": nn.init(next(keys), nn.Shape(shape.width, shape.hidden, shape.experts)),
        }

    return {
        "embedding": 0.02 * jax.random.normal(next(keys), (VOCABULARY, shape.width)),
        "position": 0.02 * jax.random.normal(next(keys), (shape.context, shape.width)),
        "layers": [layer() for _ in range(shape.layers)],
        "norm": jnp.ones(shape.width),
        "unembedding": normal(shape.width, VOCABULARY),
    }


def normalized(x: jax.Array, scale: jax.Array) -> jax.Array:
    return x * lax.rsqrt(jnp.mean(jnp.square(x), axis=-1, keepdims=True) + 1e-6) * scale


def attention(layer: dict[str, Any], x: jax.Array, heads: int) -> jax.Array:
    batch, context, width = x.shape
    qkv = (x @ layer["qkv"]).reshape(batch, context, 3, heads, width // heads)
    mixed = jax.nn.dot_product_attention(qkv[:, :, 0], qkv[:, :, 1], qkv[:, :, 2], is_causal=True)
    return mixed.reshape(x.shape) @ layer["projection"]


def losses(parameters: dict[str, Any], text: jax.Array, shape: Shape) -> tuple[jax.Array, jax.Array]:
    """Returns the cross entropy of each predicted byte in nats, [batch, context], and the balance loss.

    text: bytes [batch, context + 1]. All except the first byte of each row are predicted. The balance loss is the mean
    of load_balance_loss over the layers.
    """
    x, balance = parameters["embedding"][text[:, :-1]] + parameters["position"], jnp.float32(0)
    for layer in parameters["layers"]:
        x += attention(layer, normalized(x, layer["attention_norm"]), shape.heads)
        out, scores, chosen = nn.apply(layer["moe"], normalized(x, layer["moe_norm"]), shape.top_k)
        x += out
        balance += raggemm.load_balance_loss(scores, chosen) / shape.layers
    logits = normalized(x, parameters["norm"]) @ parameters["unembedding"]
    likelihood = jnp.take_along_axis(logits, text[:, 1:, None], axis=2)[..., 0]
    return jax.nn.logsumexp(logits, axis=2) - likelihood, balance


def learning_rate(step: jax.Array) -> jax.Array:
    step = jnp.asarray(step, jnp.float32) + 1
    return PEAK_RATE * jnp.minimum(step / WARM_UP, jnp.sqrt(WARM_UP / step))


OPTIMIZER = optax.chain(
    optax.clip_by_global_norm(1.0),
    optax.adamw(learning_rate, b2=0.98, weight_decay=0.1, mask=lambda tree: jax.tree.map(lambda x: x.ndim > 1, tree)),
)


def train(shape: Shape, texts: tuple[np.ndarray, np.ndarray], seed: int, steps: int | None, minutes: float) -> float:
    """Trains for a number of steps or minutes, and prints the losses. Returns the last loss on the held-out text."""
    text, held_out = jnp.asarray(texts[0]), texts[1]
    windows = (len(held_out) - 1) // shape.context
    index = np.arange(windows)[:, None] * shape.context + np.arange(shape.context + 1)
    batches = np.array_split(held_out[index], -(-windows // BATCH))
    key, initial_key = jax.random.split(jax.random.key(seed))
    parameters = initial_parameters(shape, initial_key)
    state = parameters, OPTIMIZER.init(parameters), key

    def step(state: Any) -> tuple[Any, jax.Array]:
        parameters, optimizer, key = state
        key, step_key = jax.random.split(key)
        starts = jax.random.randint(step_key, (BATCH, 1), 0, len(text) - shape.context)

        def objective(parameters: dict[str, Any]) -> tuple[jax.Array, jax.Array]:
            values, balance = losses(parameters, text[starts + jnp.arange(shape.context + 1)], shape)
            return values.mean() + BALANCE * balance, values.mean()

        gradient, loss = jax.grad(objective, has_aux=True)(parameters)
        updates, optimizer = OPTIMIZER.update(gradient, optimizer, parameters)
        return (optax.apply_updates(parameters, updates), optimizer, key), BITS * loss

    compiled = jax.jit(step, donate_argnums=0).lower(state).compile()
    window_losses = jax.jit(lambda parameters, text: losses(parameters, text, shape)[0])

    def evaluate() -> float:
        values = [np.asarray(window_losses(state[0], batch)) for batch in batches]
        return float(BITS * np.concatenate(values).astype(np.float64).mean())

    count, seconds, start = 0, 0.0, time.perf_counter()
    while count < steps if steps else time.perf_counter() - start < 60 * minutes:
        before = time.perf_counter()
        state, loss = jax.block_until_ready(compiled(state))
        count, seconds = count + 1, seconds + time.perf_counter() - before
        if count % STEPS_BETWEEN_EVALUATIONS == 0:
            print(f"step {count}: loss {loss:.3f}, on the held-out text {evaluate():.3f}", file=sys.stderr, flush=True)
    temporaries = compiled.memory_analysis().temp_size_in_bytes / 2**20
    milliseconds = 1e3 * seconds / count
    print(f"a step of {BATCH * shape.context} tokens: {milliseconds:.0f} ms, {temporaries:.0f} MiB of temporaries")
    loss = evaluate()
    print(f"loss on the held-out text after {count} steps: {loss!r} bits a byte")
    return loss


def main(argv: Sequence[str] | None = None) -> float:
    """Returns the last loss on the held-out text, in bits per byte."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    length = parser.add_mutually_exclusive_group()
    length.add_argument("--minutes", type=float, default=4.0, help="minutes of training (default 4)")
    length.add_argument("--steps", type=int, help="steps of training, instead of minutes")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(argv)
    for name in ("minutes", "steps"):
        if (value := getattr(options, name)) is not None and not value > 0:
            parser.error(f"--{name}={value}: must be positive")
    shape, texts = Shape(), read_texts()
    print(f"{shape}, trained on {len(texts[0]):,} bytes")
    loss = train(shape, texts, options.seed, options.steps, options.minutes)
    print(f"entropy of a held-out byte given the one before: {pair_entropy(texts[1]):.4f} bits")
    return loss


if __name__ == "__main__":
    main()
