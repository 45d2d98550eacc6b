"""Parses config.json: the sizes of a model and the properties of its family."""

import math
from typing import Any, NamedTuple

import numpy as np
from checkpoint.files import CheckpointError

FAMILIES = ("qwen3_moe", "mixtral", "olmoe", "deepseek_v2", "deepseek_v3", "gpt_oss")
ALIASES = {"kimi_k2": "deepseek_v3"}  # model types with the architecture of another family
# For each supported quant_method, the fields of quantization_config that must have one of the given values.
QUANTIZATIONS: dict[Any, dict[str, tuple[Any, ...]]] = {
    "mxfp4": {},
    "fp8": {"activation_scheme": ("dynamic",)},
    "awq": {"bits": (4,), "version": ("gemm",)},
    "gptq": {"bits": (4, 8)},
    "compressed-tensors": {},
}
# Formats of compressed-tensors by (format, type, num_bits) of the weights: True if the elements are packed in int32.
COMPRESSED_FORMATS = {
    ("pack-quantized", "int", 4): True,
    ("pack-quantized", "int", 8): True,
    ("int-quantized", "int", 8): False,
    ("naive-quantized", "int", 8): False,
    ("float-quantized", "float", 8): False,
    ("naive-quantized", "float", 8): False,
}
# For each checkpoint_format of GPTQ: True if zero points are stored minus one.
GPTQ_FORMATS = {None: True, "gptq": True, "gptq_v2": False}
# Fields of config.json that must be positive integers if they are present.
COUNTS = (
    "hidden_size",
    "intermediate_size",
    "moe_intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "num_experts_per_tok",
    "head_dim",
    "vocab_size",
    "decoder_sparse_step",
    "moe_layer_freq",
)


class Latent(NamedTuple):
    """The sizes of DeepSeek's latent attention."""

    query_rank: int | None
    rank: int
    plain_dim: int  # Elements of a head that are not rotated.
    rotary_dim: int  # Elements of a head that are rotated.
    value_dim: int  # Elements of a head's value.


class Quantization(NamedTuple):
    method: str | None = None  # Value of quant_method. None: weights are floats.
    # For fp8 and compressed-tensors: numbers of rows and columns that share a scale. -1: all.
    block: tuple[int, int] = (1, 1)
    size: int = -1  # For awq and gptq: number of steps of K that share a scale. -1: all steps.
    zeros_less_one: bool = True  # For gptq: see GPTQ_FORMATS.
    bits: int = 4  # For gptq and compressed-tensors: bits of an element.
    kind: str = "int"  # For compressed-tensors: type of the elements, "int" or "float".
    symmetric: bool = True  # For compressed-tensors: True if there are no zero points.
    packed: bool = False  # For compressed-tensors: see COMPRESSED_FORMATS.


class Config(NamedTuple):
    """The configuration of a model, hashable to be a static argument of jax.jit."""

    family: str
    width: int
    vocabulary: int
    heads: int
    kv_heads: int
    head_dim: int
    latent: Latent | None
    frequencies: tuple[float, ...]  # Rotation of each pair of elements, in radians per position.
    magnitude: float  # Factor that multiplies rotated elements.
    score_scale: float
    epsilon: float
    windows: tuple[int | None, ...]  # Per layer: number of tokens that a token attends to, itself included. None: all.
    dense_layers: frozenset[int]  # Indices of the layers without experts.
    dense_hidden: int  # Hidden width of the MLP in layers without experts.
    experts: int
    top_k: int
    hidden: int
    shared_hidden: int  # Hidden width of all shared experts together.
    routing: tuple[tuple[str, Any], ...]  # Keyword arguments of raggemm.route.
    tied: bool
    quantization: Quantization


def _mscale(factor: float, coefficient: float) -> float:
    return 0.1 * coefficient * math.log(factor) + 1 if factor > 1 else 1.0


def rotary(scaling: dict[str, Any], theta: float, dim: int) -> tuple[np.ndarray, float]:
    """Returns (frequencies of the dim / 2 pairs of rotated elements, factor of rotated elements).

    scaling: rope_scaling of config.json. Its type "yarn" is YaRN (arXiv:2309.00071).
    """
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    plain = theta ** (-np.arange(0, dim, 2, dtype=np.float64) / dim)
    if kind == "default":
        return plain, 1.0
    factor = scaling["factor"]
    if kind == "linear":
        return plain / factor, 1.0
    if kind != "yarn":
        raise CheckpointError(f"config.json: rope_scaling is of type {kind!r}, must be 'default', 'linear' or 'yarn'")

    def pair(rotations: float) -> float:
        length = scaling["original_max_position_embeddings"]
        return dim * math.log(length / (rotations * 2 * math.pi)) / (2 * math.log(theta))

    low, high = pair(scaling.get("beta_fast", 32)), pair(scaling.get("beta_slow", 1))
    if scaling.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    slow = np.clip((np.arange(dim // 2) - low) / max(high - low, 1e-3), 0, 1)
    mscale, mscale_all_dim = scaling.get("mscale", 1), scaling.get("mscale_all_dim", 0)
    magnitude = scaling.get("attention_factor") or _mscale(factor, mscale) / _mscale(factor, mscale_all_dim)
    return plain / factor * slow + plain * (1 - slow), magnitude


def _routing(family: str, config: dict[str, Any]) -> dict[str, Any]:
    if family in ("mixtral", "gpt_oss"):
        return {}
    renormalize = bool(config.get("norm_topk_prob", False))
    if family in ("qwen3_moe", "olmoe"):
        return {"pre_softmax": True, "renormalize": renormalize}
    routing: dict[str, Any] = {"score": "sigmoid"} if family == "deepseek_v3" else {"pre_softmax": True}
    if config.get("topk_method") != "greedy" and (config.get("n_group") or 1) > 1:
        routing |= {"num_groups": config["n_group"], "group_top_k": config["topk_group"]}
    # DeepSeek-V2 does not scale the weights that it renormalizes.
    factor = 1.0 if family == "deepseek_v2" and renormalize else config.get("routed_scaling_factor", 1.0)
    return routing | {"renormalize": renormalize, "scaling_factor": factor}


def _dense_layers(family: str, config: dict[str, Any]) -> frozenset[int]:
    layers = range(config["num_hidden_layers"])
    if family.startswith("deepseek"):
        first, period = config.get("first_k_dense_replace", 0), config.get("moe_layer_freq", 1)
        return frozenset(i for i in layers if i < first or i % period)
    named, period = config.get("mlp_only_layers") or (), config.get("decoder_sparse_step", 1)
    return frozenset(i for i in layers if i in named or (i + 1) % period)


def _windows(family: str, config: dict[str, Any]) -> tuple[int | None, ...]:
    window = None if config.get("use_sliding_window") is False else config.get("sliding_window")
    default_kinds = ("sliding_attention", "full_attention" if family == "gpt_oss" else "sliding_attention")
    kinds = config.get("layer_types") or [default_kinds[i % 2] for i in range(config["num_hidden_layers"])]
    return tuple(window if kind == "sliding_attention" else None for kind in kinds[: config["num_hidden_layers"]])


def _compressed(stored: dict[str, Any]) -> Quantization:
    """Parses quantization_config of compressed-tensors. Quantization of activations is ignored."""
    groups = stored["config_groups"].values()
    schemes = [group["weights"] | {"format": group.get("format") or stored["format"]} for group in groups]
    scheme = schemes[0]
    names = ("format", "type", "num_bits", "strategy", "group_size", "block_structure", "symmetric", "actorder")
    for name in names:
        if any(other.get(name) != scheme.get(name) for other in schemes):
            raise CheckpointError(f"config.json: config_groups have different values of {name}, which must be the same")
    kind, bits, strategy = scheme.get("type", "int"), scheme["num_bits"], scheme["strategy"]
    if (key := (scheme["format"], kind, bits)) not in COMPRESSED_FORMATS:
        allowed = ", ".join(map(str, COMPRESSED_FORMATS))
        raise CheckpointError(f"config.json: weights of compressed-tensors are {key}, must be one of {allowed}")
    blocks = {"tensor": (-1, -1), "channel": (1, -1), "group": (1, scheme.get("group_size"))}
    block = blocks.get(strategy) or tuple(scheme.get("block_structure") or ())
    if len(block) != 2 or any(type(n) is not int or n == 0 or n < -1 for n in block):
        raise CheckpointError(f"config.json: blocks of the strategy {strategy!r} are {list(block)}, must be positive")
    symmetric = bool(scheme.get("symmetric", True))
    return Quantization(
        "compressed-tensors", block, bits=bits, kind=kind, symmetric=symmetric, packed=COMPRESSED_FORMATS[key]
    )


def _quantization(stored: dict[str, Any]) -> Quantization:
    if not stored:
        return Quantization()
    method = stored.get("quant_method")
    if method not in QUANTIZATIONS:
        raise CheckpointError(f"config.json: quant_method is {method!r}, must be one of {', '.join(QUANTIZATIONS)}")
    if method == "compressed-tensors":
        return _compressed(stored)
    for name, allowed in QUANTIZATIONS[method].items():
        if stored.get(name) not in allowed:
            must = " or ".join(map(repr, allowed))
            raise CheckpointError(f"config.json: {name} of {method} is {stored.get(name)!r}, must be {must}")
    block, size = tuple(stored.get("weight_block_size") or (1, 1)), stored.get("group_size", -1)
    sizes = [*block, 1 if size == -1 else size]
    if len(sizes) != 3 or any(type(n) is not int or n < 1 for n in sizes):
        raise CheckpointError(f"config.json: blocks of {method} are {list(block)} or {size}, must have positive sizes")
    if (written := stored.get("checkpoint_format")) not in GPTQ_FORMATS:
        raise CheckpointError(f"config.json: checkpoint_format is {written!r}, must be 'gptq' or 'gptq_v2'")
    return Quantization(method, block, size, GPTQ_FORMATS[written], stored.get("bits", 4))


def _check(family: str, config: dict[str, Any]) -> None:
    for name in COUNTS:
        if (count := config.get(name)) is not None and (type(count) is not int or count < 1):
            raise CheckpointError(f"config.json: {name} is {count!r}, must be a positive integer")
    if unknown := {*(config.get("layer_types") or ())} - {"sliding_attention", "full_attention"}:
        raise CheckpointError(
            f"config.json: layer_types has {unknown.pop()!r}, must be sliding_attention or full_attention"
        )
    only = {"hidden_act": "silu", "clip_qkv": None, "attention_bias": family == "gpt_oss", "swiglu_limit": 7.0}
    for name, must in only.items():
        if (found := config.get(name, must)) != must:
            raise CheckpointError(f"config.json: {name} is {found!r}, must be {must!r} for {family}")


def _parse(family: str, config: dict[str, Any]) -> Config:
    heads, width = config["num_attention_heads"], config["hidden_size"]
    head_dim, latent = config.get("head_dim") or width // heads, None
    if family.startswith("deepseek"):
        names = ("q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
        latent = Latent(*(config[name] for name in names))
        head_dim = latent.plain_dim + latent.rotary_dim
    scaling = config.get("rope_scaling") or config.get("rope_parameters") or {}
    theta = config.get("rope_theta") or scaling.get("rope_theta", 10000.0)
    frequencies, magnitude = rotary(scaling, theta, latent.rotary_dim if latent else head_dim)
    # DeepSeek also multiplies attention scores by the square of _mscale(factor, mscale_all_dim).
    extra_scale = _mscale(scaling.get("factor", 1), scaling.get("mscale_all_dim", 0)) ** 2 if latent else 1.0
    hidden = config.get("moe_intermediate_size", config["intermediate_size"])
    return Config(
        family=family,
        width=width,
        vocabulary=config["vocab_size"],
        heads=heads,
        kv_heads=config.get("num_key_value_heads") or heads,
        head_dim=head_dim,
        latent=latent,
        frequencies=tuple(frequencies),
        magnitude=magnitude,
        score_scale=head_dim**-0.5 * extra_scale,
        epsilon=config.get("rms_norm_eps", 1e-6),
        windows=_windows(family, config),
        dense_layers=_dense_layers(family, config),
        dense_hidden=config["intermediate_size"],
        experts=next(config[n] for n in ("num_experts", "num_local_experts", "n_routed_experts") if n in config),
        top_k=config["num_experts_per_tok"],
        hidden=hidden,
        shared_hidden=(config.get("n_shared_experts") or 0) * hidden,
        routing=tuple(sorted(_routing(family, config).items())),
        tied=bool(config.get("tie_word_embeddings", False)),
        quantization=_quantization(config.get("quantization_config") or {}),
    )


def parse_config(config: dict[str, Any], layers: int | None = None) -> Config:
    """Parses the object in config.json. layers: largest number of layers to use, by default all."""
    named = config.get("model_type")
    family = ALIASES.get(named, named)
    if family not in FAMILIES:
        allowed = ", ".join((*FAMILIES, *ALIASES))
        raise CheckpointError(f"config.json: model_type is {named!r}, must be one of {allowed}")
    _check(family, config)
    try:
        count = config["num_hidden_layers"]
        return _parse(family, {**config, "num_hidden_layers": count if layers is None else min(layers, count)})
    except (KeyError, StopIteration) as error:
        missing = error if error.args else "number of experts"
        raise CheckpointError(f"config.json: has no {missing}, which {family} needs") from None
    except (TypeError, ValueError, AttributeError, ArithmeticError) as error:
        raise CheckpointError(f"config.json: a field is invalid for {family}: {error}") from None
