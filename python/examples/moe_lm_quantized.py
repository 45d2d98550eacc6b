"""Trains the model of moe_lm.py, then quantizes its experts: the held-out loss in each format beside bfloat16's.

    .venv/bin/python python/examples/moe_lm_quantized.py [--minutes=4 | --steps=N] [--out=FILE.md]

Only the experts' matrices are quantized, after training and without looking at any text: each element to the nearest
one that its format has. They are multiplied with rows of bfloat16, summed in float32. All else stays float32.
"""

import argparse
import functools
import os
import pathlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import ml_dtypes
import moe_lm
import raggemm
from moe_lm_model import Shape, by_products

EXPERTS = ("gate_and_up", "down")


class TwoLevels(NamedTuple):
    """NVFP4: products of the tensor are to be multiplied by the factor."""

    tensor: raggemm.QuantizedTensor
    factor: jax.Array

    @property
    def shape(self) -> tuple[int, ...]:
        return self.tensor.shape


def product(rows: jax.Array, weights: Any, sizes: jax.Array) -> jax.Array:
    """raggemm.gmm, of rows of bfloat16 where the weights are not float32."""
    if isinstance(weights, TwoLevels):
        return product(rows, weights.tensor, sizes) * weights.factor
    if weights.dtype != jnp.float32:
        rows = rows.astype(jnp.bfloat16)
    return raggemm.gmm(rows, weights, sizes, preferred_element_type=jnp.float32)


def _of_columns(dtype: Any) -> Callable[[jax.Array], Any]:
    return functools.partial(raggemm.quantize, dtype=dtype, axes=(1,))


def _of_blocks(dtype: Any, steps: int, scale_dtype: Any) -> Callable[[jax.Array], Any]:
    return functools.partial(raggemm.quantize, dtype=dtype, axes=(), block=(1, steps), scale_dtype=scale_dtype)


# What becomes of the matrices [experts, K, N].
FORMATS: dict[str, Callable[[jax.Array], Any]] = {
    "float32": lambda x: x,
    "bfloat16": lambda x: x.astype(jnp.bfloat16),
    "int8, a scale for each column": _of_columns(jnp.int8),
    "float8_e4m3fn, a scale for each column": _of_columns(jnp.float8_e4m3fn),
    "int4, blocks of 128": _of_blocks(jnp.int4, 128, jnp.bfloat16),
    "int4, blocks of 32": _of_blocks(jnp.int4, 32, jnp.bfloat16),
    "MXFP4": _of_blocks(jnp.float4_e2m1fn, 32, jnp.float8_e8m0fnu),
    "NVFP4": lambda x: TwoLevels(*raggemm.quantize_nvfp4(x, block=(1, 16))),
}


def quantized(parameters: dict[str, Any], name: str) -> dict[str, Any]:
    layers = [layer | {x: FORMATS[name](layer[x]) for x in EXPERTS} for layer in parameters["layers"]]
    return parameters | {"layers": layers}


def _bits(array: jax.Array) -> int:
    info = ml_dtypes.iinfo if jnp.issubdtype(array.dtype, jnp.integer) else ml_dtypes.finfo
    return array.size * info(array.dtype).bits


def bits_of_a_weight(parameters: dict[str, Any]) -> float:
    """Of the experts, scales included."""
    weights = [layer[x] for layer in parameters["layers"] for x in EXPERTS]
    elements = sum(w.shape[0] * w.shape[1] * w.shape[2] for w in weights)
    return sum(map(_bits, jax.tree.leaves(weights))) / elements


def held_out_losses(model: moe_lm.Model) -> dict[str, tuple[float, float]]:
    """Of each format: bits of a weight, and the loss in bits a byte."""
    trained, model.experts = model.state, functools.partial(by_products, product=product)
    results = {}
    for name in FORMATS:
        model.state = trained._replace(parameters=quantized(trained.parameters, name))
        results[name] = bits_of_a_weight(model.state.parameters), model.evaluate()
    model.state = trained
    return results


def table(results: dict[str, tuple[float, float]]) -> str:
    base = results["bfloat16"][1]
    lines = ["| experts' weights | bits each | loss, bits a byte | over bfloat16 |", "|---|---:|---:|---:|"]
    lines += [f"| {name} | {bits:.2f} | {loss:.4f} | {loss - base:+.4f} |" for name, (bits, loss) in results.items()]
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> dict[str, tuple[float, float]]:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    length = parser.add_mutually_exclusive_group()
    length.add_argument("--minutes", type=float, default=4.0, help="of training (default 4)")
    length.add_argument("--steps", type=int, help="of training, instead of minutes")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("moe_lm_quantized.md"), help="the table")
    options = parser.parse_args(argv)
    if not options.minutes > 0 or (options.steps is not None and options.steps < 1):
        parser.error(f"--minutes={options.minutes}, --steps={options.steps}: must be positive")
    if options.out.is_dir() or not os.access(options.out if options.out.exists() else options.out.parent, os.W_OK):
        parser.error(f"--out={options.out}: cannot be written")

    model = moe_lm.Model(Shape(), "raggemm", moe_lm.read_texts(), options.seed)
    history = moe_lm.train(model, options.steps, options.minutes)
    results = held_out_losses(model)
    text = f"After {len(history.training)} steps, on the held-out licences:\n\n{table(results)}\n"
    options.out.write_text(text)
    print(text, end="")
    return results


if __name__ == "__main__":
    main()
