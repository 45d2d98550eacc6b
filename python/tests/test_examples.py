import argparse
import dataclasses
import functools
import json
import pathlib
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny_checkpoints
from checkpoint import config, model, processes
from checkpoint.files import Checkpoint, CheckpointError
from checkpoint.weights import Loader, parse_rows
from raggemm_demo import __main__ as demo
from raggemm_demo import contenders, formats, layers

EXAMPLES = pathlib.Path(__file__).parents[1] / "examples"
sys.path.insert(0, str(EXAMPLES))

import moe_lm  # noqa: E402

pytestmark = pytest.mark.slow

# A layer for quick tests.
TINY = layers.Layer(demo.GRADIENT_MODEL, "prefill", hidden=64, intermediate=96, sizes=(0, 5, 13, 0, 1, 0))


@pytest.fixture
def run_demo(monkeypatch, capsys):
    monkeypatch.setattr(demo, "wait_until_quiet", lambda: None)

    def run(layer, *flags):
        monkeypatch.setattr(demo, "recorded", lambda: [layer])
        return demo.main(flags), capsys.readouterr().out.splitlines()

    return run


def test_demo(run_demo):
    code, lines = run_demo(TINY)
    # The forward pass has 8 checks: 3 grouped products and 5 contenders. The gradient has 15: 5 results of each of
    # 3 contenders.
    assert (code, lines[-1]) == (0, "raggemm demo: OK (23 checks)")
    assert [line.split()[:3] for line in lines[2:4]] == [[TINY.model, phase, "19"] for phase in ("prefill", "grad")]


@pytest.mark.parametrize("name", formats.FORMATS)
def test_demo_of_quantized_weights(run_demo, name):
    code, lines = run_demo(TINY, f"--weights={name}")
    assert (code, lines[-1]) == (0, "raggemm demo: OK (8 checks)")


@pytest.mark.parametrize("name", ["gmm", "ragged_dot", "fused_block", "_dot"])
def test_demo_fails_when_a_contender_is_wrong(run_demo, name, monkeypatch):
    right = getattr(contenders, name)
    monkeypatch.setattr(contenders, name, lambda *operands: right(*operands) * 1.02)
    code, lines = run_demo(dataclasses.replace(TINY, model="tiny"))
    assert (code, lines[-1]) == (1, "raggemm demo: FAILED")


def test_moe_lm(monkeypatch, capsys):
    tiny = moe_lm.Shape(layers=1, width=16, heads=2, experts=32, hidden=16, context=32)
    monkeypatch.setattr(moe_lm, "Shape", lambda: tiny)
    loss = moe_lm.main(["--steps=2"])
    assert f"after 2 steps: {loss!r}" in capsys.readouterr().out


# Tests of tiny checkpoints. `./dev test --checkpoints` compares their results with mlx-lm.


def logits_of(folder, parts=(12,), rows=()):
    """Returns the logits of 12 tokens.

    parts: tokens in each call, which uses the cache of earlier calls. rows: see Loader.
    """
    files = Checkpoint(folder)
    model_config = config.parse_config(files.config)
    loader = Loader(files, model_config, jnp.dtype(jnp.float32), "as-stored", (0, 1), rows)
    weights = loader.embedding_and_head() | {"layers": [loader.layer(i) for i in range(len(model_config.windows))]}
    states = jax.jit(functools.partial(model.states, model_config, model.local_experts(model_config)))
    tokens = np.random.default_rng(0).integers(0, 96, 12)
    cache, out, start = model.empty_cache(model_config, 20, jnp.float32), [], 0
    for count in parts:
        x, cache = states(weights, cache, jnp.asarray(tokens[start : start + count]), jnp.int32(start))
        out.append(np.asarray(model.logits(model_config, weights, x)))
        start += count
    return np.concatenate(out)


def write_checkpoint(folder, name):
    model_config = tiny_checkpoints.CONFIGS[name]
    tensors = tiny_checkpoints.random_tensors(model_config, 7)
    tiny_checkpoints.write(folder / "stored", model_config, tensors, shards=2)
    return model_config, tensors


@pytest.mark.parametrize("name", [n for n, x in tiny_checkpoints.CONFIGS.items() if "quantization_config" in x])
def test_quantized_checkpoints_match_dequantized_ones(tmp_path, name):
    tiny_checkpoints.write(tmp_path / "dense", *tiny_checkpoints.dequantized(*write_checkpoint(tmp_path, name)))
    want = logits_of(tmp_path / "dense")
    for parts in ((12,), (5, *[1] * 7)):
        np.testing.assert_allclose(logits_of(tmp_path / "stored", parts), want, rtol=0, atol=1e-4 * np.abs(want).max())


def test_partial_blocks_of_checkpoints_stay_quantized(tmp_path):
    write_checkpoint(tmp_path, "deepseek-v3, partial fp8")
    files = Checkpoint(tmp_path / "stored")
    layer = Loader(files, config.parse_config(files.config), jnp.dtype(jnp.float32)).layer(1)
    assert {w.dtype for w in (layer["experts"].up, layer["experts"].down, layer["attention"]["kv_a"]["w"])} == {
        np.dtype(jnp.float8_e4m3fn)
    }


def test_errors_of_act_order(tmp_path):
    model_config, tensors = write_checkpoint(tmp_path, "qwen3-moe, GPTQ act order")
    name = "model.layers.0.self_attn.q_proj.g_idx"
    tiny_checkpoints.write(tmp_path / "uneven", model_config, tensors | {name: np.minimum(tensors[name], 1)})
    with pytest.raises(CheckpointError, match=rf"^{name}: must have 16 elements in each block"):
        logits_of(tmp_path / "uneven")
    files = Checkpoint(tmp_path / "stored")
    model_config = config.parse_config(files.config)
    layer = Loader(files, model_config, jnp.dtype(jnp.float32)).layer(0)
    with pytest.raises(CheckpointError, match=r"^--processes: the experts have act order \(g_idx\)"):
        processes.shard_step(model_config, None, {"layers": [layer]})


@pytest.mark.parametrize("name", ["qwen3-moe", "mixtral"])
def test_merged_experts_of_checkpoints(tmp_path, name):
    model_config, tensors = write_checkpoint(tmp_path, name)
    tiny_checkpoints.write(tmp_path / "merged", model_config, tiny_checkpoints.merge_experts(tensors))
    want, got = logits_of(tmp_path / "stored"), logits_of(tmp_path / "merged")
    np.testing.assert_allclose(got, want, rtol=0, atol=1e-5 * np.abs(want).max())


@pytest.mark.parametrize("text", ["int8", "int8:64", "int8:row"])
def test_rounded_rows_of_checkpoints(tmp_path, text):
    """The logits differ from those of unrounded rows, but by little."""
    for name in ("qwen3-moe, GPTQ", "gpt-oss, MXFP4"):
        write_checkpoint(tmp_path / name, name)
        want, got = (logits_of(tmp_path / name / "stored", rows=rows) for rows in ((), parse_rows(text)))
        assert 1e-4 < np.abs(got - want).max() / np.abs(want).max() < 0.1
    write_checkpoint(tmp_path, "olmoe")
    with pytest.raises(CheckpointError, match="--rows: experts are float32, must be integers or float4_e2m1fn"):
        logits_of(tmp_path / "stored", rows=parse_rows(text))


@pytest.mark.parametrize("text", ["", "int4", "int8:", "int8:0", "int8:48", "int8:-32", "int8:all"])
def test_wrong_rows_of_checkpoints(text):
    with pytest.raises(argparse.ArgumentTypeError, match="must be int8, int8:N with a multiple N of 32, or int8:row"):
        parse_rows(text)


def with_groups(*changes, **last):
    """Returns a change of config.json: compressed-tensors with a group of weights for each of `changes` and `last`."""
    scheme = {"num_bits": 4, "strategy": "group", "group_size": 16}
    groups = {str(i): {"weights": scheme | group} for i, group in enumerate((*changes, last))}
    stored = {"quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": groups}
    return {"quantization_config": stored}


def test_wrong_checkpoints_are_errors(tmp_path):
    write_checkpoint(tmp_path, "olmoe")
    folder = tmp_path / "stored"
    shard = folder / "model-00002-of-00002.safetensors"
    whole, model_config = shard.read_bytes(), json.loads((folder / "config.json").read_text())
    for content, message in (
        (whole[:-5], r"00002\.safetensors: has \d+ bytes, must have \d+"),
        (b"\xff" * 20, "is no file of safetensors: a header of"),
    ):
        shard.write_bytes(content)
        with pytest.raises(CheckpointError, match=message):
            logits_of(folder)
    shard.write_bytes(whole)
    for changes, message in (
        ({"model_type": "llama"}, "model_type is 'llama', must be one of qwen3_moe, mixtral"),
        ({"num_attention_heads": 0}, "num_attention_heads is 0, must be a positive integer"),
        (with_groups(num_bits=3), r"weights of compressed-tensors are \('pack-quantized', 'int', 3\), must be one of "),
        (with_groups(group_size=0), r"blocks of the strategy 'group' are \[1, 0\], must be positive"),
        (with_groups({}, num_bits=8), "config_groups have different values of num_bits, which must be the same"),
        ({"num_hidden_layers": 3}, r"has no tensor model\.layers\.2\."),
    ):
        (folder / "config.json").write_text(json.dumps(model_config | changes))
        with pytest.raises(CheckpointError, match=message):
            logits_of(folder)
