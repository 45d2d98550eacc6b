import itertools

import jax
import jax.numpy as jnp
import ml_dtypes
import moe_oracle
import numpy as np
import oracle
import pytest
import raggemm
from arrays import integers
from moe_mlps import GATES, GROUPS, HIDDEN, INNER, ROW_TOKENS, ROWS, SIZES, TOKENS, Case
from raggemm import QuantizedTensor, moe_mlp
from raggemm._src.library import tables

BF16, F16, F32 = jnp.bfloat16, jnp.float16, jnp.float32
TRANSPOSES = tuple(itertools.product((False, True), repeat=2))
ACTIVATIONS = [
    *(raggemm.Activation(row["name"]) for row in tables()["activations"]),
    raggemm.Activation("swiglu_oai", alpha=0.5, limit=1.5),
    raggemm.Activation("swiglu_clamped", limit=0.75),
]
PAIRS = [
    (activation, gate)
    for i, activation in enumerate(ACTIVATIONS, 1)
    for gate in (GATES[(i + j) % 4] for j in (0, 1))
    if gate or not activation.needs_gate
]


@pytest.mark.parametrize(("activation", "gate"), PAIRS)
def test_activations_gates_and_layouts(activation, gate):
    """Some values of gate and up exceed the limits."""
    number = PAIRS.index((activation, gate))
    case = Case(gate, TRANSPOSES[number // 2 % 4], biases=number % 3 != 2, seed=number, large=4)
    case.check(case(activation=activation), activation)


@pytest.mark.parametrize(
    ("x", "w", "b", "out"),
    [
        (BF16, BF16, F32, None),
        (BF16, BF16, BF16, F32),
        (F16, F16, F16, None),
        (F32, BF16, F16, BF16),
        (BF16, F32, F32, F16),
    ],
    ids=lambda dtype: np.dtype(dtype).name if dtype else "dtype of x",
)
def test_dtypes(x, w, b, out):
    case = Case().cast(x=x, w=w, b=b, row_weights=b)
    got = case(preferred_element_type=out)
    assert got.dtype == np.dtype(out or x)
    inner = ml_dtypes.finfo(w).eps if w != F32 else 3e-6
    case.check(got, relative=2 * float(inner), rounded=lambda a: a.astype(w).astype(np.float64))


@pytest.mark.parametrize("offset", [jnp.int32(1), np.array([1], np.int64)], ids=["()", "(1,)"])
def test_group_offset(offset):
    case = Case()
    for values in (case.values, case.given):
        values |= {name: x[1:3] for name, x in values.items() if name[:2] in ("w_", "b_")}
    case.check(case(group_offset=offset), first=1)


# Tests of roundings use integers. Their sums are exact, so results show each rounding.


@pytest.mark.parametrize(("x", "w", "out"), [(BF16, BF16, BF16), (F16, BF16, F32), (BF16, F32, F16), (F32, F32, BF16)])
def test_the_activation_and_the_result_are_rounded_once(x, w, out):
    values = {
        "x": integers(0, TOKENS, HIDDEN),
        "w_up": integers(1, GROUPS, HIDDEN, INNER),
        "w_gate": integers(2, GROUPS, HIDDEN, INNER),
        "w_down": integers(3, GROUPS, INNER, HIDDEN),
        "row_weights": integers(4, ROWS),
    }
    options = {"activation": "relu", "row_tokens": ROW_TOKENS}
    given = {name: v.astype(x if name == "x" else w) for name, v in values.items()}
    got = moe_mlp(**given, **options, group_sizes=SIZES, preferred_element_type=out)
    exact = {name: np.float64(v) for name, v in values.items()}

    def round_activation(a):
        return a.astype(w).astype(np.float64)

    want = moe_oracle.mlp(exact, sizes=SIZES, rounded=round_activation, **options)
    np.testing.assert_array_equal(got, want.astype(np.float32).astype(out))
    unrounded = moe_oracle.mlp(exact, sizes=SIZES, **options)
    assert (w == F32) == np.array_equal(want, unrounded)


# Empty extents and NaN.


@pytest.mark.parametrize("empty", ["groups are empty", "no rows", "no tokens", "no inner columns", "no groups"])
def test_empty_extents(empty):
    """Without groups, rows or tokens the result is zero. Without inner columns each row adds b_down to its token."""
    shapes = {"x": (TOKENS, 4), "w_up": (3, 4, 6), "w_down": (3, 6, 4), "b_up": (3, 6), "b_down": (3, 4)}
    row_tokens, sizes = np.zeros(5, np.int32), np.array([2, 0, 3], np.int32)
    match empty:
        case "groups are empty":
            sizes *= 0
        case "no rows":
            row_tokens, sizes = row_tokens[:0], sizes * 0
        case "no tokens":
            row_tokens, sizes, shapes["x"] = row_tokens[:0], sizes * 0, (0, 4)
        case "no inner columns":
            shapes |= {"w_up": (3, 4, 0), "w_down": (3, 0, 4), "b_up": (3, 0)}
        case "no groups":
            shapes |= {name: (0, *shape[1:]) for name, shape in shapes.items() if name != "x"}
            sizes = sizes[:0]
    given = {name: np.full(shape, 2, np.float32) for name, shape in shapes.items()}
    got = moe_mlp(row_tokens=row_tokens, row_weights=None, group_sizes=sizes, **given)
    want = np.zeros(shapes["x"], np.float32)
    want[:1] = 10 if empty == "no inner columns" else 0
    np.testing.assert_array_equal(np.asarray(got).view(np.uint32), want.view(np.uint32))


@pytest.mark.parametrize("block", [32, None])
@pytest.mark.parametrize(("dtype", "packed"), [(np.float32, False), (jnp.bfloat16, True)])
def test_rounded_rows_have_the_bits_of_the_rule(dtype, packed, block):
    """Each token has one row, without a weight. So the result is the second product."""
    random, sizes = np.random.default_rng(3), np.array([4, 0, 5])
    up = raggemm.quantize(random.normal(size=(3, 64, 96)), "int4", block=(1, 32), scale_dtype=BF16)
    down = raggemm.quantize(random.normal(size=(3, 96, 64)), jnp.float4_e2m1fn, block=(1, 16))
    x = random.normal(size=(9, 64)).astype(dtype)
    want, start = [], 0
    for g, size in enumerate(sizes.tolist()):
        rows, start = x[start : start + size], start + size
        a = oracle.rounded_product(rows, *(np.asarray(v)[g] for v in (up.data, up.scale)), block=block)
        a = np.maximum(a, 0).astype(dtype)
        want.append(oracle.rounded_product(a, *(np.asarray(v)[g] for v in (down.data, down.scale)), block=block))
    weights = (raggemm.prepack(w) if packed else w for w in (up, down))
    options = {"activation": "relu", "preferred_element_type": np.float32}
    got = moe_mlp(x, np.arange(9), None, sizes, *weights, **options, lhs_quantize="int8", lhs_block=block)
    np.testing.assert_array_equal(got, np.concatenate(want))


def test_gradients_of_rounded_rows_are_straight_through():
    """Only the first product is computed again with rounded rows. The mask of relu shows it."""
    random = np.random.default_rng(3)
    up, down = (raggemm.quantize(random.normal(size=shape), "int8") for shape in ((1, 64, 96), (1, 96, 64)))
    x, row_weights, ct = (random.normal(size=shape).astype(np.float32) for shape in ((40, 64), 40, (40, 64)))

    def loss(x, row_weights):
        rows = np.arange(40), row_weights, np.array([40])
        return (moe_mlp(x, *rows, up, down, activation="relu", lhs_quantize="int8", lhs_block=None) * ct).sum()

    dx, d_weights = jax.jit(jax.grad(loss, (0, 1)))(x, row_weights)
    wide_up, wide_down = (np.asarray(raggemm.dequantize(w), np.float64)[0] for w in (up, down))
    u = oracle.rounded_product(x, np.asarray(up.data)[0], np.asarray(up.scale)[0], block=None)
    assert ((u > 0) != (x @ wide_up > 0)).any()
    da = ct @ wide_down.T
    want = ((u > 0) * row_weights[:, None] * da) @ wide_up.T
    np.testing.assert_allclose(dx, want, rtol=0, atol=1e-5 * np.abs(want).max())
    want = (np.maximum(u, 0) * da).sum(1)
    np.testing.assert_allclose(d_weights, want, rtol=0, atol=1e-5 * np.abs(want).max())


def test_nan_stays_with_its_token():
    case = Case()
    case.given["x"] = case.given["x"].copy()
    case.given["x"][3] = np.nan
    got = np.asarray(case())
    assert np.isnan(got[3]).all() and not np.isnan(np.delete(got, 3, 0)).any()


@pytest.mark.parametrize("dtype", [np.int64, np.uint32])
def test_dtypes_of_row_tokens_and_sizes(dtype, x64):
    case = Case()
    row_tokens = np.where(ROW_TOKENS < 0, 2**32 - 1, ROW_TOKENS.astype(np.int64)).astype(dtype)
    np.testing.assert_array_equal(case(row_tokens=row_tokens, group_sizes=SIZES.astype(dtype)), case())


# Errors.

X, UP, DOWN, WEIGHTS = (np.ones(s, np.float32) for s in ((6, 4), (2, 4, 3), (2, 3, 4), (5,)))
TOKEN, COUNT = np.zeros(5, np.int32), np.array([2, 3], np.int32)


def run_mlp(**changes):
    given = {"x": X, "row_tokens": TOKEN, "row_weights": WEIGHTS, "group_sizes": COUNT, "w_up": UP, "w_down": DOWN}
    return moe_mlp(**(given | changes))


WIDE = np.ones((2, 4, 6), np.float32)
INT8 = QuantizedTensor(np.ones((2, 4, 3), np.int8))
TRACING = [
    ({"x": X[0]}, ValueError, r"x: shape is \(4,\), must be \[T,H\]"),
    ({"x": X.astype(np.int8)}, TypeError, "x: dtype is int8, must be float16, bfloat16 or float32"),
    ({"x": INT8}, TypeError, "x: is a QuantizedTensor, must be an array"),
    ({"row_tokens": TOKEN[None]}, ValueError, r"row_tokens: shape is \(1, 5\), must be \[M\]"),
    ({"row_tokens": WEIGHTS}, TypeError, "row_tokens: dtype is float32, must be int32, int64 or uint32"),
    ({"row_weights": WEIGHTS[1:]}, ValueError, r"row_weights: shape is \(4,\), must be \(5,\)"),
    ({"row_weights": TOKEN}, TypeError, "row_weights: dtype is int32, must be float16, bfloat16 or float32"),
    ({"group_sizes": WEIGHTS}, TypeError, "group_sizes: dtype is float32, must be int32"),
    ({"group_sizes": COUNT[None]}, ValueError, r"group_sizes: shape is \(1, 2\), must be \[G\]"),
    ({"group_sizes": COUNT[:1]}, ValueError, "w_up has 2 groups, more than the 1 of group_sizes"),
    ({"group_sizes": TOKEN}, ValueError, "w_up has 2 groups, but group_sizes has 5: the two must be equal"),
    ({"group_offset": COUNT}, ValueError, r"group_offset: shape is \(2,\), must be \(\) or \(1,\)"),
    ({"group_offset": 1.0}, TypeError, "group_offset: dtype is float64, must be int32"),
    ({"w_up": UP[0]}, ValueError, r"w_up: shape is \(4, 3\), must be \[G,K,N\]"),
    ({"w_up": UP[:, 1:]}, ValueError,
     r"w_up: shape is \(2, 3, 3\), must be \[G,4,I\] with transpose_up=False\b(?!; transpose)"),
    ({"w_up": UP.astype(np.int8)}, TypeError, "w_up: dtype is int8, must be float16, bfloat16 or float32"),
    ({"w_up": QuantizedTensor(INT8.data, np.ones(3, np.float32))}, ValueError, r"w_up.scale: shape is \(3,\), must be"),
    ({"transpose_up": True}, ValueError,
     r"w_up: shape is \(2, 4, 3\), must be \[G,I,4\].*; transpose_up=False may be meant"),
    ({"w_down": DOWN[:1]}, ValueError,
     r"w_down: shape is \(1, 3, 4\), must be \[2,I,4\] with transpose_down=False\b(?!; transpose)"),
    ({"w_down": DOWN.mT}, ValueError, r"w_down: shape is \(2, 4, 3\), must be .*; transpose_down=True may be meant"),
    ({"w_down": DOWN.mT[:1]}, ValueError,
     r"w_down: shape is \(1, 4, 3\), must be \[2,I,4\] with transpose_down=False\b(?!; transpose)"),
    ({"transpose_down": True}, ValueError,
     r"w_down: shape is \(2, 3, 4\), must be \[2,4,I\] .*; transpose_down=False may"),
    ({"w_up": raggemm.prepack(UP.mT)}, ValueError,
     r"w_up: shape is \(2, 3, 4\), must be \[G,4,I\] as PackedWeights; prepack\(w_up, transpose=True\) may be meant"),
    ({"w_gate": UP[:, :, 1:]}, ValueError, r"w_gate: shape is \(2, 4, 2\), must be \(2, 4, 3\)"),
    ({"w_gate": INT8}, TypeError, "w_gate: dtype is int8, must be float32, the dtype of w_up"),
    ({"merged": "halves"}, ValueError, "w_up: has 3 columns, must have 6: with merged, two for each of w_down's"),
    ({"w_up": WIDE}, ValueError, "w_up: has 6 columns, must have 3: one for each of w_down's 3 rows, or two with"),
    ({"merged": "halves", "w_up": WIDE, "w_gate": WIDE}, ValueError, "w_gate: must not be given with merged"),
    ({"merged": "halves", "w_up": WIDE, "b_gate": WIDE[0]}, ValueError, "b_gate: must not be given with merged"),
    ({"merged": "pairs"}, ValueError, "merged is 'pairs', must be one of None, 'halves', 'interleaved'"),
    ({"b_gate": UP[:, 0]}, ValueError, "b_gate: is given without w_gate"),
    ({"b_up": UP[:1, 0]}, ValueError, r"b_up: shape is \(1, 3\), must be \(2, 3\)"),
    ({"merged": "halves", "w_up": WIDE, "b_up": UP[:, 0]}, ValueError, r"b_up: shape is \(2, 3\), must be \(2, 6\)"),
    ({"alpha_up": WEIGHTS}, TypeError, "alpha_up: w_up has dtype float32, must be quantized; multiply the weights by"),
    ({"alpha_gate": WEIGHTS}, ValueError, "alpha_gate: is given without w_gate"),
    ({"w_down": raggemm.quantize(UP.mT, "int8"), "alpha_down": np.ones(3, np.float32)}, ValueError,
     r"alpha_down: shape is \(3,\), must be \(\) or \(2,\)"),
    ({"b_down": UP[:, 0]}, ValueError, r"b_down: shape is \(2, 3\), must be \(2, 4\)"),
    ({"b_down": np.ones((2, 4), np.int32)}, TypeError, "b_down: dtype is int32, must be float16, bfloat16 or float32"),
    ({"activation": "tanh"}, ValueError, "activation is 'tanh', must be one of 'silu', 'gelu', 'gelu_tanh', 'relu',"),
    ({"activation": "swiglu_oai"}, ValueError, "activation: 'swiglu_oai' needs a gate, w_gate or merged"),
    ({"weight_on": "x"}, ValueError, "weight_on is 'x', must be one of 'output', 'input'"),
    ({"row_slots": TOKEN[1:]}, ValueError, r"row_slots: shape is \(4,\), must be \(5,\)"),
    ({"row_slots": WEIGHTS}, TypeError, "row_slots: dtype is float32, must be int32, int64 or uint32"),
    ({"save": "none"}, ValueError, "save is 'none', must be one of 'inputs', 'activations'"),
    ({"preferred_element_type": np.int32}, TypeError, "preferred_element_type: dtype is int32, must be float16"),
    ({"lhs_quantize": "uint8"}, TypeError, "lhs_quantize: dtype is uint8, must be int8"),
    ({"lhs_block": 64}, ValueError, "lhs_block is 64, but lhs_quantize is not given"),
    ({"lhs_quantize": "int8"}, TypeError, "w_up: is an array of float32, must be a QuantizedTensor or PackedWeights"),
    ({"lhs_quantize": "int8", "w_up": INT8}, TypeError, "w_down: is an array of float32, must be a QuantizedTensor"),
    ({"lhs_quantize": "int8", "w_up": INT8, "w_down": QuantizedTensor(DOWN.astype(jnp.float8_e5m2))}, TypeError,
     "w_down: is a QuantizedTensor of float8_e5m2, must be"),
    ({"lhs_quantize": "int8", "w_up": QuantizedTensor(INT8.data, np.ones((2, 2, 1), np.float32))}, ValueError,
     "w_up.scale: has blocks of 2 elements along K, must be of a multiple of 16"),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "error", "message"), TRACING, ids=range(len(TRACING)))
def test_errors_when_tracing(changes, error, message):
    with pytest.raises(error, match=f"^{message}"):
        jax.eval_shape(lambda: run_mlp(**changes))


@pytest.mark.parametrize("name", ["x", "row_weights", "w_up", "w_gate", "w_down", "b_up", "b_down"])
def test_float64_is_refused(name, x64):
    given = {"x": X, "row_weights": WEIGHTS, "w_up": UP, "w_gate": UP, "w_down": DOWN, "b_up": UP[:, 0]}
    given |= {"b_down": DOWN[:, 0]}
    with pytest.raises(TypeError, match=rf"^{name}: .*float64, must be float16, bfloat16 or float32"):
        run_mlp(**(given | {name: given[name].astype(np.float64)}))
    with pytest.raises(TypeError, match=r"^preferred_element_type: dtype is float64"):
        run_mlp(preferred_element_type=np.float64)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"group_sizes": np.array([-1, 3], np.int32)}, "group_sizes: group 0 has size -1"),
        ({"group_sizes": np.array([3, 3], np.int32)}, "group_sizes: group 1 has size 3 and starts at 3, which exceeds"),
        ({"group_offset": 1}, "group_offset: value 1 at index 0"),
        ({"row_tokens": np.array([0, 0, 0, 9, 0], np.int32)}, "row_tokens: value 9 at index 3, must be in"),
        ({"row_tokens": np.array([-1, 0, 0, 0, 0], np.int32)}, "row_tokens: value -1 at index 0, must be in"),
        ({"x": X[:0]}, r"row_tokens: value 0 at index 0, must be in \[0, 0\)"),
    ],
)
def test_errors_when_running(changes, message):
    for run in (lambda: run_mlp(**changes), jax.jit(lambda: run_mlp(**changes))):
        with pytest.raises((ValueError, jax.errors.JaxRuntimeError), match=message):
            jax.block_until_ready(run())


def test_other_platforms_are_refused():
    with pytest.raises(NotImplementedError, match="raggemm: moe_mlp runs on the platform cpu only, not on tpu"):
        jax.jit(run_mlp).trace().lower(lowering_platforms=("tpu",))


def test_jaxpr_is_readable():
    case = Case("interleaved", (True, False))
    text = str(jax.make_jaxpr(lambda: case(activation="gelu", group_offset=0))())
    operands = "row_weights,b_up,b_down,group_offset"
    assert f"MLP(activation=GELU merged=INTERLEAVED up_is_trans=True operands={operands} -> float32)" in text
