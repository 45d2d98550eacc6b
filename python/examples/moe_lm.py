"""Trains a language model over bytes, with mixture-of-experts layers, on the licences that every Debian has.

    .venv/bin/python python/examples/moe_lm.py [--minutes=4 | --steps=N] [--impl=raggemm|ragged_dot]

Licences of three families are held out: no text of theirs is trained on. At the end, the loss on them stands beside
the entropy of one of their bytes given the byte before, which is what the best table of pairs could reach; a picture
shows how the loss fell. The same seed, implementation and number of threads give the same loss to the last bit.

The model is in moe_lm_model.py.
"""

import argparse
import os
import pathlib
import resource
import sys
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import matplotlib
import numpy as np
import optax
from moe_lm_model import EXPERTS, Shape, initial_parameters, losses

LICENCES = pathlib.Path("/usr/share/common-licenses")  # of the package base-files
HELD_OUT = ("Apache-2.0", "Artistic", "CC0-1.0")
BATCH = 16
BALANCE = 0.01  # weight of the load-balance loss
WARM_UP, PEAK_RATE = 50, 2e-3  # steps; learning rate after them
STEPS_BETWEEN_EVALUATIONS = 50
BITS = 1 / np.log(2)  # in a nat


class Texts(NamedTuple):
    """Bytes, as int32."""

    training: np.ndarray
    held_out: np.ndarray


def read_texts(folder: pathlib.Path = LICENCES) -> Texts:
    files = sorted(path for path in folder.iterdir() if path.is_file() and not path.is_symlink())
    missing = set(HELD_OUT) - {path.name for path in files}
    if missing or len(files) == len(HELD_OUT):
        raise FileNotFoundError(f"{folder} has not the licences of Debian's base-files; missing: {sorted(missing)}")

    def joined(held_out: bool) -> np.ndarray:
        text = b"\n".join(path.read_bytes() for path in files if (path.name in HELD_OUT) == held_out)
        return np.frombuffer(text, np.uint8).astype(np.int32)

    return Texts(joined(False), joined(True))


def pair_entropy(text: np.ndarray) -> float:
    """Entropy of a byte given the byte before it, in bits, by the frequencies in the text itself."""
    pairs = np.zeros((256, 256))
    np.add.at(pairs, (text[:-1], text[1:]), 1)
    given = pairs.sum(axis=1, keepdims=True)
    seen = pairs > 0
    return float(-(pairs[seen] * np.log2((pairs / np.maximum(given, 1))[seen])).sum() / pairs.sum())


def learning_rate(step: jax.Array) -> jax.Array:
    """Rises, then falls with the root of the steps: it needs not know how many there will be."""
    step = jnp.asarray(step, jnp.float32) + 1
    return PEAK_RATE * jnp.minimum(step / WARM_UP, jnp.sqrt(WARM_UP / step))


OPTIMIZER = optax.chain(
    optax.clip_by_global_norm(1.0),
    optax.adamw(learning_rate, b2=0.98, weight_decay=0.1, mask=lambda tree: jax.tree.map(lambda x: x.ndim > 1, tree)),
)


class State(NamedTuple):
    parameters: dict[str, Any]
    optimizer: Any
    key: jax.Array


class Model:
    """A compiled training step and a compiled evaluation."""

    def __init__(self, shape: Shape, implementation: str, texts: Texts, seed: int):
        self.shape, self.experts = shape, EXPERTS[implementation]
        self.text = jnp.asarray(texts.training)
        key, own = jax.random.split(jax.random.key(seed))
        parameters = initial_parameters(shape, own)
        self.state = State(parameters, OPTIMIZER.init(parameters), key)
        windows = (len(texts.held_out) - 1) // shape.context
        index = np.arange(windows)[:, None] * shape.context + np.arange(shape.context + 1)
        self.held_out = np.array_split(texts.held_out[index], -(-windows // BATCH))
        self.step = jax.jit(self._step, donate_argnums=0).lower(self.state).compile()
        self.window_losses = jax.jit(lambda parameters, text: losses(parameters, text, self.shape, self.experts)[0])

    def _step(self, state: State) -> tuple[State, jax.Array]:
        """The next state and the loss, in bits a byte, on random windows of the training text."""
        key, own = jax.random.split(state.key)
        starts = jax.random.randint(own, (BATCH, 1), 0, len(self.text) - self.shape.context)
        text = self.text[starts + jnp.arange(self.shape.context + 1)]

        def objective(parameters: dict[str, Any]) -> tuple[jax.Array, jax.Array]:
            values, balance = losses(parameters, text, self.shape, self.experts)
            return values.mean() + BALANCE * balance, values.mean()

        gradient, loss = jax.grad(objective, has_aux=True)(state.parameters)
        updates, optimizer = OPTIMIZER.update(gradient, state.optimizer, state.parameters)
        return State(optax.apply_updates(state.parameters, updates), optimizer, key), BITS * loss

    def advance(self) -> float:
        """Takes a step; its loss."""
        self.state, loss = self.step(self.state)
        return float(loss)

    def cost(self, seconds: Sequence[float]) -> str:
        """What a step takes; seconds that steps took."""
        temporaries = self.step.memory_analysis().temp_size_in_bytes / 2**20
        text = f"a step of {BATCH * self.shape.context} tokens: {1e3 * np.median(seconds):.0f} ms"
        return f"{text}, {temporaries:.0f} MiB of temporaries"

    def evaluate(self) -> float:
        """The loss on the whole held-out text, in bits a byte."""
        values = [np.asarray(self.window_losses(self.state.parameters, text)) for text in self.held_out]
        return float(BITS * np.concatenate(values).astype(np.float64).mean())


class History(NamedTuple):
    """Losses in bits a byte, by step."""

    training: list[float]
    evaluations: list[tuple[int, float]]
    seconds: list[float]  # that each step took


def _progress(done: float, history: History, tokens_per_step: int) -> None:
    bar = "#" * round(30 * done)
    rate = tokens_per_step / np.median(history.seconds[-50:])
    step, held_out = history.evaluations[-1]
    text = f"[{bar:30}] step {len(history.training)}  {rate:,.0f} tokens/s  loss {history.training[-1]:.3f}"
    print(f"\r{text}  held out {held_out:.3f} at {step} ", end="", file=sys.stderr, flush=True)


def train(model: Model, steps: int | None, minutes: float) -> History:
    """Until so many steps or minutes have passed."""
    history = History([], [(0, model.evaluate())], [])
    start = time.perf_counter()

    def done() -> float:
        return len(history.training) / steps if steps else (time.perf_counter() - start) / (60 * minutes)

    while done() < 1:
        before = time.perf_counter()
        history.training.append(model.advance())
        history.seconds.append(time.perf_counter() - before)
        if len(history.training) % STEPS_BETWEEN_EVALUATIONS == 0:
            history.evaluations.append((len(history.training), model.evaluate()))
        _progress(min(1.0, done()), history, BATCH * model.shape.context)
    print(file=sys.stderr)
    if history.evaluations[-1][0] != len(history.training):
        history.evaluations.append((len(history.training), model.evaluate()))
    return history


def draw(path: pathlib.Path, history: History, entropy: float, title: str) -> None:
    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(8, 4.5), layout="constrained")
    axes.plot(np.arange(1, len(history.training) + 1), history.training, linewidth=0.6, label="training")
    axes.plot(*zip(*history.evaluations, strict=True), marker=".", label="held-out licences")
    axes.axhline(entropy, color="black", linestyle="--", label="entropy of a held-out byte given the one before")
    axes.set(xlabel="step", ylabel="loss, bits a byte", title=title, ylim=(0, 8.2))
    axes.legend()
    figure.savefig(path, dpi=120)


def main(argv: Sequence[str] | None = None) -> float:
    """The loss on the held-out text at the end, in bits a byte."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    length = parser.add_mutually_exclusive_group()
    length.add_argument("--minutes", type=float, default=4.0, help="of training (default 4)")
    length.add_argument("--steps", type=int, help="of training, instead of minutes")
    parser.add_argument("--impl", choices=EXPERTS, default="raggemm", help="what computes the experts")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--png", type=pathlib.Path, default=pathlib.Path("moe_lm.png"), help="picture of the loss")
    options = parser.parse_args(argv)
    given = {"--minutes": options.minutes, "--steps": options.steps}
    for name, value in given.items():
        if value is not None and not value > 0:
            parser.error(f"{name}={value}: must be positive")
    # Before the minutes of work, not after them.
    if options.png.is_dir() or not os.access(options.png if options.png.exists() else options.png.parent, os.W_OK):
        parser.error(f"--png={options.png}: cannot be written")

    texts, shape = read_texts(), Shape()
    entropy = pair_entropy(texts.held_out)
    model = Model(shape, options.impl, texts, options.seed)
    parameters = sum(x.size for x in jax.tree.leaves(model.state.parameters))
    print(f"{parameters:,} parameters in {shape}, trained on {len(texts.training):,} bytes with {options.impl}")
    history = train(model, options.steps, options.minutes)
    step, loss = history.evaluations[-1]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10
    print(model.cost(history.seconds))
    print(f"the process at its peak: {peak:.0f} MiB")
    print(f"entropy of a held-out byte given the one before: {entropy:.4f} bits")
    print(f"loss on the held-out text after {step} steps: {loss!r} bits a byte")
    draw(options.png, history, entropy, f"{shape.experts} experts, top {shape.top_k}, {options.impl}")
    return loss


if __name__ == "__main__":
    main()
