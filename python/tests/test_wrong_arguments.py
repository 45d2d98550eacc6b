"""Wrong arguments: the error has the caller's word, the value and the limit, when the call is traced."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import raggemm
from raggemm import QuantizedTensor

X, SIZES, W = np.ones((4, 8), np.float32), np.array([4]), np.ones((1, 8, 8), np.float32)
BYTES = W.astype(np.int8)
WIDE = {"lhs": jnp.ones((4, 8), jnp.float8_e5m2), "rhs": jnp.ones((1, 8, 8), jnp.float8_e5m2)}
LOGITS = np.zeros((3, 4), np.float32)
PACKED = raggemm.prepack(W)
WRONG = {
    "float with bytes": (
        lambda: raggemm.gmm(X, BYTES, SIZES),
        TypeError,
        "lhs: dtype is float32, must be .* with lhs of float32 and rhs of int8; elements .* QuantizedTensor's",
    ),
    "block": (lambda: raggemm.quantize(X, "int8", block=1), TypeError, r"block is 1, must be \(axis, size\)"),
    "size of a block": (
        lambda: raggemm.quantize(X, "int8", block=(1, 2.0)),
        TypeError,
        r"block\[1\] is 2.0, must be an integer",
    ),
    "axes": (lambda: raggemm.quantize(X, "int8", axes=1.5), TypeError, "axes is 1.5, must be an integer"),
    "axis of axes": (lambda: raggemm.quantize(X, "int8", axes=(0, 1.5)), TypeError, "axes is 1.5, must be an integer"),
    "bound": (lambda: raggemm.quantize(X, "int8", bound=X), TypeError, "bound is a ndarray, must be a number"),
    "bound of 0": (lambda: raggemm.quantize(X, "int8", bound=0), ValueError, "bound is 0, must be positive"),
    "large bound": (
        lambda: raggemm.quantize(X, "int8", bound=1e300),
        ValueError,
        r"bound is 1e\+300, must be positive, and finite in float32",
    ),
    "nan as bound": (lambda: raggemm.quantize(X, "int8", bound=float("nan")), ValueError, "bound is nan, must be"),
    "top_k": (lambda: raggemm.route(LOGITS, top_k=2.0), TypeError, "top_k is 2.0, must be an integer"),
    "num_groups": (
        lambda: raggemm.route(LOGITS, 2, num_groups=2.0, group_top_k=1),
        TypeError,
        "num_groups is 2.0, must be an integer",
    ),
    "num_experts": (
        lambda: raggemm.sort_by_expert(np.zeros((3, 2), np.int32), None),
        TypeError,
        "num_experts is None, must be an integer",
    ),
    "num_tokens": (
        lambda: raggemm.combine(X, np.zeros(4, np.int32), "3"),
        TypeError,
        "num_tokens is '3', must be an integer",
    ),
    "columns": (
        lambda: raggemm.gmm(X, raggemm.PackedWeights(PACKED.data, columns=None), SIZES),
        TypeError,
        "rhs.columns is None, must be an integer",
    ),
    "experts of z_loss": (
        lambda: raggemm.z_loss(LOGITS[:, :0]),
        ValueError,
        r"logits: shape is \(3, 0\), must be \[tokens, experts\], of at least one expert",
    ),
    "two of float8_e5m2": (
        lambda: raggemm.gmm(QuantizedTensor(WIDE["lhs"]), QuantizedTensor(WIDE["rhs"]), SIZES),
        TypeError,
        "lhs and rhs are both of float8_e5m2",
    ),
}


@pytest.mark.parametrize("name", WRONG)
@pytest.mark.filterwarnings("error")
def test_the_error_has_the_arguments_name(name):
    call, kind, message = WRONG[name]
    with pytest.raises(kind, match=f"^{message}"):
        jax.eval_shape(call)


@pytest.mark.parametrize("bound", [1, 1.5, np.float32(2), np.int64(3), float(np.finfo(np.float32).max)])
def test_bounds(bound):
    assert np.isfinite(raggemm.quantize(X, "int8", bound=bound).scale)
