"""The example that decodes checkpoints, without another implementation: the parts of a model against each other, and
what it says of a folder that is not as it must be. ./dev test --checkpoints compares it with mlx-lm."""

import functools
import json
import pathlib
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import raggemm
import tiny_checkpoints
from checkpoint import config, model
from checkpoint.files import Checkpoint, CheckpointError
from checkpoint.weights import FORMATS, Loader

EXAMPLE = pathlib.Path(__file__).parents[1] / "examples" / "checkpoint"
TOKENS = np.random.default_rng(0).integers(0, 96, 12)


def load(folder, weights="as-stored", share=(0, 1)):
    files = Checkpoint(folder)
    of = config.of(files.config)
    loader = Loader(files, of, jnp.dtype(jnp.float32), weights, share)
    return of, loader.ends() | {"layers": [loader.layer(i) for i in range(len(of.windows))]}


def logits_of(folder, weights="as-stored", parts=(12,)):
    """The tokens go in by so many at a time."""
    of, loaded = load(folder, weights)
    states = jax.jit(functools.partial(model.states, of, model.experts_here(of)))
    cache, out, start = model.empty_cache(of, 20, jnp.float32), [], 0
    for count in parts:
        x, cache = states(loaded, cache, jnp.asarray(TOKENS[start : start + count]), jnp.int32(start))
        out.append(np.asarray(model.logits(of, loaded, x)))
        start += count
    return np.concatenate(out)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """By name, each written once."""

    @functools.cache
    def folder(name):
        path = tmp_path_factory.mktemp("checkpoints") / "stored"
        of = tiny_checkpoints.CONFIGS[name]
        tiny_checkpoints.write(path, of, tiny_checkpoints.random_tensors(of, 7), shards=2)
        return path

    return folder


@pytest.mark.parametrize("name", ["gpt-oss, MXFP4", "deepseek-v2"])
def test_tokens_one_by_one_are_those_at_once(folders, name):
    np.testing.assert_allclose(
        logits_of(folders(name), parts=(5, *[1] * 7)), logits_of(folders(name)), rtol=0, atol=1e-4
    )


@pytest.mark.parametrize("name", ["qwen3-moe, AWQ", "qwen3-moe, GPTQ", "deepseek-v3, fp8", "gpt-oss, MXFP4"])
def test_quantized_ones_are_what_they_stand_for(folders, name, tmp_path):
    of = tiny_checkpoints.CONFIGS[name]
    tiny_checkpoints.write(
        tmp_path / "dense", *tiny_checkpoints.dequantized(of, tiny_checkpoints.random_tensors(of, 7))
    )
    want = logits_of(tmp_path / "dense")
    np.testing.assert_allclose(logits_of(folders(name)), want, rtol=0, atol=1e-4 * np.abs(want).max())


@pytest.mark.parametrize("weights", [name for name in FORMATS if name != "as-stored"])
def test_experts_are_quantized_when_they_are_read(tmp_path, weights):
    of = tiny_checkpoints.CONFIGS["olmoe"] | {"hidden_size": 128}
    tiny_checkpoints.write(tmp_path / "stored", of, tiny_checkpoints.random_tensors(of, 7))
    of, loaded = load(tmp_path / "stored", weights)
    assert all(layer["experts"].up.data.dtype.itemsize == 1 for layer in loaded["layers"])
    exact, got = logits_of(tmp_path / "stored"), logits_of(tmp_path / "stored", weights)
    error = np.abs(got - exact).max() / np.abs(exact).max()
    assert 0 < error < {"int8": 0.02, "int4": 0.3, "mxfp4": 0.4}[weights]


def test_a_share_of_the_experts_is_read(folders):
    whole = load(folders("mixtral"))[1]["layers"][0]["experts"].up
    part = load(folders("mixtral"), share=(1, 2))[1]["layers"][0]["experts"].up
    np.testing.assert_array_equal(raggemm.unprepack(part), raggemm.unprepack(whole)[2:])


def test_prints_tokens_and_what_memory_allows(folders):
    command = [sys.executable, EXAMPLE, folders("olmoe"), "--ids=3,4,5", "--tokens=5", "--dtype=float32"]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=300, check=True)
    tokens, plain, rate, *table = done.stdout.splitlines()
    assert len(tokens.split()) == 5 and "GB/s" in plain and "tokens/s, of at most" in rate
    assert [line.split()[0] for line in table] == ["ms", "experts", "attention", "rest", "step"]
    assert "layer 2 of 2" in done.stderr


# What is done to a folder of olmoe, and what is said then.
def _config(**changes):
    def change(folder):
        path = folder / "config.json"
        of = {**json.loads(path.read_text()), **changes}
        path.write_text(json.dumps({name: x for name, x in of.items() if x is not None}))

    return change


def _shard(folder):
    return folder / "model-00002-of-00002.safetensors"


def _cut(folder):
    _shard(folder).write_bytes(_shard(folder).read_bytes()[:-5])


def _with_header(text):
    def change(folder):
        _shard(folder).write_bytes(len(text).to_bytes(8, "little") + text)

    return change


def _index(folder):
    path = folder / "model.safetensors.index.json"
    places = json.loads(path.read_text())["weight_map"]
    path.write_text(json.dumps({"weight_map": {**places, "more": _shard(folder).name}}))


def _no_files(folder):
    for path in folder.glob("model*"):
        path.unlink()


BLOCKS = {"quant_method": "bitsandbytes", "bnb_4bit_quant_type": "nf4"}
WRONG = [
    (lambda folder: (folder / "config.json").unlink(), r"config\.json: there is no such file"),
    (lambda folder: (folder / "config.json").write_text("{"), r"config\.json: is no JSON"),
    (_config(model_type="llama"), "model_type is 'llama', must be one of qwen3_moe, mixtral"),
    (_config(num_experts=None), "has no number of experts, which olmoe needs"),
    (_config(hidden_size=None), "has no 'hidden_size', which olmoe needs"),
    (_config(rope_scaling={"type": "longrope", "factor": 2}), "rope_scaling is of type 'longrope'"),
    (_config(clip_qkv=8.0), r"clip_qkv is 8\.0, must be None of olmoe"),
    (_config(attention_bias=True), "attention_bias is True, must be False of olmoe"),
    (_config(quantization_config=BLOCKS), "quant_method is 'bitsandbytes', must be one of mxfp4, fp8, awq, gptq"),
    (_config(quantization_config={"quant_method": "gptq", "bits": 3}), "bits of gptq is 3, must be 4"),
    (
        _config(quantization_config={"quant_method": "gptq", "bits": 4, "desc_act": True}),
        "desc_act of gptq is True, must be False",
    ),
    (_no_files, r"has no file \*\.safetensors"),
    (lambda folder: _shard(folder).unlink(), r"00002\.safetensors: there is no such file"),
    (_cut, r"00002\.safetensors: has \d+ bytes, must have \d+: it was not written or copied to its end"),
    (_with_header(b'{"x": 1}'), "is no file of safetensors"),
    (_with_header(b"{"), "is no file of safetensors"),
    (lambda folder: _shard(folder).write_bytes(b"\xff" * 20), "is no file of safetensors: a header of"),
    (_index, "has no tensor more, as model.safetensors.index.json says"),
    (_config(num_hidden_layers=3), r"has no tensor model\.layers\.2\."),
    (_config(vocab_size=95), r"embed_tokens\.weight is F32 \[96, 64\], must be BF16 or F16 or F32 \[95, 64\]"),
]


@pytest.mark.parametrize(("change", "words"), WRONG, ids=range(len(WRONG)))
def test_says_what_is_wrong_with_a_folder(tmp_path, change, words):
    of = tiny_checkpoints.CONFIGS["olmoe"]
    tiny_checkpoints.write(tmp_path / "stored", of, tiny_checkpoints.random_tensors(of, 7), shards=2)
    change(tmp_path / "stored")
    with pytest.raises(CheckpointError, match=words):
        load(tmp_path / "stored")


def test_ends_with_that_sentence(tmp_path):
    done = subprocess.run([sys.executable, str(EXAMPLE), str(tmp_path)], capture_output=True, text=True, timeout=300)
    assert done.returncode == 1
    assert done.stderr == f"checkpoint: {tmp_path}/config.json: there is no such file\n"
