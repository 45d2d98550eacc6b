"""One layer of experts as files that contenders share, in whatever environment they run: weights, tokens, routing.

    gate, up    uint16 [E,I,H], bfloat16, rounded from normal numbers over sqrt(H); and so on for each format:
    down        uint16 [E,H,I]                 NAME.codes, NAME.scale as FORMATS has them
    x, experts, shares of T tokens             xT uint16 [T,H] (bfloat16), expertsT int32 [T,k], sharesT float32 [T,k]

    out[t] = sum over j of shares[t,j] * down[e] @ (silu(gate[e] @ x[t]) * (up[e] @ x[t])), e = experts[t,j]

Formats quantize along the contraction: int8 one scale for each row of a matrix, float32, to [-127,127]; mxfp4 one for
32 elements, a power of two (OCP Microscaling Formats v1.0, section 6.3), two codes a byte, the first in the low bits.
"""

import dataclasses
import pathlib

import numpy as np

FORMATS = ("bf16", "int8", "mxfp4")
MATRICES = ("gate", "up", "down")
MAGNITUDES = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)


@dataclasses.dataclass(frozen=True)
class Model:
    hidden: int
    intermediate: int
    experts: int
    top_k: int

    @property
    def expert_elements(self) -> int:
        return 3 * self.hidden * self.intermediate


# The last one is for tests.
MODELS = {
    "qwen3-30b-a3b": Model(2048, 768, 128, 8),
    "gpt-oss-20b": Model(2880, 2880, 32, 4),
    "small": Model(64, 96, 4, 2),
}
BYTES_PER_ELEMENT = {"bf16": 2, "int8": 1, "mxfp4": 17 / 32}


def to_bf16(x: np.ndarray) -> np.ndarray:
    """Rounds finite float32 to nearest even."""
    bits = x.view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def from_bf16(bits: np.ndarray) -> np.ndarray:
    return (bits.astype(np.uint32) << 16).view(np.float32)


def quantized(w: np.ndarray, form: str) -> tuple[np.ndarray, np.ndarray]:
    """Codes and scales of float32 [rows,K]."""
    if form == "int8":
        scale = np.maximum(np.abs(w).max(-1, keepdims=True) / 127, np.float32(1e-12))
        return np.rint(w / scale).astype(np.int8), scale
    blocks = w.reshape(len(w), -1, 32)
    most = np.abs(blocks).max(-1)
    exponent = np.clip(np.frexp(most)[1] - 3, -127, 127)  # that of the largest, less that of 4
    units = np.abs(blocks) / np.exp2(exponent, dtype=np.float32)[..., None]
    # Halfway between two codes the even one is next.
    up, edges = np.arange(7) % 2 == 1, (MAGNITUDES[1:] + MAGNITUDES[:-1]) / 2
    codes = sum((units >= e) if to_next else (units > e) for e, to_next in zip(edges, up, strict=True))
    codes = (codes + 8 * (blocks < 0)).astype(np.uint8).reshape(w.shape)
    return codes[:, ::2] | codes[:, 1::2] << 4, (exponent + 127).astype(np.uint8)


def dequantized(codes: np.ndarray, scale: np.ndarray, form: str) -> np.ndarray:
    """What they stand for: float32 [rows,K]."""
    if form == "int8":
        return codes * scale
    nibbles = np.stack([codes & 15, codes >> 4], -1).reshape(len(codes), -1, 32)
    values = np.where(nibbles >= 8, -1, 1).astype(np.float32) * MAGNITUDES[nibbles & 7]
    return (values * np.exp2(scale.astype(np.float32) - 127)[..., None]).reshape(len(codes), -1)


class Layer:
    """A folder with the files of a model."""

    def __init__(self, folder: pathlib.Path, model: Model):
        self.folder, self.model = folder, model

    def load(self, name: str) -> np.ndarray:
        return np.load(self.folder / f"{name}.npy", mmap_mode="r")

    def save(self, name: str, array: np.ndarray) -> None:
        np.save(self.folder / f"{name}.npy", array)

    def make(self, forms: list[str], tokens: list[int]) -> None:
        m, random = self.model, np.random.default_rng(1)
        shapes = {
            "gate": (m.intermediate, m.hidden),
            "up": (m.intermediate, m.hidden),
            "down": (m.hidden, m.intermediate),
        }
        for name in MATRICES:
            rows, k = shapes[name]
            made: dict[str, list[np.ndarray]] = {}
            for _ in range(m.experts):
                w = to_bf16(random.standard_normal((rows, k), np.float32) / np.float32(np.sqrt(k)))
                made.setdefault(name, []).append(w)
                for form in forms:
                    if form != "bf16":
                        codes, scale = quantized(from_bf16(w), form)
                        made.setdefault(f"{name}.{form}.codes", []).append(codes)
                        made.setdefault(f"{name}.{form}.scale", []).append(scale)
            for file, parts in made.items():
                self.save(file, np.stack(parts))
        for t in tokens:
            self.save(f"x{t}", to_bf16(random.standard_normal((t, m.hidden), np.float32)))
            self.save(
                f"experts{t}",
                random.permuted(np.tile(np.arange(m.experts, dtype=np.int32), (t, 1)), axis=1)[:, : m.top_k],
            )
            shares = np.exp(random.standard_normal((t, m.top_k), np.float32))
            self.save(f"shares{t}", shares / shares.sum(1, keepdims=True))

    def matrix(self, name: str, form: str, expert: int) -> np.ndarray:
        """float32 [rows,K]."""
        if form == "bf16":
            return from_bf16(self.load(name)[expert])
        codes, scale = (self.load(f"{name}.{form}.{part}")[expert] for part in ("codes", "scale"))
        return dequantized(codes, scale, form)

    def expected(self, form: str, tokens: int, rows: list[int]) -> np.ndarray:
        """float64 [len(rows),H]: out of these tokens."""
        x, experts, shares = (self.load(f"{name}{tokens}") for name in ("x", "experts", "shares"))
        out = np.zeros((len(rows), self.model.hidden))
        for i, t in enumerate(rows):
            for expert, share in zip(experts[t], shares[t], strict=True):
                gate, up, down = (self.matrix(name, form, expert).astype(np.float64) for name in MATRICES)
                h, g = up @ from_bf16(x[t]), gate @ from_bf16(x[t])
                out[i] += share * (down @ (g / (1 + np.exp(-g)) * h))
        return out
