"""The example that decodes checkpoints against mlx-lm, an implementation that is not ours: logits, and greedy tokens.

`./dev test --checkpoints` runs this, and names the interpreter that has mlx-lm. Quantized checkpoints are compared with
what they stand for in float32.
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
TOLERANCE = 1e-4  # of the largest logit


def ours(folder, tokens):
    files = Checkpoint(folder)
    of = config.parse_config(files.config)
    loader = Loader(files, of, jnp.dtype(jnp.float32))
    weights = loader.embedding_and_head() | {"layers": [loader.layer(i) for i in range(len(of.windows))]}
    experts, cache = model.local_experts(of), model.empty_cache(of, PROMPT + COUNT, jnp.float32)
    states = jax.jit(functools.partial(model.states, of, experts))
    x, cache = states(weights, cache, jnp.asarray(tokens), jnp.int32(0))
    logits, step = model.logits(of, weights, x), jax.jit(functools.partial(model.next_token, of, experts))
    greedy = [jnp.argmax(logits[-1:], -1)]
    for i in range(COUNT - 1):
        token, cache = step(weights, cache, greedy[-1], jnp.int32(PROMPT + i))
        greedy.append(token)
    return np.asarray(logits), [int(token[0]) for token in greedy]


def of_mlx(folder, tokens, out):
    command = [MLX, pathlib.Path(__file__).with_name("mlx_oracle.py"), folder, out, COUNT, *tokens]
    subprocess.run(list(map(str, command)), check=True, timeout=300)
    found = np.load(out)
    return found["logits"], found["greedy"].tolist()


def as_mlx_names_them(tensors):
    """The experts of gpt-oss in floats, which mlx-lm takes as it writes them alone: gate and up apart, [E,N,K]."""
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
def test_logits_and_tokens_are_those_of_mlx(name, tmp_path, capsys):
    assert MLX, "RAGGEMM_MLX_PYTHON must be the Python of an environment with mlx-lm; ./dev test --checkpoints sets it"
    of, seed = tiny_checkpoints.CONFIGS[name], int(np.random.SeedSequence().entropy % 2**32)
    print(f"seed {seed}")
    tensors = tiny_checkpoints.random_tensors(of, seed)
    tiny_checkpoints.write(tmp_path / "stored", of, tensors, shards=3)
    theirs = tmp_path / "stored"
    if "quantization_config" in of and "MXFP4" not in name:  # which mlx-lm reads as it is
        theirs = tmp_path / "dequantized"
        tiny_checkpoints.write(theirs, *tiny_checkpoints.dequantized(of, tensors))
    elif name == "gpt-oss":
        theirs = tmp_path / "converted"
        tiny_checkpoints.write(theirs, of, as_mlx_names_them(tensors))
    tokens = np.random.default_rng(seed).integers(0, of["vocab_size"], PROMPT)
    (got, greedy), (want, want_greedy) = ours(tmp_path / "stored", tokens), of_mlx(theirs, tokens, tmp_path / "out.npz")
    distance = np.abs(got - want).max() / np.abs(want).max()
    with capsys.disabled():
        equal = sum(a == b for a, b in zip(greedy, want_greedy, strict=True))
        print(f"\n{name:20} logits differ by {distance:.1e} of the largest, {equal} of {COUNT} tokens equal")
    assert distance <= TOLERANCE and greedy == want_greedy


def test_decodes_the_same_in_two_processes(tmp_path):
    of = tiny_checkpoints.CONFIGS["gpt-oss, MXFP4"]
    tiny_checkpoints.write(tmp_path / "stored", of, tiny_checkpoints.random_tensors(of, 1))
    command = [sys.executable, str(EXAMPLE), str(tmp_path / "stored"), "--dtype=float32", "--tokens=16", "--ids=5,6,7"]
    one, two = (
        subprocess.run([*command, f"--processes={n}"], check=True, capture_output=True, text=True, timeout=300).stdout
        for n in (1, 2)
    )
    assert len(one.splitlines()[0].split()) == 16
    assert two.splitlines()[-1] == one.splitlines()[0]  # behind what gloo says
