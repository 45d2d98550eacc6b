"""Decodes with a checkpoint in its original files: Qwen3-MoE, Mixtral, OLMoE, DeepSeek-V2 and V3, Kimi-K2, or gpt-oss.

    .venv/bin/python python/examples/checkpoint FOLDER --prompt="Once upon a time"
    .venv/bin/python python/examples/checkpoint --random qwen3-30b-a3b --layers=4 --weights=int4

FOLDER has config.json and *.safetensors, and tokenizer.json for --prompt. Prints the text or the tokens. Unless several
processes share the experts (--processes), also prints tokens per second, the bound by memory bandwidth, and the time of
each part of a step.
"""

import argparse
import functools
import os
import pathlib
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

if "GLIBC_TUNABLES" not in os.environ:  # Makes malloc use huge pages for JAX arrays.
    os.execve(sys.executable, [sys.executable, *sys.argv], os.environ | {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"})

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))

import jax
import jax.numpy as jnp
from checkpoint import model, processes
from checkpoint.config import Config, parse_config
from checkpoint.files import Checkpoint, CheckpointError
from checkpoint.random_files import SHAPES, RandomFiles
from checkpoint.report import report, stored_bytes
from checkpoint.weights import FORMATS, Loader, parse_rows

Tree = Any


def load(loader: Loader) -> Tree:
    start, weights, layers, kinds = time.perf_counter(), loader.embedding_and_head(), [], {}
    count = len(loader.config.windows)
    for i in range(count):
        kind = i in loader.config.dense_layers
        # With random weights, all layers of a kind are copies of the first one.
        layer = jax.tree.map(jnp.copy, kinds[kind]) if kind in kinds else loader.layer(i)
        if isinstance(loader.files, RandomFiles):
            kinds[kind] = layer
        layers.append(jax.block_until_ready(layer))
        seconds = time.perf_counter() - start
        size, left = stored_bytes((weights, layers)) / 1e9, seconds / (i + 1) * (count - i - 1)
        print(f"\rlayer {i + 1} of {count}, {size:.1f} GB, {left:.0f} s left ", end="", file=sys.stderr)
    print(file=sys.stderr)
    return weights | {"layers": layers}


def greedy(run: Callable, config: Config, weights: Tree, prompt: list[int], count: int, dtype: Any) -> Iterator[int]:
    cache, start = model.empty_cache(config, len(prompt) + count, dtype), 0
    tokens = jnp.asarray(prompt, jnp.int32)
    for _ in range(count):
        end = start + len(tokens)
        tokens, cache = run(weights, cache, tokens, jnp.int32(start))
        start = end
        yield int(tokens[0])


def _parse_ids(text: str) -> list[int]:
    try:
        return [int(x) for x in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r}: must be numbers with commas, such as 1,2,3") from None


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=pathlib.Path)
    parser.add_argument(
        "--random", choices=SHAPES, help="use random weights with the shapes of this model, without a folder"
    )
    parser.add_argument("--prompt", help="text to continue; needs tokenizer.json in FOLDER and the package tokenizers")
    parser.add_argument(
        "--ids",
        type=_parse_ids,
        default=[1, 2, 3, 4],
        help="ids of tokens to continue, instead of --prompt (default 1,2,3,4)",
    )
    parser.add_argument("--tokens", type=int, default=32, help="number of tokens to decode (default 32)")
    parser.add_argument("--layers", type=int, help="number of layers to use (default all)")
    parser.add_argument(
        "--weights", choices=FORMATS, default="as-stored", help="format of the experts' weights (default as-stored)"
    )
    parser.add_argument(
        "--rows",
        type=parse_rows,
        default=(),
        metavar="int8[:N]|int8:row",
        help="quantize the rows that quantized experts multiply, in blocks of N elements (default 32) or whole rows",
    )
    parser.add_argument(
        "--processes", type=int, default=1, help="number of processes that share the experts (default 1)"
    )
    parser.add_argument("--process", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    parser.add_argument(
        "--dtype",
        choices=("bfloat16", "float32"),
        default="bfloat16",
        help="dtype of float weights and operands (default bfloat16)",
    )
    options = parser.parse_args()
    if (options.folder is None) == (options.random is None):
        parser.error("either FOLDER or --random must be given")
    if options.prompt is not None and options.random:
        parser.error("--prompt: needs the tokenizer of a FOLDER, not --random")
    for name in ("tokens", "layers", "processes"):
        if (count := getattr(options, name)) is not None and count < 1:
            parser.error(f"--{name}={count}: must be positive")
    return options


def _parse_prompt(options: argparse.Namespace, config: Config) -> tuple[list[int], Callable[[list[int]], str]]:
    ids, text = options.ids, lambda tokens: " ".join(map(str, tokens))
    if options.prompt is not None:
        try:
            from tokenizers import Tokenizer
        except ImportError:
            raise CheckpointError("--prompt: needs the package tokenizers; use --ids instead") from None
        path = options.folder / "tokenizer.json"
        if not path.exists():
            raise CheckpointError(f"{path}: does not exist, but --prompt needs it; use --ids instead")
        tokenizer = Tokenizer.from_file(str(path))
        ids, text = tokenizer.encode(options.prompt).ids, tokenizer.decode
    if wrong := [x for x in ids if not 0 <= x < config.vocabulary] or ([] if ids else ["none"]):
        raise CheckpointError(f"the prompt has token {wrong[0]}, must have at least one, in [0, {config.vocabulary})")
    return ids, text


def main() -> None:
    options = _arguments()
    files = RandomFiles() if options.random else Checkpoint(options.folder)
    config = parse_config(SHAPES[options.random] if options.random else files.config, options.layers)
    if config.experts % options.processes:
        raise CheckpointError(f"--processes={options.processes}: must divide the {config.experts} experts")
    if options.weights != "as-stored" and config.quantization.method:
        raise CheckpointError(
            f"--weights={options.weights}: experts of {config.quantization.method} cannot be requantized"
        )
    if options.processes > 1 and options.process is None:
        sys.exit(processes.run_all(options.processes))
    dtype, (prompt, text) = jnp.dtype(options.dtype), _parse_prompt(options, config)
    mesh = processes.join(options.process, options.processes, options.port) if options.processes > 1 else None
    share = options.process or 0, options.processes
    weights = load(Loader(files, config, dtype, options.weights, share, options.rows))
    if mesh:
        step, weights = processes.shard_step(config, mesh, weights)
    else:
        step = functools.partial(model.next_token, config, model.local_experts(config))
    run = jax.jit(step, donate_argnums=1)
    start, tokens = time.perf_counter(), []
    for token in greedy(run, config, weights, prompt, options.tokens, dtype):
        tokens.append(token)
        if len(tokens) == 1:
            print(f"the first token after {time.perf_counter() - start:.1f} s, with compiling", file=sys.stderr)
    print(text(tokens))
    if not mesh:
        print(report(config, weights, dtype, run, len(prompt) + options.tokens))


if __name__ == "__main__":
    try:
        main()
    except CheckpointError as error:
        sys.exit(f"checkpoint: {error}")
