"""Writes tiny checkpoints with random weights in the layouts of each family of models."""

import json
import pathlib
import sys
from collections.abc import Callable

import ml_dtypes
import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "examples"))

from checkpoint import config
from checkpoint.files import DTYPES
from checkpoint.random_files import RandomFiles
from checkpoint.weights import Loader

_SHAPE = {
    "vocab_size": 96,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 512,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
}
_YARN = {"type": "yarn", "factor": 4, "original_max_position_embeddings": 64, "beta_fast": 32, "beta_slow": 1}
_QWEN3 = _SHAPE | {
    "model_type": "qwen3_moe",
    "num_hidden_layers": 3,
    "num_experts": 8,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 32,
    "head_dim": 32,
    "norm_topk_prob": True,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [1],
}
_MIXTRAL = _SHAPE | {"model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2}
_OLMOE = _SHAPE | {
    "model_type": "olmoe",
    "num_experts": 8,
    "num_experts_per_tok": 3,
    "rope_scaling": {"type": "linear", "factor": 2},
}
_DEEPSEEK = _SHAPE | {
    "num_hidden_layers": 3,
    "num_key_value_heads": 4,
    "moe_intermediate_size": 32,
    "n_shared_experts": 2,
    "n_routed_experts": 16,
    "num_experts_per_tok": 4,
    "n_group": 4,
    "topk_group": 2,
    "first_k_dense_replace": 1,
    "moe_layer_freq": 1,
    "kv_lora_rank": 32,
    "q_lora_rank": 48,
    "qk_rope_head_dim": 16,
    "qk_nope_head_dim": 24,
    "v_head_dim": 24,
    "rope_scaling": _YARN | {"mscale": 1.0, "mscale_all_dim": 0.707},
}
_V2 = _DEEPSEEK | {"model_type": "deepseek_v2", "norm_topk_prob": False, "q_lora_rank": None}
_V3 = _DEEPSEEK | {
    "model_type": "deepseek_v3",
    "norm_topk_prob": True,
    "topk_method": "noaux_tc",
    "scoring_func": "sigmoid",
    "routed_scaling_factor": 2.5,
}
_GPT_OSS = _SHAPE | {
    "model_type": "gpt_oss",
    "intermediate_size": 64,
    "head_dim": 32,
    "num_local_experts": 8,
    "num_experts_per_tok": 3,
    "sliding_window": 8,
    "layer_types": ["sliding_attention", "full_attention"],
    "rope_scaling": _YARN | {"factor": 32.0, "truncate": True},
}
_GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 16, "desc_act": False}


def _compressed(form: str, bits: int, strategy: str, kind: str = "int", **more: object) -> dict:
    """Returns a quantization_config of compressed-tensors."""
    weights = {"num_bits": bits, "type": kind, "strategy": strategy, "symmetric": True, "group_size": None}
    groups = {"group_0": {"targets": ["Linear"], "weights": weights | more, "input_activations": None}}
    return {"quant_method": "compressed-tensors", "format": form, "config_groups": groups, "ignore": ["lm_head"]}


CONFIGS = {
    "qwen3-moe": _QWEN3,
    "qwen3-moe, tied": _QWEN3 | {"tie_word_embeddings": True, "decoder_sparse_step": 2, "mlp_only_layers": []},
    "qwen3-moe, Transformers v5": _QWEN3,
    "qwen3-moe, AWQ": _QWEN3
    | {"quantization_config": {"quant_method": "awq", "bits": 4, "group_size": 32, "version": "gemm"}},
    "qwen3-moe, GPTQ": _QWEN3 | {"quantization_config": _GPTQ},
    "qwen3-moe, GPTQ v2": _QWEN3 | {"quantization_config": _GPTQ | {"checkpoint_format": "gptq_v2"}},
    "qwen3-moe, GPTQ 8 bits": _QWEN3 | {"quantization_config": _GPTQ | {"bits": 8}},
    "qwen3-moe, GPTQ symmetric": _QWEN3 | {"quantization_config": _GPTQ | {"sym": True}},
    "qwen3-moe, GPTQ act order": _QWEN3 | {"quantization_config": _GPTQ | {"desc_act": True}},
    "deepseek-v2, GPTQ act order": _V2
    | {"topk_method": "greedy", "quantization_config": _GPTQ | {"desc_act": True, "group_size": 8}},
    "qwen3-moe, W4A16 act order": _QWEN3
    | {"quantization_config": _compressed("pack-quantized", 4, "group", group_size=16, actorder="group")},
    "qwen3-moe, W4A16": _QWEN3
    | {"quantization_config": _compressed("pack-quantized", 4, "group", symmetric=False, group_size=16)},
    "qwen3-moe, W8A16": _QWEN3 | {"quantization_config": _compressed("pack-quantized", 8, "channel")},
    "qwen3-moe, W8A8": _QWEN3 | {"quantization_config": _compressed("int-quantized", 8, "channel")},
    "olmoe, fp8 by channel": _OLMOE | {"quantization_config": _compressed("float-quantized", 8, "channel", "float")},
    "olmoe, fp8 by tensor": _OLMOE | {"quantization_config": _compressed("float-quantized", 8, "tensor", "float")},
    "olmoe, fp8 by block": _OLMOE
    | {"quantization_config": _compressed("float-quantized", 8, "block", "float", block_structure=[40, 24])},
    "kimi-k2, int4": _V3
    | {
        "model_type": "kimi_k2",
        "n_group": 1,
        "topk_group": 1,
        "quantization_config": _compressed("pack-quantized", 4, "group", group_size=8),
    },
    "mixtral": _MIXTRAL,
    "mixtral, Transformers v5": _MIXTRAL,
    "olmoe": _OLMOE,
    "deepseek-v2": _V2 | {"topk_method": "group_limited_greedy", "routed_scaling_factor": 4.0},
    "deepseek-v2-lite": _V2 | {"topk_method": "greedy"},
    "deepseek-v3": _V3,
    "deepseek-v3, fp8": _V3
    | {
        "quantization_config": {
            "quant_method": "fp8",
            "activation_scheme": "dynamic",
            "weight_block_size": [32, 32],
        }
    },
    "deepseek-v3, partial fp8": _V3
    | {
        "quantization_config": {
            "quant_method": "fp8",
            "activation_scheme": "dynamic",
            "weight_block_size": [20, 40],
        }
    },
    "gpt-oss": _GPT_OSS,
    "gpt-oss, MXFP4": _GPT_OSS | {"quantization_config": {"quant_method": "mxfp4"}},
}


def random_tensors(configuration: dict, seed: int) -> dict[str, np.ndarray]:
    """Returns random values for the tensors that the example's loader reads."""
    files = RandomFiles("F32", seed, keep=True)
    loader = Loader(files, config.parse_config(configuration), np.float32)
    loader.embedding_and_head()
    for i in range(configuration["num_hidden_layers"]):
        loader.layer(i)
    stored = configuration.get("quantization_config", {})
    if stored.get("sym"):
        files.made |= {name: np.zeros(0, np.int32) for name in files.made if name.endswith("qzeros")}
    if stored.get("desc_act") or "actorder" in json.dumps(stored):
        files.made |= _act_order(files.made, seed)
    return files.made


def _act_order(tensors: dict[str, np.ndarray], seed: int) -> dict[str, np.ndarray]:
    """Returns a random g_idx for each matrix of 4 bits. Gate and up of an expert have the same one."""
    out = {}
    for name, x in tensors.items():
        base, _, part = name.rpartition(".")
        if part in ("qweight", "weight_packed"):
            is_gptq = part == "qweight"
            k = 8 * x.shape[0 if is_gptq else 1]
            blocks = len(tensors[f"{base}.scales"]) if is_gptq else tensors[f"{base}.weight_scale"].shape[1]
            owner, _, side = base.rpartition(".")
            random = np.random.default_rng([seed, k, side == "down_proj", *owner.encode()])
            g_idx = random.permutation(np.arange(k, dtype=np.int32) * blocks // k).astype(np.int32)
            out[f"{base}.{'g_idx' if is_gptq else 'weight_g_idx'}"] = g_idx
    return out


def merge_experts(tensors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Returns the tensors in the layout of Transformers v5: gate_up_proj [E,2I,H] and down_proj [E,H,I]."""
    out, parts = {}, {"w1": "gate_proj", "w3": "up_proj", "w2": "down_proj"}
    experts: dict[str, dict[str, list[np.ndarray]]] = {}
    for name, x in tensors.items():
        if ".experts." in (name := name.replace("block_sparse_moe", "mlp")):
            at, matrix = name.split(".experts.")
            part = matrix.split(".")[1]
            experts.setdefault(at, {}).setdefault(parts.get(part, part), []).append(x)
        else:
            out[name] = x
    for at, found in experts.items():
        gate, up, down = (np.stack(found[part]) for part in parts.values())
        out |= {f"{at}.experts.gate_up_proj": np.concatenate((gate, up), 1), f"{at}.experts.down_proj": down}
    return out


def write_safetensors(path: pathlib.Path, tensors: dict[str, np.ndarray]) -> None:
    names, header, end = {np.dtype(x): name for name, x in DTYPES.items()}, {}, 0
    for name, x in tensors.items():
        header[name] = {"dtype": names[x.dtype], "shape": x.shape, "data_offsets": [end, end := end + x.nbytes]}
    text = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for x in tensors.values():
            file.write(np.ascontiguousarray(x).tobytes())


def write(folder: pathlib.Path, configuration: dict, tensors: dict[str, np.ndarray], shards: int = 1) -> None:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(configuration))
    if shards == 1:
        write_safetensors(folder / "model.safetensors", tensors)
        return
    names = [f"model-{i + 1:05}-of-{shards:05}.safetensors" for i in range(shards)]
    shard_of_tensor = {name: names[i % shards] for i, name in enumerate(tensors)}
    for shard in names:
        write_safetensors(folder / shard, {name: x for name, x in tensors.items() if shard_of_tensor[name] == shard})
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": shard_of_tensor}))


def _fields(words: np.ndarray, bits: int = 4) -> np.ndarray:
    """Splits each int32 of an array [...] into values of `bits` bits [...,32/bits], lowest bits first."""
    return words.view(np.uint32)[..., None] >> np.arange(0, 32, bits, dtype=np.uint32) & (2**bits - 1)


def _awq(words: np.ndarray) -> np.ndarray:
    out = np.empty((*words.shape, 8), np.int64)
    out[..., [0, 2, 4, 6, 1, 3, 5, 7]] = _fields(words)
    return out.reshape(len(words), -1)


def _dequantize(elements: np.ndarray, zeros: np.ndarray, scales: np.ndarray, g_idx: np.ndarray | None) -> np.ndarray:
    """Dequantizes elements [K,N]. Returns values [N,K], the layout of torch.nn.Linear. g_idx: block of each row."""
    block = np.arange(len(elements)) * len(scales) // len(elements) if g_idx is None else g_idx
    return ((elements - zeros[block]) * scales.astype(np.float64)[block]).T


def _dequantize_compressed(part: Callable[[str], np.ndarray], stored: dict) -> np.ndarray:
    """Dequantizes a matrix of compressed-tensors [N,K]. part: returns the tensor of a name, or None."""
    scheme, scale = stored["config_groups"]["group_0"]["weights"], part("weight_scale").astype(np.float64)
    bits, zeros = scheme["num_bits"], part("weight_zero_point")

    def unpack(words: np.ndarray) -> np.ndarray:
        """Unpacks int32 [R,C] to signed elements [R,C*32/bits]."""
        return _fields(words, bits).reshape(len(words), -1).astype(np.int64) - 2 ** (bits - 1)

    packed = part("weight_packed")
    weight = part("weight").astype(np.float64) if packed is None else unpack(packed)
    scale = scale.reshape(-1, scale.shape[-1])
    if scheme["strategy"] == "block":
        for axis, size in enumerate(scheme["block_structure"]):
            scale = np.repeat(scale, size, axis)[tuple(slice(n) for n in weight.shape[: axis + 1])]
    if zeros is None:
        zeros = np.zeros(1)
    elif packed is not None:
        zeros = unpack(np.ascontiguousarray(zeros.T)).T[: len(weight)]
    block, k = part("weight_g_idx"), weight.shape[1]
    block = np.arange(k) * scale.shape[1] // k if block is None else block
    return (weight - np.broadcast_to(zeros, scale.shape)[:, block]) * scale[:, block]


def _dequantize_matrix(name: str, tensors: dict[str, np.ndarray], stored: dict) -> np.ndarray:
    """Returns the values of a quantized matrix. stored: the checkpoint's quantization_config."""
    method, part = stored["quant_method"], tensors.get
    if method == "compressed-tensors":
        return _dequantize_compressed(lambda suffix: part(f"{name}.{suffix}"), stored)
    if method == "awq":
        return _dequantize(_awq(part(f"{name}.qweight")), _awq(part(f"{name}.qzeros")), part(f"{name}.scales"), None)
    if method == "gptq":
        bits, scales, zeros = stored["bits"], part(f"{name}.scales"), part(f"{name}.qzeros")
        elements = np.moveaxis(_fields(part(f"{name}.qweight"), bits), 2, 1).reshape(-1, scales.shape[1])
        if zeros.size:
            less_one = stored.get("checkpoint_format") != "gptq_v2"
            zeros = (_fields(zeros, bits).reshape(scales.shape) + less_one) % 2**bits
        else:
            zeros = np.full(scales.shape, 2 ** (bits - 1))
        return _dequantize(elements.astype(np.int64), zeros.astype(np.int64), scales, part(f"{name}.g_idx"))
    rows, columns = stored["weight_block_size"]
    weight, scale = part(f"{name}.weight").astype(np.float64), part(f"{name}.weight_scale_inv").astype(np.float64)
    n, k = weight.shape
    return weight * np.repeat(np.repeat(scale, rows, 0), columns, 1)[:n, :k]


def _dequantize_mxfp4(blocks: np.ndarray, scales: np.ndarray) -> np.ndarray:
    values = np.arange(16, dtype=np.uint8).view(ml_dtypes.float4_e2m1fn).astype(np.float64)
    elements = np.stack((values[blocks & 15], values[blocks >> 4]), -1).reshape(*blocks.shape[:3], 32)
    return (elements * 2.0 ** (scales.astype(np.float64) - 127)[..., None]).reshape(*blocks.shape[:2], -1)


def dequantized(configuration: dict, tensors: dict[str, np.ndarray]) -> tuple[dict, dict[str, np.ndarray]]:
    """Returns the configuration and the tensors of the same model with weights in float32."""
    stored, out = configuration["quantization_config"], {}
    parts = (".qzeros", ".scales", ".weight_scale_inv", ".weight_scale", ".weight_zero_point", "g_idx", "_scales")
    for name, x in tensors.items():
        base, _, part = name.rpartition(".")
        scaled = any(f"{base}.{suffix}" in tensors for suffix in ("weight_scale_inv", "weight_scale"))
        if part in ("qweight", "weight_packed") or (part == "weight" and scaled):
            out[f"{base}.weight"] = _dequantize_matrix(base, tensors, stored).astype(np.float32)
        elif name.endswith("_blocks"):
            experts = name.removesuffix("_blocks")
            out[experts] = _dequantize_mxfp4(x, tensors[f"{experts}_scales"]).swapaxes(1, 2).astype(np.float32)
        elif not name.endswith(parts):
            out[name] = x
    return {name: x for name, x in configuration.items() if name != "quantization_config"}, out
