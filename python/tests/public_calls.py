"""Calls of every public function on small operands (CALLS).

MORE lists the calls of a public name. All other names have one call, with the simple arguments in FUNCTIONS. Names in
NO_CALLS have none.
"""

import contextlib
import dataclasses
import functools
import importlib
import pkgutil
import types
from collections.abc import Callable
from typing import Any

import front_end_programs
import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import raggemm
import te_tensors
from arrays import random
from front_end_programs import PROGRAMS
from kinds import KINDS
from raggemm import QuantizedTensor, compat, expert_parallel, nn
from raggemm.compat import ejkernel, lax, megablox, sglang, tops
from raggemm.compat import transformer_engine as te
from routed_moe import RoutedMoE

X, SIZES, W = np.ones((4, 8), np.float32), np.array([4]), np.ones((1, 8, 8), np.float32)
BYTES = W.astype(np.int8)
LOGITS = np.zeros((3, 4), np.float32)
PACKED = raggemm.prepack(W)
INT4 = {"qzeros": np.zeros((1, 1), np.int32), "scales": np.ones((1, 8), np.float32)}
FP8 = np.zeros((128, 128), jnp.float8_e4m3fn)
TOKENS, IDS = np.zeros(4, np.int32), np.zeros((3, 2), np.int32)
PARAMS = {"router": np.ones((8, 1), np.float32), "w_up": W, "w_down": W}
FUNCTIONS = {
    raggemm.gmm: {"lhs": X, "rhs": W, "group_sizes": SIZES},
    raggemm.tgmm: {"lhs": X.T, "rhs": X, "group_sizes": SIZES},
    raggemm.ragged_dot: {"lhs": X, "rhs": W, "group_sizes": SIZES},
    raggemm.grouped_gemm: {"lhs": raggemm.GroupedTensor(X, SIZES), "rhs": W, "contracting_dims": ((1,), (1,))},
    raggemm.moe_mlp: {
        "x": X,
        "row_tokens": TOKENS,
        "row_weights": np.ones(4, np.float32),
        "group_sizes": SIZES,
        "w_up": W,
        "w_down": W,
    },
    raggemm.quantize: {"x": W, "dtype": "int8"},
    raggemm.fake_quantize: {"x": W, "dtype": "int8"},
    raggemm.quantize_nvfp4: {"x": X, "block": (1, 8)},
    raggemm.dequantize: {"q": QuantizedTensor(BYTES)},
    raggemm.mxfp4_from_blocks: {"blocks": np.zeros((2, 4, 1, 16), np.uint8), "scales": np.zeros((2, 4, 1), np.uint8)},
    raggemm.fp8_from_blocks: {"weight": FP8, "weight_scale_inv": np.ones((1, 1), np.float32)},
    raggemm.int4_from_awq: INT4 | {"qweight": np.zeros((16, 1), np.int32)},
    raggemm.int4_from_gptq: INT4 | {"qweight": np.zeros((2, 8), np.int32)},
    raggemm.from_compressed_tensors: {
        "weight": np.zeros((8, 1), np.int32),
        "weight_scale": np.ones((8, 1), np.float32),
    },
    raggemm.prepack: {"w": W},
    raggemm.unprepack: {"packed": PACKED},
    raggemm.route: {"logits": LOGITS, "top_k": 2},
    raggemm.sort_by_expert: {"experts": IDS, "num_experts": 4},
    raggemm.combine: {"rows": X, "row_tokens": TOKENS, "num_tokens": 3},
    raggemm.load_balance_loss: {"logits": LOGITS, "experts": IDS},
    raggemm.z_loss: {"logits": LOGITS},
    nn.apply: {"params": PARAMS, "x": X, "top_k": 1},
    nn.init: {"key": jax.random.key(0), "shape": nn.Shape(8, 8, 2)},
    expert_parallel.on_one_device: {
        "experts": expert_parallel.mlp(W, W),
        "tokens": X,
        "routing": expert_parallel.Routing(np.zeros((4, 2), np.int32), np.ones((4, 2), np.float32), 1),
    },
    sglang.gmm: {"lhs": X, "rhs": W, "group_sizes": SIZES},
    tops.gmm: {"lhs": X, "rhs": W, "group_sizes": SIZES},
    tops.check_partition: {"group_sizes": SIZES, "m": 4},
    megablox.make_group_metadata: {"group_sizes": SIZES, "m": 4, "tm": 2, "start_group": 0, "num_nonzero_groups": 1},
    te.grouped_dense: {"x": X, "kernel": W, "group_sizes": SIZES},
    te.fused_topk_with_score_function: {"logits": LOGITS, "topk": 2},
    te.fused_moe_aux_loss: {"probs": LOGITS, "tokens_per_expert": np.zeros(4, np.int32), "topk": 2, "coeff": 0.1},
    te.token_dispatch: {"inp": X, "routing_map": np.ones((4, 3), bool), "num_out_tokens": 12},
    te.token_combine: {"inp": np.ones((12, 8), np.float32), "row_id_map": np.zeros((4, 7), np.int32)},
}


@dataclasses.dataclass(frozen=True)
class Call:
    """A call of a public function. Tests trace only its array arguments."""

    function: Callable
    arguments: dict[str, Any]
    around: Callable[[], contextlib.AbstractContextManager] = contextlib.nullcontext
    has_gradient: bool = True  # True if tests differentiate the call
    is_compiled: bool = True


def program(name: str, rows: int = front_end_programs.ROWS[0]) -> Call:
    """Returns a call of a program of front_end_programs. Its results include gradients."""
    arguments = dict(zip(("x", "w", "sizes"), front_end_programs.arguments(rows), strict=True))
    around = functools.partial(front_end_programs.lowering_of, name)
    return Call(PROGRAMS[name], arguments, around, has_gradient=False)


def kinds(*functions: str) -> list[Call]:
    """Returns a call for each kind in kinds.KINDS whose name has one of the prefixes `functions`.

    Group sizes and offsets are uint32, so that raggemm must convert them.
    """

    def unsigned(name: str, x: Any) -> Any:
        return np.uint32(x) if name in ("sizes", "group_sizes", "group_offset") else x

    chosen = [kind for kind in KINDS if kind.name.startswith(functions)]
    return [Call(kind.run, {"arrays": {name: unsigned(name, x) for name, x in kind.arrays.items()}}) for kind in chosen]


def on_host(function: Callable, **arguments: Any) -> Call:
    return Call(function, arguments, has_gradient=False, is_compiled=False)


# Operands of many calls in MORE. The last three rows are in no group. Sizes are uint32, which raggemm converts.
ROWS, WEIGHTS = random(12, 32, dtype=ml_dtypes.bfloat16), random(4, 32, 16, seed=1)
COUNTS = np.array([3, 0, 2, 4], np.uint32)
PROBLEM = {"lhs": ROWS, "rhs": WEIGHTS, "group_sizes": COUNTS}
DUAL = {"lhs": ROWS.T.copy(), "rhs": random(12, 16, seed=2), "group_sizes": COUNTS}
ONTO = random(12, 16, seed=3)
SHARD = PROBLEM | {"rhs": WEIGHTS[1:3], "group_offset": np.array(1, np.int32)}
QUANTIZED = jax.tree.map(np.asarray, raggemm.quantize(WEIGHTS, "int8", block=(1, 16)))
SCALED = {"rhs": QUANTIZED.data, "rhs_scale": QUANTIZED.scale, "rhs_bias": random(4, 1, 16)}
RAGGED_K = jax.lax.RaggedDotDimensionNumbers((((0,), (0,)), ((), ())), [0], [])

# Router logits of six tokens for six experts, and the two experts of each token. Some experts are invalid.
SCORES, CHOSEN = random(6, 6), np.array([[0, 1], [5, 1], [2, 2], [-1, 3], [4, 6], [0, 5]], np.int32)
ROW_TOKENS = np.array([0, 1, 1, 2, 4, 4, 8, 2, 9, 3, 0, 0], np.uint32)
BOTH_LAYOUTS = {"x": random(12, 48), "group_sizes": COUNTS}
LAYER = {name: np.asarray(x) for name, x in nn.init(jax.random.key(1), nn.Shape(8, 4, 6)).items()}
SHARED = {
    "shared_up": random(8, 4), "shared_gate": random(8, 4), "shared_down": random(4, 8),
    "shared_router": random(8, 1), "router_bias": random(6), "expert_bias": random(6), "b_down": random(6, 8),
}  # fmt: skip
CODED = {n: jax.tree.map(np.asarray, raggemm.quantize(x, "int8")) if n[0] == "w" else x for n, x in LAYER.items()}
DEEPSEEK = {"score": "sigmoid", "num_groups": 3, "group_top_k": 2, "scaling_factor": 2.5}


def quantizers(mode: str) -> te.QuantizerSet:
    """Returns quantizers of this scaling mode. Incoming gradients become float8_e5m2, or float4_e2m1fn for NVFP4."""
    forward, _, _ = te_tensors.MODES[mode]
    backward = forward if forward == ml_dtypes.float4_e2m1fn else ml_dtypes.float8_e5m2
    scale = np.float32([2]) if mode == "DELAYED_TENSOR_SCALING" else None
    forward = ml_dtypes.float8_e4m3fn if mode == "CURRENT_TENSOR_SCALING" else forward
    forward_quantizer, dgrad = (te.GroupedQuantizer(dtype, mode, scale=scale) for dtype in (forward, backward))
    return te.QuantizerSet(forward_quantizer, forward_quantizer, dgrad)


DENSE = {"x": ROWS, "kernel": WEIGHTS, "group_sizes": COUNTS, "bias": random(4, 16)}
MOE = {
    "x": random(2, 3, 8, dtype=ml_dtypes.bfloat16), "gate_kernel": random(8, 6), "wi": random(6, 8, 8) / 3,
    "wo": random(6, 4, 8) / 2, "num_experts": 6, "num_experts_per_tok": 2, "ep_axis": "ep",
}  # fmt: skip
MOE_BIASES = {"wi_0_bias": random(6, 4), "wi_1_bias": random(6, 4), "wo_bias": random(6, 8)}
ROUTED = SCORES > 0
ROW_ID_MAP, PAD_OFFSETS = (
    np.asarray(te.token_dispatch(random(6, 8), ROUTED, int(ROUTED.sum()), align_size=4)[i]) for i in (2, 3)
)


def te_tensor(mode: str, *shape: Any, is_colwise: bool = False) -> te.GroupedScaledTensor1x:
    tensor = te_tensors.tensor(mode, "N", is_colwise, *shape)[0]
    return te.GroupedScaledTensor1x(**{f.name: getattr(tensor, f.name) for f in dataclasses.fields(tensor)})


def swizzled() -> te.GroupedScaledTensor1x:
    """Returns an MXFP8 tensor with swizzled scales. All rows are in groups: others would have NaN scales."""
    tensor = te_tensor("MXFP8_1D_SCALING", int(COUNTS.sum()), 64, COUNTS)
    return dataclasses.replace(tensor, scale_inv=np.ones(2048, ml_dtypes.float8_e8m0fnu), pre_swizzled=True)


LOSSY = RoutedMoE(6, load_balance_loss_weight=0.1, routed_bias_update_rate=0.1)


def with_experts(layer: Callable, devices: int, *options: Any) -> tuple[Callable, dict[str, Any]]:
    """Wraps a layer of expert_parallel in shard_map over `devices` devices.

    Returns:
      (function of the layer's arrays as keyword arguments, {name: sharding of this array}).
    """

    def run_on_device(tokens, ids, weights, up, down):
        return layer(expert_parallel.mlp(up, down), tokens, expert_parallel.Routing(ids, weights, 4), *options)

    mesh = jax.make_mesh((devices,), ("expert",), axis_types=(jax.sharding.AxisType.Auto,))
    spec = jax.sharding.PartitionSpec("expert")
    rows = jax.sharding.PartitionSpec() if layer is expert_parallel.by_all_reduce else spec
    specs = {"tokens": rows, "ids": rows, "weights": rows, "up": spec, "down": spec}
    run = jax.jit(jax.shard_map(run_on_device, mesh=mesh, in_specs=tuple(specs.values()), out_specs=rows))
    shardings = {name: jax.sharding.NamedSharding(mesh, spec) for name, spec in specs.items()}
    return lambda **arrays: run(*(arrays[name] for name in specs)), shardings


def experts(layer: Callable, devices: int, *options: Any) -> Call:
    ids = np.array([[0, 1], [3, 1], [2, -1], [3, 3]], np.int32)
    arrays = {
        "tokens": random(4, 8, dtype=ml_dtypes.bfloat16), "ids": ids, "weights": random(4, 2, seed=1),
        "up": random(4, 8, 6, seed=2), "down": random(4, 6, 8, seed=3),
    }  # fmt: skip
    function, shardings = with_experts(layer, devices, *options)
    return Call(function, jax.device_put(arrays, shardings))


EXCHANGE = {
    "operand": random(2, 3, 8, dtype=ml_dtypes.bfloat16), "output": random(2, 4, 8, seed=1, dtype=ml_dtypes.bfloat16),
    **dict.fromkeys(("input_offsets", "send_sizes", "output_offsets", "recv_sizes"), np.ones((2, 2), np.uint32)),
}  # fmt: skip

# {public name: calls, instead of the call with the arguments in FUNCTIONS}. A dict has the arguments of one call.
MORE: dict[str, list[Any]] = {
    "raggemm.combine": [
        {
            "rows": ROWS, "row_tokens": ROW_TOKENS, "num_tokens": 6, "row_weights": random(12), "group_sizes": COUNTS,
            "row_slots": np.arange(12)[::-1].astype(np.uint32),
        }
    ],
    "raggemm.dequantize": [
        {"q": QUANTIZED},
        {"q": jax.tree.map(np.asarray, raggemm.quantize(WEIGHTS, "uint4", axes=1))},
        {"q": QuantizedTensor(np.ones((12, 8), np.int8), random(4), np.ones(4, np.int8)), "group_sizes": COUNTS},
        {"q": QuantizedTensor(BYTES, np.ones((1, 1, 8), ml_dtypes.float8_e8m0fnu))},
    ],
    "raggemm.describe": [on_host(raggemm.describe)],
    "raggemm.enable_partitioning": [on_host(raggemm.enable_partitioning, enabled=False)],
    "raggemm.enable_ragged_dot_override": [on_host(raggemm.enable_ragged_dot_override, enabled=False)],
    "raggemm.fake_quantize": [{"x": WEIGHTS, "dtype": "int8", "bound": 1.0}],
    "raggemm.gmm": [
        PROBLEM | {"lhs_quantize": "int8"},
        PROBLEM | {"rhs": QUANTIZED, "lhs_quantize": "int8"},
        SHARD | {"existing_out": ONTO},
        program("existing_out"),
    ],
    "raggemm.grouped_gemm": kinds(
        "all that", "a shard", "scales", "zeros", "groups", "powers", "rows", "both", "transposed", "columns",
        "uniform", "row_index", "silu", "gelu", "integers", "rounded",
    ),
    "raggemm.grouped_gemm_saveable": [
        Call(jax.checkpoint(raggemm.gmm, policy=raggemm.grouped_gemm_saveable), PROBLEM),
    ],
    "raggemm.from_compressed_tensors": [{"weight": BYTES[0], "weight_scale": np.ones((8, 1), np.float32)}],
    "raggemm.int4_from_gptq": [
        INT4 | {"qweight": np.zeros((2, 8), np.int32), "zeros_less_one": False, "g_idx": np.zeros(16, np.int32)}
    ],
    "raggemm.load_balance_loss": [{"logits": SCORES, "experts": CHOSEN, "score": "sigmoid"}],
    "raggemm.moe_mlp": kinds("moe_mlp"),
    "raggemm.options": [Call(raggemm.gmm, PROBLEM, functools.partial(raggemm.options, threads=1))],
    "raggemm.override_ragged_dot": [program(front_end_programs.OVERRIDE)],
    "raggemm.prepack": kinds("packed"),
    "raggemm.quantize": [
        {"x": WEIGHTS, "dtype": "float4_e2m1fn", "block": (1, 16), "scale_dtype": "float8_e8m0fnu"},
        {"x": WEIGHTS, "dtype": "int4", "axes": (0, 1), "zero_point": True},
        {"x": WEIGHTS, "dtype": "float8_e4m3fn", "bound": 2.0},
    ],
    "raggemm.ragged_dot": [
        SHARD,
        PROBLEM | {"lhs_quantize": "float8_e4m3fn"},
        PROBLEM | {"rhs": QUANTIZED, "lhs_quantize": "int8", "lhs_block": None},
        program("ragged_dot"),
    ],
    "raggemm.route": [
        {"logits": SCORES, "top_k": 2, "pre_softmax": True, "renormalize": True, "scaling_factor": 2},
        {"logits": SCORES, "top_k": 2, "expert_bias": random(6)} | DEEPSEEK,
        {"logits": SCORES, "top_k": 2, "score": "sparsemixer"},
    ],
    # sort_by_expert has another algorithm for many experts.
    "raggemm.sort_by_expert": [
        {"experts": x, "num_experts": n} for x, n in ((CHOSEN, 6), (CHOSEN.astype(np.uint32), 6000))
    ],
    "raggemm.tgmm": [DUAL],
    "raggemm.version": [on_host(raggemm.version)],
    "raggemm.z_loss": [{"logits": SCORES}],
    "raggemm.nn.apply": [
        {"params": LAYER, "x": random(2, 3, 8, dtype=ml_dtypes.bfloat16), "top_k": 2},
        {"params": LAYER | SHARED, "x": random(6, 8), "top_k": 2, "weight_on": "input"} | DEEPSEEK,
        {"params": CODED, "x": random(6, 8), "top_k": 2, "lhs_quantize": "int8"},
    ],
    "raggemm.expert_parallel.mlp": [experts(expert_parallel.on_one_device, 1)],
    "raggemm.expert_parallel.by_all_gather": [experts(expert_parallel.by_all_gather, 2, "expert")],
    "raggemm.expert_parallel.by_all_reduce": [experts(expert_parallel.by_all_reduce, 2, "expert")],
    "raggemm.expert_parallel.by_all_to_all": [
        experts(expert_parallel.by_all_to_all, 2, "expert", capacity) for capacity in (None, 1)
    ],
    "raggemm.expert_parallel.check_processes": [on_host(expert_parallel.check_processes)],
    "raggemm.compat.ejkernel.grouped_matmul": [
        program("ejkernel"),
        Call(lambda lhs, rhs, group_sizes, **more: ejkernel.grouped_matmul(lhs, rhs, group_sizes, use_v3=True, **more),
             PROBLEM | SCALED),
    ],
    "raggemm.compat.ejkernel.transposed_grouped_matmul": [DUAL],
    "raggemm.compat.lax.ragged_all_to_all": [
        Call(jax.vmap(functools.partial(lax.ragged_all_to_all, axis_name="x"), axis_name="x"), EXCHANGE)
    ],
    "raggemm.compat.lax.ragged_dot": [program("lax"), PROBLEM | {"rhs": QUANTIZED}],
    "raggemm.compat.lax.ragged_dot_general": [
        {"lhs": ROWS, "rhs": DUAL["rhs"], "group_sizes": COUNTS, "ragged_dot_dimension_numbers": RAGGED_K}
    ],
    "raggemm.compat.maxtext.gmm": [
        program("maxtext"),
        PROBLEM | {"lhs_quantize_dtype": "int8", "rhs_quantize_dtype": "int4"},
        PROBLEM | {"partial_sum": ONTO},
        PROBLEM | {"rhs": QUANTIZED},
        PROBLEM | {"use_qwix_quantization": True, "qwix_rule": types.SimpleNamespace(
            act_qtype="float8_e4m3fn", weight_qtype="int8", bwd_qtype="float8_e5m2",
            act_calibration_method="rms,3", weight_calibration_method="absmax,0.9",
            bwd_calibration_method="absmax,0.9",
        )},
    ],
    "raggemm.compat.maxtext.tgmm": [DUAL, DUAL | {"lhs_quantize_dtype": "int8", "rhs_quantize_dtype": "int8"}],
    "raggemm.compat.maxtext.permute": [
        {"layer": layer, "inputs": random(1, 6, 8), "gate_logits": SCORES[None], "pre_bias_logits": None,
         "roll_to_expert_id": 1}
        for layer in (LOSSY, RoutedMoE(6, 1, block="llama4"))
    ],
    "raggemm.compat.maxtext.unpermute": [
        {"layer": LOSSY, "intermediate": random(12, 8), "weights": random(1, 6, 2), "batch_size": 1,
         "sequence_length": 6, "sorted_selected_experts": np.arange(12, dtype=np.int32)[::-1].copy()}
    ],
    "raggemm.compat.megablox.gmm": [program("megablox"), SHARD | {"existing_out": ONTO}],
    "raggemm.compat.megablox.tgmm": [DUAL],
    "raggemm.compat.megablox.make_group_metadata": [
        {"group_sizes": COUNTS, "m": 12, "tm": 4, "start_group": 1, "num_nonzero_groups": 2}
    ],
    "raggemm.compat.sglang.gmm": [program("sglang"), PROBLEM | SCALED | {"activation_quantized_dtype": "int8"}],
    "raggemm.compat.tokamax.ragged_dot": [
        program("tokamax"),
        PROBLEM | {"fuse_gateup_activation": "swigluoai", "activation": jax.nn.relu,
                   "preferred_element_type": jnp.float32},
    ],
    "raggemm.compat.tops.gmm": [program("tops", int(front_end_programs.SIZES.sum()))],
    "raggemm.compat.tops.tgmm": [{"lhs": X, "rhs": X, "group_sizes": SIZES}],
    # gmm_ref and tgmm_ref cannot trace group sizes. Tests do not trace tuples.
    "raggemm.compat.tops.gmm_ref": [{"lhs": X, "rhs": W, "group_sizes": (4,)}],
    "raggemm.compat.tops.tgmm_ref": [{"lhs": X, "rhs": X, "group_sizes": (4,)}],
    "raggemm.compat.transformer_engine.fused_topk_with_score_function": [
        {"logits": SCORES, "topk": 2, "score_function": "sigmoid", "expert_bias": random(6), "num_groups": 3,
         "group_topk": 2, "scaling_factor": 2.5},
        {"logits": SCORES, "topk": 2, "compute_aux_scores": True, "routing_map_format": "bitmap_u8"},
    ],
    "raggemm.compat.transformer_engine.grouped_dbias": [{"grad": ONTO, "group_sizes": COUNTS}],
    "raggemm.compat.transformer_engine.grouped_dense": [
        program("transformer_engine"),
        DENSE,
        DENSE | {"quantizer_set": quantizers("CURRENT_TENSOR_SCALING")},
    ],
    "raggemm.compat.transformer_engine.grouped_gemm": [
        {"lhs": te.GroupedNoScaleTensor(ROWS, None, COUNTS, None, ROWS.shape), "rhs": WEIGHTS,
         "contracting_dims": ((1,), (1,)), "quantizer_set": quantizers("MXFP8_1D_SCALING")},
        {"lhs": te_tensor("NVFP4_2D_SCALING", 12, 32, COUNTS), "rhs": WEIGHTS, "contracting_dims": ((1,), (1,))},
    ],
    "raggemm.compat.transformer_engine.grouped_quantize": [
        BOTH_LAYOUTS | {"quantizer": quantizers("MXFP8_1D_SCALING").x},
        {"x": WEIGHTS, "quantizer": quantizers("NVFP4_1D_SCALING").x, "flatten_axis": 2},
    ],
    "raggemm.compat.transformer_engine.moe": [
        MOE | {"aux_loss_coeff": 0.1},
        MOE | MOE_BIASES | {"activation_type": "tanh", "apply_topk_weights_early": True},
    ],
    "raggemm.compat.transformer_engine.sort_chunks_by_index": [
        {"inp": ROWS, "split_sizes": COUNTS, "sorted_indices": np.array([2, 0, 3, 1], np.uint32)}
    ],
    "raggemm.compat.transformer_engine.token_combine": [
        {"inp": random(24, 8), "row_id_map": ROW_ID_MAP, "merging_probs": random(6, 6), "pad_offsets": PAD_OFFSETS}
    ],
    "raggemm.compat.transformer_engine.token_dispatch": [
        {"inp": random(6, 8), "routing_map": ROUTED, "num_out_tokens": 12, "probs": random(6, 6), "align_size": 4}
    ],
    "raggemm.compat.transformer_engine.unswizzled": [{"tensor": swizzled()}],
}  # fmt: skip

# Public names without a call: classes of arguments and results, and ejkernel.register, which needs ejkernel.
NO_CALLS = {
    *(f"raggemm.{x}" for x in ("Activation", "GroupedTensor", "PackedWeights", "QuantizedTensor")),
    *(f"raggemm.{x}" for x in ("RaggedDotLowering", "SortedRows")),
    *("raggemm.nn.Output", "raggemm.nn.Shape", "raggemm.expert_parallel.Routing"),
    *(f"raggemm.compat.transformer_engine.{name}" for name, x in vars(te).items() if isinstance(x, type)),
    "raggemm.compat.ejkernel.register",
}


def _public() -> dict[str, Any]:
    front_ends = [f"raggemm.compat.{m.name}" for m in pkgutil.iter_modules(compat.__path__) if m.name[0] != "_"]
    modules = map(importlib.import_module, ("raggemm", "raggemm.nn", "raggemm.expert_parallel", *front_ends))
    return {f"{module.__name__}.{name}": getattr(module, name) for module in modules for name in module.__all__}


PUBLIC = _public()


def _calls() -> dict[str, Call]:
    found: dict[str, Call] = {}
    for name, function in PUBLIC.items():
        given = MORE.get(name) or ([] if name in NO_CALLS else [FUNCTIONS[function]])
        calls = [x if isinstance(x, Call) else Call(function, x) for x in given]
        found |= {f"{name}-{i}": call for i, call in enumerate(calls)}
    return found


CALLS = _calls()
