"""An error that lists dtypes lists none that the function refuses next."""

import dataclasses
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import raggemm
from arrays import sampled
from raggemm import GroupedTensor, QuantizedTensor, nn
from raggemm.compat import sglang
from raggemm.compat import transformer_engine as te

X, W, SIZES, BIAS = np.ones((4, 8), np.float32), np.ones((1, 8, 8), np.float32), np.array([4]), np.ones((1, 8))
B = BIAS.astype(np.float32)
PARAMS = {"router": np.ones((8, 1), np.float32), "w_up": W, "w_down": W, "shared_up": W[0], "shared_down": W[0]}
# Each function with its arguments, and those of them that the tests give another dtype.
FUNCTIONS = {
    "gmm": (raggemm.gmm, {"lhs": X, "rhs": W, "group_sizes": SIZES}, "lhs rhs group_sizes"),
    "tgmm": (raggemm.tgmm, {"lhs": X.T, "rhs": X, "group_sizes": SIZES}, "lhs rhs"),
    "ragged_dot": (raggemm.ragged_dot, {"lhs": X, "rhs": W, "group_sizes": SIZES}, "lhs rhs"),
    "grouped_gemm": (raggemm.grouped_gemm,
        {"lhs": GroupedTensor(X, SIZES), "rhs": W, "contracting_dims": ((1,), (1,)), "bias": B, "alpha": B[:, 0]},
        "rhs bias alpha"),
    "moe_mlp": (
        raggemm.moe_mlp,
        {"x": X, "row_tokens": np.zeros(4, np.int32), "row_weights": X[:, 0], "group_sizes": SIZES}
        | {"w_up": W, "w_down": W, "b_up": B, "b_down": B},
        "x row_tokens row_weights w_up w_down b_up b_down",
    ),
    "nn": (lambda x, **params: nn.apply(params, x, 1), {"x": X} | PARAMS, "x router w_up w_down shared_up shared_down"),
    "prepack": (raggemm.prepack, {"w": W}, "w"),
    "packed": (
        lambda data, down: raggemm.moe_mlp(
            X,
            np.zeros(4, np.int32),
            None,
            SIZES,
            dataclasses.replace(raggemm.prepack(W), data=data),
            down,
        ),
        {"data": raggemm.prepack(W).data, "down": W},
        "data",
    ),
    "quantize": (raggemm.quantize, {"x": W, "dtype": "int8"}, "x"),
    "sglang": (sglang.gmm, {"lhs": X, "rhs": W, "group_sizes": SIZES, "rhs_bias": W[:, :1]}, "lhs rhs rhs_bias"),
    "grouped_dense": (te.grouped_dense, {"x": X, "kernel": W, "group_sizes": SIZES, "bias": B}, "x kernel bias"),
    "route": (raggemm.route, {"logits": X, "top_k": 2}, "logits"),
    "combine": (raggemm.combine,
        {"rows": X, "row_tokens": np.zeros(4, np.int32), "num_tokens": 3, "row_weights": X[:, 0]},
        "rows row_tokens row_weights"),
}  # fmt: skip
GIVEN = [(name, argument) for name, (_, _, arguments) in FUNCTIONS.items() for argument in arguments.split()]
OF_BYTES = ", or int8 or uint8 beside int8 or uint8"


def error_with(name, argument, dtype):
    """The TypeError of the call with the argument as this dtype, or None."""
    function, arguments, _ = FUNCTIONS[name]
    value = np.asarray(arguments[argument], np.float32).astype(dtype)
    try:
        jax.eval_shape(lambda: function(**(arguments | {argument: value})))
    except TypeError as error:
        return str(error)
    return None


WRONG = [(*given, dtype) for given in GIVEN for dtype in (bool, jnp.int4, np.int8, jnp.float8_e8m0fnu)]


@pytest.mark.parametrize(("name", "argument", "dtype"), sampled(WRONG, 3, unpack=True), ids=str)
def test_listed_types_are_taken(name, argument, dtype, x64):
    error = error_with(name, argument, dtype)
    found = re.search(rf": dtype is {jnp.dtype(dtype)}, must be (.*)", error or "")
    assert found or dtype in (jnp.int4, np.int8), error  # which are taken, or do not go with the other operand
    if found:
        text = found[1].replace(OF_BYTES, "").partition(" beside ")[0]
        listed = re.findall(r"\b(?:u?int|b?float)\d+\b", text)
        assert listed, error
        assert [taken for taken in listed if error_with(name, argument, jnp.dtype(taken)) is not None] == []


# Two elements of 4 bits in each byte, which shapes tell.

SCALE = np.ones((1, 1, 8), np.float32)
HALF_K, HALF_N = np.ones((1, 4, 8), np.uint8), np.ones((1, 8, 4), np.int8)
TOKENS = np.zeros(4, np.int32)
IN_BYTES = {
    "half of K": lambda: raggemm.gmm(X, QuantizedTensor(HALF_K, SCALE), SIZES),
    "half of K without scales": lambda: raggemm.gmm(X, HALF_K, SIZES),
    "half of N": lambda: raggemm.gmm(X, QuantizedTensor(HALF_N, SCALE), SIZES),
    "half of K, stored transposed": lambda: raggemm.gmm(
        X, QuantizedTensor(HALF_N, SCALE.swapaxes(1, 2)), SIZES, transpose_rhs=True
    ),
    "lhs": lambda: raggemm.gmm(QuantizedTensor(np.ones((4, 4), np.uint8)), W, SIZES),
    "ragged_dot": lambda: raggemm.ragged_dot(X, QuantizedTensor(HALF_K, SCALE), SIZES),
    "grouped_gemm": lambda: raggemm.grouped_gemm(
        GroupedTensor(X, SIZES), QuantizedTensor(HALF_K, SCALE), contracting_dims=((1,), (1,))
    ),
    "w_up": lambda: raggemm.moe_mlp(X, TOKENS, None, SIZES, QuantizedTensor(HALF_K, SCALE), W),
    "w_down": lambda: raggemm.moe_mlp(X, TOKENS, None, SIZES, W, QuantizedTensor(HALF_N)),
    "nn": lambda: nn.apply(PARAMS | {"w_up": QuantizedTensor(HALF_K, SCALE)}, X, 1),
    "scales": lambda: raggemm.dequantize(QuantizedTensor(HALF_N, np.ones((1, 8, 8), np.float32))),
}


@pytest.mark.parametrize("call", IN_BYTES.values(), ids=IN_BYTES)
def test_the_error_for_two_elements_in_a_byte_names_int4(call):
    hint = r"; u?int8 is one element in each byte: if a byte holds two elements of 4 bits, make int4 or uint4 of them"
    with pytest.raises((TypeError, ValueError), match=hint):
        jax.eval_shape(call)


def test_there_is_no_hint_for_other_extents_and_types():
    for rhs in (QuantizedTensor(np.ones((1, 5, 8), np.uint8)), QuantizedTensor(HALF_K.astype(jnp.int4)), W[:, :4]):
        with pytest.raises(ValueError, match=r"are contracted, but differ: 8 and [45]$"):
            raggemm.gmm(X, rhs, SIZES)
    empty = np.zeros((4, 0), np.float32)
    with pytest.raises(ValueError, match=r"differ: 0 and 4$"):
        raggemm.gmm(empty, QuantizedTensor(HALF_K), SIZES)
