"""One layer of experts, which all systems get alike: quantized weights, tokens, routing, and expected results.

    out[t] = sum over j of shares[t,j] * down[e] @ (silu(gate[e] @ x[t]) * (up[e] @ x[t])),  e = experts[t,j]

A matrix is [rows,K], and products contract over K. A process makes the same numbers as any other process. A few experts
are random. The others have the same rows in another order, because quantizing all experts would take minutes.
"""

import dataclasses
import functools
import math
from typing import NamedTuple

import numpy as np

MATRICES = ("gate", "up", "down")
RANDOM_EXPERTS = 4
COLD_BYTES = 2**30  # Least size of other weights between two uses of an expert.
MOST_COPIES = 8  # Only the model for tests would have more.
MAGNITUDES = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)  # Magnitudes of float4_e2m1fn.


@dataclasses.dataclass(frozen=True)
class Model:
    hidden: int
    intermediate: int
    experts: int
    top_k: int

    @property
    def expert_elements(self) -> int:
        return 3 * self.hidden * self.intermediate


MODELS = {
    "qwen3-30b-a3b": Model(2048, 768, 128, 8),
    "gpt-oss-20b": Model(2880, 2880, 32, 4),
    "small": Model(256, 512, 8, 2),  # for tests
}


class Format(NamedTuple):
    block: int | None  # Steps of k that share a scale. None: all steps share a scale.
    largest: int  # Largest code of an integer format. 0: the codes are bits of float4_e2m1fn.
    scale_dtype: type  # uint8: exponents of two, plus 127.
    bits: float  # Bits per weight, with scales of blocks.


FORMATS = {
    "int4-32": Format(32, 7, np.float16, 4.5),
    "mxfp4": Format(32, 0, np.uint8, 4.25),
    "int8": Format(None, 127, np.float32, 8),
    "int8-32": Format(32, 127, np.float16, 8.5),
}


class Quantized(NamedTuple):
    codes: np.ndarray  # int8 [...,rows,K]
    scale: np.ndarray  # [...,rows,blocks]


class Call(NamedTuple):
    copy: int  # Index of the layer's copy in memory.
    experts: np.ndarray  # int32 [tokens,top_k]
    shares: np.ndarray  # float32 [tokens,top_k]


def to_bf16(x: np.ndarray) -> np.ndarray:
    """Rounds finite float32 values to nearest even. Returns the bits."""
    bits = x.view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def from_bf16(bits: np.ndarray) -> np.ndarray:
    return (bits.astype(np.uint32) << 16).view(np.float32)


def quantize(w: np.ndarray, form: str) -> Quantized:
    """Quantizes float32 [rows,K]."""
    block, largest, scale_dtype, _ = FORMATS[form]
    blocks = w.reshape(len(w), -1, block or w.shape[1])
    most = np.abs(blocks).max(-1)
    if largest:
        scale = np.maximum(most / largest, np.float32(1e-6)).astype(scale_dtype)
        codes = np.rint(blocks / scale.astype(np.float32)[..., None]).clip(-largest, largest)
    else:
        exponent = np.clip(np.frexp(most)[1] - 3, -127, 127)  # Exponent of the largest element, minus that of 4.
        units = np.abs(blocks) * np.exp2(-exponent.astype(np.float32))[..., None]
        # Rounds to nearest. A value halfway between two magnitudes gets the even code.
        edges = (MAGNITUDES[1:] + MAGNITUDES[:-1]) / 2
        codes = sum((units >= edge) if i % 2 else (units > edge) for i, edge in enumerate(edges)) + 8 * (blocks < 0)
        scale = (exponent + 127).astype(np.uint8)
    return Quantized(codes.astype(np.int8).reshape(w.shape), scale)


def dequantize(q: Quantized, form: str) -> np.ndarray:
    """Returns the values of a matrix, float64 [rows,K]."""
    if FORMATS[form].largest:
        values, scale = q.codes.astype(np.float64), q.scale.astype(np.float64)
    else:
        values = np.where(q.codes >= 8, -1.0, 1.0) * MAGNITUDES[q.codes & 7]
        scale = np.exp2(q.scale.astype(np.float64) - 127)
    return (values.reshape(*scale.shape, -1) * scale[..., None]).reshape(q.codes.shape)


class Layer:
    """The experts of a model in a format."""

    def __init__(self, name: str, form: str):
        self.model, self.form = MODELS[name], form

    @property
    def copies(self) -> int:
        """Returns how many copies of the layer in memory keep the weights of each call cold."""
        return min(1 + math.ceil(COLD_BYTES / (self.model.experts * self.expert_bytes)), MOST_COPIES)

    @property
    def expert_bytes(self) -> float:
        return self.model.expert_elements * FORMATS[self.form].bits / 8

    @functools.cache  # noqa: B019  A process has few layers.
    def _random_matrices(self, name: str) -> list[Quantized]:
        rows, k = self.model.intermediate, self.model.hidden
        rows, k = (k, rows) if name == "down" else (rows, k)
        random = np.random.default_rng(MATRICES.index(name))
        size = (min(RANDOM_EXPERTS, self.model.experts), rows, k)
        return [quantize(w / np.float32(math.sqrt(k)), self.form) for w in random.standard_normal(size, np.float32)]

    def matrix(self, name: str, expert: int) -> Quantized:
        matrices = self._random_matrices(name)
        return Quantized(*(np.roll(part, expert, axis=0) for part in matrices[expert % len(matrices)]))

    def matrices(self, name: str) -> Quantized:
        """Returns the matrices of all experts. "gate_up" has the rows of gate, then the rows of up."""
        names = name.split("_")
        experts = ([self.matrix(part, e) for part in names] for e in range(self.model.experts))
        return Quantized(
            *map(np.stack, zip(*(map(np.concatenate, zip(*e, strict=True)) for e in experts), strict=True))
        )

    def rows(self, tokens: int) -> np.ndarray:
        """Returns x, the bits of bfloat16 [tokens,hidden]."""
        return to_bf16(np.random.default_rng(10).standard_normal((tokens, self.model.hidden), np.float32))

    def calls(self, tokens: int) -> list[Call]:
        """Returns calls that use copy after copy. With few rows, a call uses other experts than earlier calls."""
        m, random = self.model, np.random.default_rng(11)
        orders = [random.permutation(m.experts) for _ in range(self.copies)]
        pairs, calls = tokens * m.top_k, []
        for visit in range(max(1, m.experts // pairs)):
            for copy in range(self.copies):
                if pairs <= m.experts:
                    experts = orders[copy][visit * pairs : (visit + 1) * pairs].reshape(tokens, m.top_k)
                else:
                    experts = random.permuted(np.tile(np.arange(m.experts), (tokens, 1)), axis=1)[:, : m.top_k]
                shares = np.exp(random.standard_normal((tokens, m.top_k), np.float32))
                shares /= shares.sum(1, keepdims=True)
                calls.append(Call(copy, np.ascontiguousarray(experts, np.int32), shares))
        return calls

    def checked_rows(self, tokens: int) -> list[int]:
        return sorted({0, tokens // 2, tokens - 1})

    def expected(self, tokens: int) -> np.ndarray:
        """Returns the results of the first call for checked_rows, float64 [rows,hidden]."""
        call, rows = self.calls(tokens)[0], self.checked_rows(tokens)
        x = from_bf16(self.rows(tokens)).astype(np.float64)
        out = np.zeros((len(rows), self.model.hidden))
        for i, t in enumerate(rows):
            for expert, share in zip(call.experts[t], call.shares[t], strict=True):
                gate, up, down = (dequantize(self.matrix(name, int(expert)), self.form) for name in MATRICES)
                g = gate @ x[t]
                out[i] += share * (down @ (g / (1 + np.exp(-g)) * (up @ x[t])))
        return out
