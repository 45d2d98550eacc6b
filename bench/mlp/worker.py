"""A contender in an environment of its own: python worker.py NAME FORMAT MODEL FOLDER, then a request a line on stdin,
an answer a line on stdout, both JSON.

    {"tokens": T, "seconds": S}    {"ms": [of each call]}; with 0 seconds one call, and its out in FOLDER/NAME.npy

Calls of a few tokens take other experts each, so that weights come from memory: `shift` is added to all experts.
"""

import json
import pathlib
import sys
import time
from collections.abc import Callable

import numpy as np
from layer import MATRICES, MODELS, Layer

Call = Callable[[int, int], Callable[[], np.ndarray]]  # tokens, shift: what is timed


def _routing(layer: Layer, tokens: int, shift: int) -> tuple[np.ndarray, np.ndarray]:
    return (layer.load(f"experts{tokens}") + shift) % layer.model.experts, layer.load(f"shares{tokens}")


def raggemm(layer: Layer, form: str) -> Call:
    """moe_mlp with the sort by experts, jitted together; matrices in the order of raggemm's products."""
    import jax
    import jax.numpy as jnp
    import ml_dtypes
    import raggemm as ours

    def matrix(name: str):
        # Transposes [E,N,K] to [E,K,N].
        if form == "bf16":
            return jnp.asarray(np.ascontiguousarray(layer.load(name).transpose(0, 2, 1)).view(ml_dtypes.bfloat16))
        codes, scale = (layer.load(f"{name}.{form}.{part}") for part in ("codes", "scale"))
        if form == "int8":
            return ours.QuantizedTensor(jnp.asarray(codes.transpose(0, 2, 1)), jnp.asarray(scale.transpose(0, 2, 1)))
        w = ours.mxfp4_from_blocks(jnp.asarray(codes.reshape(*scale.shape, 16)), jnp.asarray(scale))
        return ours.QuantizedTensor(w.data.swapaxes(1, 2), w.scale.swapaxes(1, 2))

    gate, up, down = (matrix(name) for name in MATRICES)

    @jax.jit
    def mlp(x, experts, shares, gate, up, down):
        rows = ours.sort_by_expert(experts, layer.model.experts)
        routed = (rows.row_tokens, shares.reshape(-1)[rows.order], rows.group_sizes)
        return ours.moe_mlp(x, *routed, w_up=up, w_gate=gate, w_down=down)

    def call(tokens: int, shift: int):
        x = jnp.asarray(layer.load(f"x{tokens}").view(ml_dtypes.bfloat16))
        experts, shares = (jnp.asarray(a) for a in _routing(layer, tokens, shift))
        return lambda: np.asarray(mlp(x, experts, shares, gate, up, down).block_until_ready()).astype(np.float32)

    return call


def _torch(layer: Layer, form: str):
    """torch, a function for arrays of bits of bfloat16, and gate and up in one [E,2I,H], down [E,H,I] with scales."""
    import torch

    def bf16(bits: np.ndarray) -> "torch.Tensor":
        return torch.from_numpy(np.array(bits).view(np.int16)).view(torch.bfloat16)

    def merged(part: str):
        names = [f"{name}.{form}.{part}" if part else name for name in MATRICES]
        gate, up, down = (layer.load(name) for name in names)
        return np.concatenate([gate, up], 1), np.array(down)

    if form == "bf16":
        return torch, bf16, [bf16(w) for w in merged("")], [None, None]
    return torch, bf16, *[[torch.from_numpy(w) for w in merged(part)] for part in ("codes", "scale")]


def _torch_call(layer: Layer, bf16, torch, run) -> Call:
    def call(tokens: int, shift: int):
        x = bf16(layer.load(f"x{tokens}"))
        experts, shares = (torch.from_numpy(np.array(a)) for a in _routing(layer, tokens, shift))
        out = torch.empty_like(x)
        return lambda: (run(out, x, experts.int(), shares), out)[1].float().numpy()

    return call


def sglang(layer: Layer, form: str) -> Call:
    """SGLang's fused_experts_cpu, as vLLM's wheel has it: int8 with rows of x quantized as they come."""
    import importlib.util

    torch, bf16, weights, scales = _torch(layer, form)
    folder = pathlib.Path(importlib.util.find_spec("torch").origin).parents[1] / "vllm"
    torch.ops.load_library(str(folder / "_C.abi3.so"))
    torch.cpu._init_amx()
    ops, method = torch.ops._C, {"bf16": 0, "int8": 1, "mxfp4": 4}[form]
    packed = [ops.convert_weight_packed(w) for w in weights]
    if form == "int8":
        scales = [s.squeeze(-1).contiguous() for s in scales]
    elif form == "mxfp4":
        scales = [ops.convert_scale_packed(s) for s in scales]

    def run(out, x, experts, shares):
        zeros = block = bias = limits = (None, None)
        ops.fused_experts_cpu(out, x, *packed, shares, experts, method, *scales, *zeros, *block, *bias, *limits, True)

    return _torch_call(layer, bf16, torch, run)


def zendnn(layer: Layer, form: str) -> Call:
    """AMD's, int8 with rows of x quantized as they come."""
    import zentorch  # noqa: F401

    torch, bf16, weights, scales = _torch(layer, form)
    scales = [s if s is None else s.squeeze(-1).contiguous() for s in scales]

    def run(out, x, experts, shares):
        args = (None, None, shares, experts, False, "silu", *scales)
        torch.ops.zentorch.zentorch_fused_moe(out.zero_(), x, *weights, *args)

    return _torch_call(layer, bf16, torch, run)


def _answer(layer: Layer, call: Call, name: str, tokens: int, seconds: float) -> dict:
    if not seconds:
        layer.save(name, call(tokens, 0)())
        return {}
    model, times = layer.model, []
    few = tokens * model.top_k <= model.experts
    calls = [call(tokens, shift) for shift in range(0, model.experts if few else 1, max(1, tokens * model.top_k))]
    until = time.perf_counter() + seconds
    while time.perf_counter() < until or len(times) < 3:
        start = time.perf_counter()
        calls[len(times) % len(calls)]()
        times.append(1e3 * (time.perf_counter() - start))
    return {"ms": times}


def main() -> None:
    name, form, model, folder = sys.argv[1:]
    answers, sys.stdout = sys.stdout, sys.stderr  # libraries print
    layer = Layer(pathlib.Path(folder), MODELS[model])
    try:
        call = {"raggemm": raggemm, "sglang": sglang, "zendnn": zendnn}[name](layer, form)
        print("{}", file=answers, flush=True)
        for line in sys.stdin:
            request = json.loads(line)
            print(json.dumps(_answer(layer, call, name, **request)), file=answers, flush=True)
    except Exception as error:
        print(
            json.dumps({"error": f"{type(error).__name__}: {str(error).splitlines()[0][:150]}"}),
            file=answers,
            flush=True,
        )


if __name__ == "__main__":
    main()
