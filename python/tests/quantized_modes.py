"""Makes quantized operands for three modes, and computes their products in float64."""

import dataclasses
import functools
from typing import Any

import jax
import ml_dtypes
import numpy as np
from raggemm import QuantizedTensor

M, G, K, N = 20, 3, 64, 32
SIZES = np.array([9, 0, 8], np.int32)
GROUP_OF_ROW = np.repeat(np.arange(G + 1), [*SIZES, M - SIZES.sum()])
MEMBERS = (np.arange(G)[:, None] == GROUP_OF_ROW).astype(np.float64)
FORMATS = {
    **{name: np.dtype(getattr(ml_dtypes, name, None) or name) for name in ("int8", "uint8", "int4", "uint4", "int2")},
    "e4m3": np.dtype(ml_dtypes.float8_e4m3fn),
    "e5m2": np.dtype(ml_dtypes.float8_e5m2),
    "e2m1": np.dtype(ml_dtypes.float4_e2m1fn),
}
# Tables by mode: M (ragged M), K (ragged K) and U (uniform). EQUATIONS has einsums of MEMBERS, lhs and rhs, with 1
# instead of MEMBERS for U. MEMBERS [G,M] is 1 if a row belongs to a group. SHARED has axes of lhs and of rhs, along
# which elements share a scale.
EQUATIONS = {"M": "gm,mk,gkn->mn", "K": "gm,mk,mn->gkn", "U": ",gmk,gkn->gmn"}
SHAPES = {"M": ((M, K), (G, K, N)), "K": ((M, K), (M, N)), "U": ((G, 5, K), (G, K, N))}
SHARED = {"M": ((1,), (1,)), "K": ((0,), (0,)), "U": ((2,), (1,))}


@functools.partial(
    jax.tree_util.register_dataclass, data_fields=("qvalue", "scale", "zero_point"), meta_fields=("qtype",)
)
@dataclasses.dataclass(frozen=True)
class QArray:
    """A stand-in for qwix.QArray."""

    qvalue: Any
    scale: Any
    zero_point: Any = None
    qtype: Any = None

    shape = property(lambda self: self.qvalue.shape)


@functools.partial(jax.tree_util.register_dataclass, data_fields=("value", "elements", "scale"), meta_fields=())
@dataclasses.dataclass(frozen=True)
class AsQArray:
    """A stand-in for tokamax.AsQArray, an array that a call quantizes by as_qarray()."""

    value: Any
    elements: Any
    scale: Any

    def as_qarray(self):
        return QArray(self.elements, self.scale)


def elements(dtype, shape, seed):
    """Returns random elements, and the largest number of their type. Floats are from -4 to 4."""
    random = np.random.default_rng(seed)
    if dtype.kind in "iu" or "int" in dtype.name:
        top = ml_dtypes.iinfo(dtype).max
        codes = random.integers(0 if "uint" in dtype.name else -top, top, shape, endpoint=True)
    else:
        top = 6.0 if dtype == FORMATS["e2m1"] else float(ml_dtypes.finfo(dtype).max)
        codes = random.uniform(-4, 4, shape)
    return codes.astype(dtype), np.array(top, dtype)


def operand(dtype, mode, side, seed, shared=None):
    """Makes a random quantized lhs (side 0) or rhs (side 1). Returns its elements, scales and float64 values.

    Scales are powers of two from 2^-10 to 2^10. Elements share a scale along the axes `shared` (default: SHARED). Each
    scale has an element with the largest number of the type, so quantizing the float64 values gives the same elements
    and scales.
    """
    shape = SHAPES[mode][side]
    shared = SHARED[mode][side] if shared is None else shared
    data, top = elements(dtype, shape, seed)
    data[tuple(0 if axis in shared else slice(None) for axis in range(len(shape)))] = top
    counts = [1 if axis in shared else n for axis, n in enumerate(shape)]
    scale = (2.0 ** np.random.default_rng(seed + 1).integers(-10, 11, counts)).astype(np.float32)
    return data, scale, data.astype(np.float64) * scale


def floats(mode, side, seed=7):
    return np.random.default_rng(seed + side).uniform(-1, 1, SHAPES[mode][side]).astype(np.float32)


def product(mode, lhs, rhs):
    """Returns the float64 product of lhs and rhs, and the product of their magnitudes."""
    ones = (MEMBERS,) if mode != "U" else (np.float64(1),)
    return (np.einsum(EQUATIONS[mode], *ones, *map(f, (lhs, rhs)), optimize=True) for f in (np.asarray, np.abs))


def gradient(mode, side, other, ct):
    """Returns the float64 gradient of sum(ct * product) for lhs (side 0) or rhs (side 1)."""
    members, lhs, rhs, out = (*EQUATIONS[mode].replace("->", ",").split(","),)
    own_axes, other_axes = (lhs, rhs) if side == 0 else (rhs, lhs)
    ones = MEMBERS if mode != "U" else np.float64(1)
    return np.einsum(
        f"{members},{other_axes},{out}->{own_axes}", ones, np.asarray(other, np.float64), ct, optimize=True
    )


def given_as(kind, data, scale, values):
    """Returns a quantized operand as a front end takes it.

    kind: "QArray", "AsQArray", "QuantizedTensor", or "array" for the elements alone. Any other kind gives the float32
      values.
    """
    if kind == "QArray":
        return QArray(data, scale, None, data.dtype)
    if kind == "AsQArray":
        return AsQArray(values.astype(np.float32), data, scale)
    return {"array": data, "QuantizedTensor": QuantizedTensor(data, scale)}.get(kind, values.astype(np.float32))


def experts(dtype, blocks, seed=0):
    """Makes random quantized weights [G,K,N]. Returns their elements, scales and float64 values.

    Scales of different groups differ by factors of 2^9 to 2^21.
    """
    random = np.random.default_rng(seed)
    data = elements(np.dtype(dtype), (G, K, N), seed)[0]
    scale = random.uniform(1, 2, (G, blocks, 1, N)) * 2.0 ** np.array([-10, 0, 10]).reshape(G, 1, 1, 1)
    scale = scale.astype(np.float32)
    return data, scale, data.astype(np.float64) * scale[:, :, 0].repeat(K // blocks, 1)


def near(got, want, magnitude, relative=1e-5):
    np.testing.assert_array_less(np.abs(np.asarray(got, np.float64) - want), relative * magnitude + 1e-30)
