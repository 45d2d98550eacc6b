"""A short run of each example, of the demo and of its benchmark on tiny layers, and that a wrong product fails."""

import dataclasses
import functools
import json
import pathlib
import subprocess
import sys

import equinox
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny_checkpoints
from checkpoint import config, model
from checkpoint.files import Checkpoint, CheckpointError
from checkpoint.weights import Loader
from raggemm import nn
from raggemm.ops import gmm
from raggemm_demo import __main__ as demo
from raggemm_demo import bench_jax, contenders, formats, layers, programs
from raggemm_demo.programs import Limits

EXAMPLES = pathlib.Path(__file__).parents[1] / "examples"
sys.path.insert(0, str(EXAMPLES))

import decode  # noqa: E402
import moe_equinox  # noqa: E402
import moe_lm  # noqa: E402
import moe_lm_model  # noqa: E402

pytestmark = pytest.mark.slow

# An idle expert first, last and in between; the largest size is padded by 3.
TINY = layers.Layer(demo.GRADIENT_MODEL, "prefill", hidden=64, intermediate=96, sizes=(0, 5, 13, 0, 1, 0))


@pytest.fixture
def run_demo(monkeypatch, tmp_path, capsys):
    """Runs the demo or the benchmark on a layer: the exit code, the lines that it printed, and its JSON."""
    monkeypatch.setattr(programs, "wait_until_quiet", lambda: None)

    def run(program, layer, *flags):
        monkeypatch.setattr(program, "recorded_layers", lambda: [layer])
        monkeypatch.setattr(program, "LIMITS", Limits(1000.0, 2**30))
        code = program.main([f"--json={tmp_path / 'rows.json'}", *flags])
        return code, capsys.readouterr().out.splitlines(), json.loads((tmp_path / "rows.json").read_text())

    return run


def test_demo(run_demo):
    code, lines, [row] = run_demo(demo, TINY)
    assert (code, lines[-1]) == (0, "raggemm demo: OK (18 checks)")
    assert row == row | {"model": TINY.model, "phase": "prefill", "rows": 19, "active": 3, "experts": 6}
    assert 0 < row["max_error"] <= 1


@pytest.mark.parametrize("name", formats.FORMATS)
def test_demo_of_quantized_weights(run_demo, name):
    code, lines, [row] = run_demo(demo, TINY, f"--weights={name}")
    assert (code, lines[-1]) == (0, "raggemm demo: OK (6 checks)")
    assert row["weights"] == name and 0 < row["max_error"] <= 1


def test_demo_fails_when_a_product_is_wrong(run_demo, monkeypatch):
    monkeypatch.setattr(contenders, "gmm", lambda *operands: gmm(*operands).at[-1].multiply(1.01))
    monkeypatch.setattr(demo, "gmm", contenders.gmm)
    code, lines, [row] = run_demo(demo, dataclasses.replace(TINY, model="tiny", phase="decode"))
    assert (code, lines[-1]) == (1, "raggemm demo: FAILED")
    assert row["max_error"] > 1 and "tiny decode, gate: error is" in "\n".join(lines)


def test_benchmark_of_the_demo(run_demo):
    code, lines, rows = run_demo(bench_jax, TINY)
    assert (code, lines[-1][:22]) == (0, "raggemm bench_jax: OK ")
    assert [row["direction"] for row in rows] == ["forward", "forward+backward"]
    for row in rows:
        assert list(row["contenders"]) == [*contenders.CONTENDERS, bench_jax.UNROLLED]


def test_decode(monkeypatch, capsys):
    tiny = decode.Shape(width=256, hidden=128, experts=32, top_k=4, vocabulary=50)
    monkeypatch.setattr(decode, "Shape", lambda: tiny)
    monkeypatch.setattr(decode, "PASS_BYTES", 1 << 20)
    medians = decode.main(["--weights=bf16", "--layers=2", "--tokens=3", "--steps=2", "--ragged-dot"])
    lines = capsys.readouterr().out.splitlines()
    assert [line[:18].rstrip() for line in lines[4:]] == list(decode.EXPERTS)
    assert min(medians.seconds.values()) > 0


def test_moe_lm(monkeypatch, tmp_path, capsys):
    tiny = moe_lm_model.Shape(layers=1, width=16, heads=2, experts=32, hidden=16, context=32)
    monkeypatch.setattr(moe_lm, "Shape", lambda: tiny)
    loss = moe_lm.main(["--steps=2", f"--png={tmp_path / 'loss.png'}"])
    assert f"after 2 steps: {loss!r}" in capsys.readouterr().out


def test_moe_equinox():
    losses = moe_equinox.main(["--steps=12"])
    assert len(losses) == 12 and losses[-1] < 0.4 * losses[0]
    layer = moe_equinox.MoE(nn.Shape(width=32, hidden=8, num_experts=4), 2, jax.random.key(1))
    x, _ = moe_equinox.batch(jax.random.key(2))
    np.testing.assert_array_equal(
        equinox.filter_jit(layer)(x).out, jax.jit(nn.apply, static_argnums=2)(layer.params, x, 2).out
    )


# Checkpoints. ./dev test --checkpoints compares them with mlx-lm.


def logits_of(folder, parts=(12,)):
    """Logits of twelve tokens that go in by so many at a time."""
    files = Checkpoint(folder)
    of = config.of(files.config)
    loader = Loader(files, of, jnp.dtype(jnp.float32), "as-stored", (0, 1))
    weights = loader.ends() | {"layers": [loader.layer(i) for i in range(len(of.windows))]}
    states = jax.jit(functools.partial(model.states, of, model.experts_here(of)))
    tokens = np.random.default_rng(0).integers(0, 96, 12)
    cache, out, start = model.empty_cache(of, 20, jnp.float32), [], 0
    for count in parts:
        x, cache = states(weights, cache, jnp.asarray(tokens[start : start + count]), jnp.int32(start))
        out.append(np.asarray(model.logits(of, weights, x)))
        start += count
    return np.concatenate(out)


def stored(folder, name):
    of = tiny_checkpoints.CONFIGS[name]
    tensors = tiny_checkpoints.random_tensors(of, 7)
    tiny_checkpoints.write(folder / "stored", of, tensors, shards=2)
    return of, tensors


@pytest.mark.parametrize("name", [n for n, of in tiny_checkpoints.CONFIGS.items() if "quantization_config" in of])
def test_quantized_checkpoints_are_what_they_stand_for(tmp_path, name):
    tiny_checkpoints.write(tmp_path / "dense", *tiny_checkpoints.dequantized(*stored(tmp_path, name)))
    want = logits_of(tmp_path / "dense")
    for parts in ((12,), (5, *[1] * 7)):
        np.testing.assert_allclose(logits_of(tmp_path / "stored", parts), want, rtol=0, atol=1e-4 * np.abs(want).max())


def test_a_program_decodes_a_checkpoint(tmp_path):
    stored(tmp_path, "olmoe")
    command = [
        sys.executable,
        EXAMPLES / "checkpoint",
        tmp_path / "stored",
        "--ids=3,4,5",
        "--tokens=5",
        "--dtype=float32",
    ]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=300, check=True)
    tokens, plain, *_ = done.stdout.splitlines()
    assert len(tokens.split()) == 5 and "GB/s" in plain


def test_wrong_checkpoints_are_errors(tmp_path):
    stored(tmp_path, "olmoe")
    folder = tmp_path / "stored"
    shard = folder / "model-00002-of-00002.safetensors"
    whole, of = shard.read_bytes(), json.loads((folder / "config.json").read_text())
    for content, words in (
        (whole[:-5], r"00002\.safetensors: has \d+ bytes, must have \d+"),
        (b"\xff" * 20, "is no file of safetensors: a header of"),
    ):
        shard.write_bytes(content)
        with pytest.raises(CheckpointError, match=words):
            logits_of(folder)
    shard.write_bytes(whole)
    for changes, words in (
        ({"model_type": "llama"}, "model_type is 'llama', must be one of qwen3_moe, mixtral"),
        ({"num_attention_heads": 0}, "num_attention_heads is 0, must be a positive integer"),
        ({"num_hidden_layers": 3}, r"has no tensor model\.layers\.2\."),
    ):
        (folder / "config.json").write_text(json.dumps(of | changes))
        with pytest.raises(CheckpointError, match=words):
            logits_of(folder)
