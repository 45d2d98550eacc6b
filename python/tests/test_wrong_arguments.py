import inspect
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import raggemm
from public_calls import BYTES, FUNCTIONS, LOGITS, PACKED, SIZES, TOKENS, W, X
from raggemm import QuantizedTensor, nn
from raggemm.compat import lax
from raggemm.compat import transformer_engine as te

WIDE = {"lhs": jnp.ones((4, 8), jnp.float8_e5m2), "rhs": jnp.ones((1, 8, 8), jnp.float8_e5m2)}
WRONG = {
    "float with int8": (lambda: raggemm.gmm(X, BYTES, SIZES), TypeError,
        "lhs: dtype is float32, must be .* with lhs of float32 and rhs of int8; pass quantized elements as"),
    "float with int4": (lambda: raggemm.gmm(X, W.astype(jnp.int4), SIZES), TypeError,
        "rhs: dtype is int4, must be .*; pass quantized elements as a QuantizedTensor"),
    "float with bool": (lambda: raggemm.gmm(X, W.astype(bool), SIZES), TypeError,
        "rhs: dtype is bool, must .* uint8(?!;)"),
    "block": (lambda: raggemm.quantize(X, "int8", block=1), TypeError, r"block is 1, must be \(axis, size\)"),
    "size of a block": (lambda: raggemm.quantize(X, "int8", block=(1, 2.0)), TypeError,
        r"block\[1\] is 2.0, must be an integer"),
    "axes": (lambda: raggemm.quantize(X, "int8", axes=1.5), TypeError, "axes is 1.5, must be an integer"),
    "axis of axes": (lambda: raggemm.quantize(X, "int8", axes=(0, 1.5)), TypeError, "axes is 1.5, must be an integer"),
    "bound": (lambda: raggemm.quantize(X, "int8", bound=X), TypeError, "bound is a ndarray, must be a number"),
    "large bound": (lambda: raggemm.quantize(X, "int8", bound=1e300), ValueError,
        r"bound is 1e\+300, must be positive, and finite in float32"),
    "num_experts": (lambda: raggemm.sort_by_expert(np.zeros((3, 2), np.int32), None), TypeError,
        "num_experts is None, must be an integer"),
    "num_tokens": (lambda: raggemm.combine(X, np.zeros(4, np.int32), "3"), TypeError,
        "num_tokens is '3', must be an integer"),
    "columns": (lambda: raggemm.gmm(X, raggemm.PackedWeights(PACKED.data, columns=None), SIZES), TypeError,
        "rhs.columns is None, must be an integer"),
    "experts of z_loss": (lambda: raggemm.z_loss(LOGITS[:, :0]), ValueError,
        r"logits: shape is \(3, 0\), must be \[tokens, experts\] with at least one expert"),
    "k of experts": (lambda: raggemm.load_balance_loss(LOGITS, np.zeros((3, 5), np.int32)), ValueError,
        r"experts.shape\[1\] is 5, must be in \[1, 4\]"),
    "topk": (lambda: te.fused_topk_with_score_function(LOGITS, 5), ValueError, r"topk is 5, must be in \[1, 4\]"),
    "group_topk": (lambda: te.fused_topk_with_score_function(LOGITS, 3, num_groups=2, group_topk=1), ValueError,
        "topk is 3, but 1 groups have 2 experts"),
    "dimension numbers": (lambda: lax.ragged_dot_general(X, W, SIZES, None), TypeError,
        "ragged_dot_dimension_numbers: is a NoneType"),
    "function of describe": (lambda: raggemm.describe(3), TypeError, "function is a int, must be callable"),
    "partitioning": (lambda: raggemm.enable_partitioning(None), TypeError, "enabled is None, must be True or False"),
    "override": (lambda: raggemm.enable_ragged_dot_override("no"), TypeError, "enabled is 'no', must be True or False"),
    "two of float8_e5m2": (lambda: raggemm.gmm(QuantizedTensor(WIDE["lhs"]), QuantizedTensor(WIDE["rhs"]), SIZES),
        TypeError, "lhs and rhs are both of float8_e5m2"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
@pytest.mark.filterwarnings("error")
def test_error_messages(name):
    call, kind, message = WRONG[name]
    with pytest.raises(kind, match=f"^{message}"):
        jax.eval_shape(call)


TRACED = {
    "top_k": [
        lambda top_k: raggemm.route(LOGITS, top_k),
        lambda top_k: nn.apply(nn.init(jax.random.key(0), nn.Shape(8, 4, 2)), X, top_k),
    ],
    "num_groups": [lambda number: raggemm.route(LOGITS, 2, num_groups=number, group_top_k=1)],
    "num_experts": [lambda number: raggemm.sort_by_expert(np.zeros((3, 2), np.int32), number)],
    "num_tokens": [lambda number: raggemm.combine(X, np.zeros(4, np.int32), number)],
    "axes": [lambda axis: raggemm.quantize(X, "int8", axes=axis)],
}


@pytest.mark.parametrize(("name", "call"), [(name, call) for name, calls in TRACED.items() for call in calls])
@pytest.mark.parametrize("number", [1, 1.0])
def test_traced_integers_are_refused(name, call, number):
    message = rf"^{name} is .*Tracer.*, must be a Python integer that is known when tracing, .*static_argnums or"
    with pytest.raises(TypeError, match=message):
        jax.jit(call)(number)


# Values that test_errors_name_the_argument passes as every argument of every function.
ODD_VALUES = {
    "text": "x",
    "object": object(),
    "float": 1.5,
    "negative": -1,
    "large": 10**20,
    "type": np.complex64,
    "tuple": (1, 2, 3),
    "dict": {},
    "list": [1.5],
    "vector": np.ones(3, np.float32),
    "four axes": np.ones((2, 3, 4, 5), np.int32),
    "complex": np.ones((4, 8), np.complex64),
    "quantized": QuantizedTensor(BYTES),
    "packed": PACKED,
}
# {argument: another argument}. An error about the first may name the second instead, if they disagree.
OTHER_NAMES = {"row_tokens": "row_weights", "x": "block", "num_groups": "groups", "experts": "function"}
UNUSED = ("tiling", "interpret", "maybe_quantize_lhs", "zero_initialize", "acc_dtype", "v2_tile_info")


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.__name__)
@pytest.mark.filterwarnings("error")
def test_errors_name_the_argument(function):
    given = FUNCTIONS[function]
    names = [name for name, x in inspect.signature(function).parameters.items() if x.kind is not x.VAR_KEYWORD]
    values = {(name, kind): x for name in names for kind, x in ODD_VALUES.items() if name != "key"}
    required = {(name, "None"): None for name in given if name not in ("key", "row_weights")}
    for (name, kind), value in (values | required).items():
        try:
            jax.eval_shape(lambda changed=given | {name: value}: function(**changed))
        except (TypeError, ValueError, NotImplementedError) as error:
            names_pattern = f"{name}|{OTHER_NAMES[name]}" if name in OTHER_NAMES else name
            assert re.search(rf"\b({names_pattern})\b", str(error)), (name, kind)
        else:
            assert kind != "object" or name in UNUSED, name


# Calls with two 4-bit elements per byte, which raggemm refuses. One axis has half of the expected extent.

SCALE = np.ones((1, 1, 8), np.float32)
HALF_K, HALF_N = np.ones((1, 4, 8), np.uint8), np.ones((1, 8, 4), np.int8)
PACKED_BYTES = {
    "half of K": lambda: raggemm.gmm(X, QuantizedTensor(HALF_K, SCALE), SIZES),
    "half of K, stored transposed": lambda: raggemm.gmm(
        X, QuantizedTensor(HALF_N, SCALE.swapaxes(1, 2)), SIZES, transpose_rhs=True
    ),
    "lhs": lambda: raggemm.gmm(QuantizedTensor(np.ones((4, 4), np.uint8)), W, SIZES),
    "w_up": lambda: raggemm.moe_mlp(X, TOKENS, None, SIZES, QuantizedTensor(HALF_K, SCALE), W),
    "w_down": lambda: raggemm.moe_mlp(X, TOKENS, None, SIZES, W, QuantizedTensor(HALF_N)),
    "scales": lambda: raggemm.dequantize(QuantizedTensor(HALF_N, np.ones((1, 8, 8), np.float32))),
}


@pytest.mark.parametrize("call", PACKED_BYTES.values(), ids=PACKED_BYTES)
def test_errors_for_two_elements_per_byte_suggest_int4(call):
    hint = r"; u?int8 has one element in each byte: if a byte holds two elements of 4 bits, convert the array to int4"
    with pytest.raises((TypeError, ValueError), match=hint):
        jax.eval_shape(call)


def test_other_errors_do_not_suggest_int4():
    for rhs in (QuantizedTensor(np.ones((1, 5, 8), np.uint8)), QuantizedTensor(HALF_K.astype(jnp.int4)), W[:, :4]):
        with pytest.raises(ValueError, match=r"are contracted, but differ: 8 and [45]$"):
            raggemm.gmm(X, rhs, SIZES)
    empty = np.zeros((4, 0), np.float32)
    with pytest.raises(ValueError, match=r"differ: 0 and 4$"):
        raggemm.gmm(empty, QuantizedTensor(HALF_K), SIZES)
