"""The example that decodes checkpoints, without another implementation: the parts of a model against each other, and
what it says of a folder that is not as it must be. ./dev test --checkpoints compares it with mlx-lm."""

import functools
import json
import math
import pathlib
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import raggemm
import tiny_checkpoints
from checkpoint import config, model, random_files
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


@pytest.mark.parametrize("name", [n for n, of in tiny_checkpoints.CONFIGS.items() if "quantization_config" in of])
def test_quantized_ones_are_what_they_stand_for(folders, name, tmp_path):
    of = tiny_checkpoints.CONFIGS[name]
    tiny_checkpoints.write(
        tmp_path / "dense", *tiny_checkpoints.dequantized(of, tiny_checkpoints.random_tensors(of, 7))
    )
    want = logits_of(tmp_path / "dense")
    np.testing.assert_allclose(logits_of(folders(name)), want, rtol=0, atol=1e-4 * np.abs(want).max())


@pytest.mark.parametrize("size", [-1, 16])
def test_gptq_of_one_block_and_in_order_alone(tmp_path, size):
    of = tiny_checkpoints.CONFIGS["qwen3-moe, GPTQ"]
    of = of | {"quantization_config": of["quantization_config"] | {"group_size": size}}
    tensors = tiny_checkpoints.random_tensors(of, 7)
    name, places = "model.layers.0.self_attn.q_proj.g_idx", np.arange(64, dtype=np.int32) // (size % 65)
    tiny_checkpoints.write(tmp_path / "in order", of, tensors | {name: places})
    assert np.isfinite(logits_of(tmp_path / "in order")).all()
    tiny_checkpoints.write(tmp_path / "not", of, tensors | {name: places[::-1] + (size == -1)})
    with pytest.raises(CheckpointError, match=r"q_proj\.g_idx: blocks are not in order"):
        load(tmp_path / "not")


def test_experts_of_gpt_oss_in_floats_are_quantized(folders):
    exact = logits_of(folders("gpt-oss"))
    error = np.abs(logits_of(folders("gpt-oss"), "int8") - exact).max() / np.abs(exact).max()
    assert 0 < error < 0.02


def mscale(factor, by=1):
    return 0.1 * by * math.log(factor) + 1


# config.json of models that people know, as far as it matters here, and what it says.
GPT_OSS_20B = random_files.SHAPES["gpt-oss-20b"]
DEEPSEEK_V3 = {
    "model_type": "deepseek_v3",
    "hidden_size": 7168,
    "num_hidden_layers": 61,
    "num_attention_heads": 128,
    "vocab_size": 129280,
    "intermediate_size": 18432,
    "moe_intermediate_size": 2048,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "num_experts_per_tok": 8,
    "first_k_dense_replace": 3,
    "n_group": 8,
    "topk_group": 4,
    "topk_method": "noaux_tc",
    "norm_topk_prob": True,
    "routed_scaling_factor": 2.5,
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "rope_scaling": {
        "type": "yarn",
        "factor": 40,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
        "original_max_position_embeddings": 4096,
    },
    "quantization_config": {
        "quant_method": "fp8",
        "fmt": "e4m3",
        "activation_scheme": "dynamic",
        "weight_block_size": [128, 128],
    },
}
V3_ROUTING = {"score": "sigmoid", "num_groups": 8, "group_top_k": 4, "renormalize": True, "scaling_factor": 2.5}
V2_LITE = random_files.SHAPES["deepseek-v2-lite"]
KNOWN = [
    (
        GPT_OSS_20B,
        {"windows": (128, None) * 12, "magnitude": mscale(32), "score_scale": 1 / 8, "dense_layers": frozenset()},
        {},
    ),
    (
        DEEPSEEK_V3,
        {"magnitude": 1, "score_scale": 192**-0.5 * mscale(40) ** 2, "dense_layers": {0, 1, 2}, "shared_hidden": 2048},
        V3_ROUTING,
    ),
    (V2_LITE, {"score_scale": 192**-0.5}, {"pre_softmax": True, "renormalize": False, "scaling_factor": 1.0}),
    (
        V2_LITE | {"norm_topk_prob": True, "routed_scaling_factor": 16.0},
        {},
        {"pre_softmax": True, "renormalize": True, "scaling_factor": 1.0},
    ),
    (random_files.SHAPES["mixtral-8x7b"], {"windows": (None,) * 32, "head_dim": 128, "kv_heads": 8}, {}),
    (
        random_files.SHAPES["qwen3-30b-a3b"] | {"sliding_window": 64, "use_sliding_window": False},
        {"windows": (None,) * 48, "score_scale": 128**-0.5},
        {"pre_softmax": True, "renormalize": True},
    ),
]


@pytest.mark.parametrize(("given", "wanted", "routing"), KNOWN, ids=range(len(KNOWN)))
def test_what_a_config_says(given, wanted, routing):
    found = config.of(given)
    assert {name: getattr(found, name) for name in wanted} == {
        name: pytest.approx(x) if isinstance(x, float) else x for name, x in wanted.items()
    }
    assert dict(found.routing) == routing


@pytest.mark.parametrize("truncate", [True, False])
def test_frequencies_of_gpt_oss(truncate):
    """Those between the two pairs that turn 32 times and once within 4096 positions are a mixture."""
    scaling = GPT_OSS_20B["rope_scaling"] | {"truncate": truncate}
    found = np.array(config.of(GPT_OSS_20B | {"rope_scaling": scaling}).frequencies)
    plain = 150000.0 ** (-np.arange(32) / 32)
    low, high = (32 * math.log(4096 / (n * 2 * math.pi)) / math.log(150000) for n in (32, 1))
    low, high = (math.floor(low), math.ceil(high)) if truncate else (low, high)
    slow = np.clip((np.arange(32) - low) / (high - low), 0, 1)
    np.testing.assert_allclose(found, plain * (1 - slow) + plain / 32 * slow, rtol=1e-12)
    assert found[0] == 1 and np.isclose(found[-1] * 32, plain[-1])


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


def _tensors(**changes):
    """A header with a tensor x of 8 bytes, of which some fields are others, or with two."""

    def change(folder):
        x = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8], **changes}
        twins = f'"x": {json.dumps(x)}, ' if not changes else ""
        text = f'{{{twins}"x": {json.dumps(x)}}}'.encode()
        _shard(folder).write_bytes(len(text).to_bytes(8, "little") + text + bytes(8))

    return change


def _outside(folder):
    path = folder / "model.safetensors.index.json"
    path.write_text(json.dumps({"weight_map": {"lm_head.weight": "../model.safetensors"}}))


def _index(folder):
    path = folder / "model.safetensors.index.json"
    places = json.loads(path.read_text())["weight_map"]
    path.write_text(json.dumps({"weight_map": {**places, "more": _shard(folder).name}}))


def _no_files(folder):
    for path in folder.glob("model*"):
        path.unlink()


GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 16, "desc_act": False}
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
    (_tensors(), "two are called x"),
    (_tensors(data_offsets=[-8, 0]), "offsets -8 to 0 of shape"),
    (_tensors(data_offsets=[0]), "is no file of safetensors"),
    (_tensors(shape=[3]), r"8 bytes for F32 \[3\]"),
    (_tensors(data_offsets=[4, 12]), "a tensor begins at 4, must at 0"),
    (_tensors(shape=[2.0]), r"of shape \[2\.0\]"),
    (_outside, "weight_map must have the name of a file in this folder"),
    (lambda folder: (folder / "config.json").write_text("[" * 100000), r"config\.json: is no JSON"),
    (_config(num_attention_heads=0), "num_attention_heads is 0, must be a positive integer"),
    (_config(layer_types=["linear_attention"]), "layer_types has 'linear_attention'"),
    (_config(rope_scaling="yarn"), "a field of it is not as olmoe needs it"),
    (_config(quantization_config=GPTQ | {"checkpoint_format": "marlin"}), "checkpoint_format is 'marlin'"),
    (_config(quantization_config=GPTQ | {"group_size": 0}), "blocks of gptq"),
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


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--ids=a,b"], "'a,b': must be numbers with commas"),
        (["--ids=96"], "the prompt has token 96, must have some in [0, 96)"),
        (["--processes=3"], "--processes=3: must divide the 8 experts"),
        (["--weights=int4"], "--weights=int4: experts of mxfp4 stay as they are"),
        (["--random=olmoe-1b-7b"], "either FOLDER or --random must be given"),
        (["--prompt=x"], "--prompt"),
    ],
)
def test_says_what_is_wrong_with_arguments(folders, arguments, words):
    command = [sys.executable, str(EXAMPLE), str(folders("gpt-oss, MXFP4")), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode and words in done.stderr and "Traceback" not in done.stderr


def test_ends_with_that_sentence(tmp_path):
    done = subprocess.run([sys.executable, str(EXAMPLE), str(tmp_path)], capture_output=True, text=True, timeout=300)
    assert done.returncode == 1
    assert done.stderr == f"checkpoint: {tmp_path}/config.json: there is no such file\n"
