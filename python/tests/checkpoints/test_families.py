"""Compares the checkpoint example with mlx-lm: logits and greedy tokens.

mlx-lm gets quantized checkpoints dequantized to float32, except for MXFP4. `./dev test --checkpoints` runs these tests.
"""

import functools
import os
import pathlib
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny_checkpoints
from checkpoint import config, model
from checkpoint.files import Checkpoint
from checkpoint.weights import Loader

MLX = os.environ.get("RAGGEMM_MLX_PYTHON")
EXAMPLE = pathlib.Path(__file__).parents[2] / "examples" / "checkpoint"
PROMPT, COUNT = 24, 32
TOLERANCE = 1e-4  # largest permitted error of a logit, divided by the largest logit


def example_result(folder, tokens):
    files = Checkpoint(folder)
    model_config = config.parse_config(files.config)
    loader = Loader(files, model_config, jnp.dtype(jnp.float32))
    weights = loader.embedding_and_head() | {"layers": [loader.layer(i) for i in range(len(model_config.windows))]}
    experts, cache = model.local_experts(model_config), model.empty_cache(model_config, PROMPT + COUNT, jnp.float32)
    states = jax.jit(functools.partial(model.states, model_config, experts))
    x, cache = states(weights, cache, jnp.asarray(tokens), jnp.int32(0))
    logits = model.logits(model_config, weights, x)
    step = jax.jit(functools.partial(model.next_token, model_config, experts))
    greedy = [jnp.argmax(logits[-1:], -1)]
    for i in range(COUNT - 1):
        token, cache = step(weights, cache, greedy[-1], jnp.int32(PROMPT + i))
        greedy.append(token)
    return np.asarray(logits), [int(token[0]) for token in greedy]


def mlx_result(folder, tokens, out):
    command = [MLX, pathlib.Path(__file__).with_name("mlx_oracle.py"), folder, out, COUNT, *tokens]
    subprocess.run(list(map(str, command)), check=True, timeout=300)
    found = np.load(out)
    return found["logits"], found["greedy"].tolist()


def to_mlx_layout(tensors):
    """Converts gpt-oss' float experts to mlx-lm's layout: gate and up are separate, and matrices are [E,N,K]."""
    out = dict(tensors)
    for name in tensors:
        if name.endswith("gate_up_proj"):
            weight, bias = out.pop(name).swapaxes(1, 2), out.pop(f"{name}_bias")
            for i, word in enumerate(("gate_proj", "up_proj")):
                base = name.replace("gate_up_proj", word)
                out |= {f"{base}.weight": weight[:, i::2], f"{base}.bias": bias[:, i::2]}
        elif name.endswith("experts.down_proj"):
            out |= {f"{name}.weight": out.pop(name).swapaxes(1, 2), f"{name}.bias": out.pop(f"{name}_bias")}
    return out


@pytest.mark.parametrize("name", tiny_checkpoints.CONFIGS)
def test_logits_and_tokens_match_mlx(name, tmp_path, capsys):
    assert MLX, "RAGGEMM_MLX_PYTHON must be the Python of an environment with mlx-lm; ./dev test --checkpoints sets it"
    model_config, seed = tiny_checkpoints.CONFIGS[name], int(np.random.SeedSequence().entropy % 2**32)
    print(f"seed {seed}")
    tensors = tiny_checkpoints.random_tensors(model_config, seed)
    stored = tiny_checkpoints.merge_experts(tensors) if "v5" in name else tensors
    tiny_checkpoints.write(tmp_path / "stored", model_config, stored, shards=3)
    mlx_folder = tmp_path / "stored"
    if "v5" in name:
        mlx_folder = tmp_path / "separate"
        tiny_checkpoints.write(mlx_folder, model_config, tensors)
    elif "quantization_config" in model_config and "MXFP4" not in name:  # mlx-lm reads MXFP4
        mlx_folder = tmp_path / "dequantized"
        tiny_checkpoints.write(mlx_folder, *tiny_checkpoints.dequantized(model_config, tensors))
    elif name == "gpt-oss":
        mlx_folder = tmp_path / "converted"
        tiny_checkpoints.write(mlx_folder, model_config, to_mlx_layout(tensors))
    tokens = np.random.default_rng(seed).integers(0, model_config["vocab_size"], PROMPT)
    got, greedy = example_result(tmp_path / "stored", tokens)
    want, want_greedy = mlx_result(mlx_folder, tokens, tmp_path / "out.npz")
    distance = np.abs(got - want).max() / np.abs(want).max()
    with capsys.disabled():
        equal = sum(a == b for a, b in zip(greedy, want_greedy, strict=True))
        print(f"\n{name:20} logits differ by {distance:.1e} of the largest, {equal} of {COUNT} tokens equal")
    assert distance <= TOLERANCE and greedy == want_greedy


def test_two_processes_decode_the_same_tokens(tmp_path):
    model_config = tiny_checkpoints.CONFIGS["gpt-oss, MXFP4"]
    tiny_checkpoints.write(tmp_path / "stored", model_config, tiny_checkpoints.random_tensors(model_config, 1))
    command = [sys.executable, str(EXAMPLE), str(tmp_path / "stored"), "--dtype=float32", "--tokens=16", "--ids=5,6,7"]
    one, two = (
        subprocess.run([*command, f"--processes={n}"], check=True, capture_output=True, text=True, timeout=300).stdout
        for n in (1, 2)
    )
    assert len(one.splitlines()[0].split()) == 16
    assert two.splitlines()[-1] == one.splitlines()[0]  # gloo prints lines before.
