import functools
import sys
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import quantized_formats
import quantized_modes as q
import raggemm
from front_end_checks import check_errors
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P
from quantized_modes import SIZES, G, K, M, N, QArray
from raggemm.compat import maxtext

LIMITS = {"int8": 127, "int4": 7, "float8_e4m3fn": 448, "float8_e5m2": 57344}
RANDOM = np.random.default_rng(0)
LHS = (RANDOM.normal(size=(M, K)) * 2.0 ** RANDOM.integers(-10, 11, (M, 1))).astype(np.float32)
RHS = (RANDOM.normal(size=(G, K, N)) * 2.0 ** RANDOM.integers(-10, 11, (G, 1, 1))).astype(np.float32)
CT = RANDOM.uniform(-1, 1, (M, N)).astype(np.float32)
Rule = functools.partial(types.SimpleNamespace, act_qtype=None, weight_qtype=None)
sys.modules.pop("qwix.pallas", None)


def fake_quantized(x, name, axes, bound=None):
    """Quantizes and dequantizes x. Elements share a scale along `axes`. bound: largest magnitude, if it is fixed."""
    if name is None:
        return x.astype(np.float64)
    largest = np.abs(x).max(axes, keepdims=True) if bound is None else np.float32(bound)
    scale = (largest.astype(np.float32) * np.float32(1 / LIMITS[name])).astype(np.float32)
    scale = np.where(scale == 0, 1, scale).astype(np.float64)
    codes = np.clip(quantized_formats.nearest(x / scale, name), -LIMITS[name], LIMITS[name])
    return codes * scale


# A large tolerance: raggemm and the reference may round a quotient near a tie differently.
near = functools.partial(q.near, relative=2e-3)


def run(rhs=RHS, lhs=LHS, **options):
    def loss(lhs, rhs):
        out = maxtext.gmm(lhs, rhs, SIZES, **options)
        return (out * CT).sum(), out

    gradients, out = jax.jit(jax.grad(loss, (0, 1), has_aux=True, allow_int=True))(lhs, rhs)
    return out, *gradients


RULES = {
    "weights": ({}, (None, "int4", None), None),
    "activations": ({}, ("int8", None, None), None),
    "both": ({}, ("int8", "int8", None), None),
    "gradients too": ({}, ("float8_e4m3fn", "float8_e4m3fn", "float8_e5m2"), None),
    "integers": ({}, ("int8", "int4", "int8"), None),
    "fixed": ({}, ("float8_e4m3fn", "float8_e4m3fn", "float8_e5m2"), 224),
    "one scale": ({"disable_channelwise_axes": True}, ("int8", "int8", "int8"), None),
}


@pytest.mark.parametrize("transpose", [False, True])
@pytest.mark.parametrize("case", RULES)
def test_rules(case, transpose):
    options, (act, weight, bwd), bound = RULES[case]
    one_scale = "disable_channelwise_axes" in options
    options = dict(options, act_qtype=act, weight_qtype=weight, bwd_qtype=bwd)
    lhs, rhs = (LHS, RHS) if bound is None else (LHS / 8, RHS / 8)  # some elements exceed the bound
    if bound is not None:
        options |= dict.fromkeys(("act_calibration_method", "weight_calibration_method"), f"fixed,-{bound},{bound}")
    given = rhs.swapaxes(1, 2) if transpose else rhs
    rule = {"use_qwix_quantization": True, "qwix_rule": Rule(**options)}
    out, dlhs, drhs = run(given, lhs, transpose_rhs=transpose, **rule)
    axes = ((0, 1), (0, 1, 2)) if one_scale else (1, (0, 1))
    left, right = fake_quantized(lhs, act, axes[0], bound), fake_quantized(rhs, weight, axes[1], bound)
    near(out, *q.product("M", left, right))
    # A gradient multiplies the cotangent by the scales of the other operand, and then quantizes it.
    scales = []
    for x, name, shared in ((lhs, act, axes[0]), (rhs, weight, axes[1])):
        largest = np.abs(x).max(shared, keepdims=True) if bound is None else np.full((1,) * x.ndim, bound)
        scales.append(np.float64(1) if name is None else largest.astype(np.float64) / LIMITS[name])
    to_lhs = CT * (scales[1] if scales[1].ndim == 0 else scales[1][0])
    to_rhs = CT * scales[0]
    ct_lhs = fake_quantized(to_lhs, bwd, (0, 1) if one_scale else 1)
    ct_rhs = fake_quantized(to_rhs, bwd, (0, 1) if one_scale else 0)
    want = q.gradient("M", 0, right / scales[1], ct_lhs)
    magnitude = q.gradient("M", 0, np.abs(right / scales[1]), np.abs(ct_lhs))
    near(dlhs, want, magnitude)
    want, magnitude = (q.gradient("M", 1, f(left / scales[0]), f(ct_rhs)) for f in (np.asarray, np.abs))
    near(drhs.swapaxes(1, 2) if transpose else drhs, want, magnitude)
    assert (np.asarray(drhs)[1] == 0).all() and (np.asarray(out)[17:] == 0).all()


def test_the_current_rule_of_qwix_applies(monkeypatch):
    jax.tree.map(np.testing.assert_array_equal, run(use_qwix_quantization=True), run())
    rules = {"gmm": Rule(weight_qtype="int8")}
    monkeypatch.setitem(sys.modules, "qwix.pallas", types.SimpleNamespace(get_current_rule=rules.get))
    want = run(rhs_quantize_dtype="int8")
    jax.tree.map(np.testing.assert_array_equal, run(use_qwix_quantization=True), want)
    rules.clear()
    jax.tree.map(np.testing.assert_array_equal, run(use_qwix_quantization=True), run())


@pytest.mark.parametrize("method, factor", [("absmax,0.5", 0.5), ("rms,3", 3)])
def test_other_calibrations(method, factor):
    rule = Rule(act_qtype="int8", act_calibration_method=method)
    out, *_ = run(use_qwix_quantization=True, qwix_rule=rule)
    row_size = np.abs(LHS).max(1) if method[0] == "a" else np.sqrt((LHS.astype(np.float64) ** 2).mean(1))
    bound = (factor * row_size)[:, None]
    left = np.clip(np.rint(LHS / (bound / 127)), -127, 127) * (bound / 127)
    near(out, *q.product("M", left, RHS))


def test_quantized_weights_are_gathered():
    """Each of two devices has half of the columns of rhs, and gathers the other half.

    Both devices compute gradients for all columns, and each gets the sums for its own columns.
    """
    rule = Rule(act_qtype="int8", weight_qtype="int8", bwd_qtype="int8", weight_calibration_method="fixed,-4,4")
    options = {"use_qwix_quantization": True, "qwix_rule": rule, "use_tokamax_backend": True}

    def result_and_gradient(lhs, rhs, **gather):
        out, back = jax.vjp(lambda rhs: maxtext.gmm(lhs, rhs, SIZES, **options, **gather), rhs)
        return out, *back(jnp.asarray(CT))

    def on_device(lhs, rhs):
        out, gradient = result_and_gradient(lhs, rhs, weight_gather_axes=(("x", 2),))
        return out[None], gradient

    spec = P(None, None, "x")
    mesh = jax.make_mesh((2,), ("x",), axis_types=(AxisType.Auto,), devices=jax.devices()[:2])
    f = jax.shard_map(on_device, mesh=mesh, in_specs=(P(), spec), out_specs=(P("x"), spec), check_vma=False)
    (out, gradient), (want, want_gradient) = jax.jit(f)(LHS, RHS), jax.jit(result_and_gradient)(LHS, RHS)
    np.testing.assert_array_equal(out, np.stack([want] * 2))
    np.testing.assert_array_equal(gradient, 2 * want_gradient)


def test_cotangents_of_qarrays_match_maxtext():
    data, scale, _ = q.operand(q.FORMATS["e4m3"], "M", 1, 3)
    out, dlhs, drhs = run(QArray(data, scale), preferred_element_type=jnp.bfloat16)
    assert out.dtype == jnp.bfloat16 and dlhs.dtype == np.float32
    assert drhs.qvalue.dtype == data.dtype and (drhs.scale == 0).all()
    _, _, drhs = run(QArray(*q.operand(q.FORMATS["int8"], "M", 1, 3)[:2]))
    assert drhs.qvalue.dtype == jax.dtypes.float0 and (drhs.scale == 0).all()


def test_gradient_of_partial_sum_is_the_cotangent():
    def loss(partial_sum):
        rule = {"use_qwix_quantization": True, "qwix_rule": Rule(act_qtype="int8")}
        return (maxtext.gmm(LHS, RHS, SIZES, partial_sum=partial_sum, **rule) * CT).sum()

    np.testing.assert_array_equal(jax.jit(jax.grad(loss))(jnp.zeros((M, N), jnp.float32)), CT)


def test_gmm_quantizes_whole_rows_inside_the_call():
    codes = raggemm.quantize(RHS, "int4", axes=(0, 1))
    want = raggemm.gmm(LHS, codes, SIZES, lhs_quantize="int8", lhs_block=None)
    np.testing.assert_array_equal(run(lhs_quantize_dtype="int8", rhs_quantize_dtype="int4")[0], want)
    others = Rule(act_qtype="int8", weight_qtype="int4", act_calibration_method="absmax,1")
    assert (run(use_qwix_quantization=True, qwix_rule=others)[0] != want).any()


def test_tgmm_quantizes():
    cols = RANDOM.normal(size=(M, N)).astype(np.float32)
    out = maxtext.tgmm(LHS.T, cols, SIZES, lhs_quantize_dtype=jnp.int8, rhs_quantize_dtype=jnp.int8)
    near(out, *q.product("K", fake_quantized(LHS, "int8", 0), fake_quantized(cols, "int8", 0)))


def gmm_with(**options):
    return maxtext.gmm(LHS, RHS, SIZES, **options)


def gmm_with_rule(**options):
    return gmm_with(use_qwix_quantization=True, qwix_rule=Rule(**options))


ERRORS = [
    (lambda: gmm_with(lhs_quantize_dtype=jnp.int16), TypeError, "^lhs_quantize_dtype: dtype is int16, must be int8,"),
    (lambda: gmm_with(rhs_quantize_dtype="int3"), TypeError, "^rhs_quantize_dtype: is 'int3', must be int8, uint8"),
    (lambda: gmm_with(use_qwix_quantization=True, qwix_rule="rule"), ValueError,
     "^qwix_rule: is str, must have act_q"),
    (lambda: gmm_with_rule(bwd_qtype=jnp.int32), TypeError, "^bwd_qtype: dtype is int32"),
    (lambda: gmm_with_rule(weight_qtype="int8", weight_calibration_method="minmax"), ValueError,
     '^calibration_method: is "minmax", must be "absmax", '),
    (lambda: gmm_with_rule(act_qtype="int8", act_calibration_method="fixed,-1,2"), ValueError,
     '^calibration_method: is "fixed,-1,2", must be .*"fixed,-BOUND,BOUND"'),
    (lambda: gmm_with(rhs_quantize_dtype="int8", use_manual_quantization=True), ValueError,
     "^use_manual_quantization: the calibration method of rhs is absmax, must be a fixed bound"),
    (lambda: maxtext.gmm(LHS.astype(np.int8), RHS, SIZES, lhs_quantize_dtype="int8"), TypeError,
     "^lhs: dtype is int8, must be float16"),
    (lambda: maxtext.tgmm(LHS.T, LHS.astype(int), SIZES, rhs_quantize_dtype="int8"), TypeError,
     r"^rhs: dtype is int\d+, must be float16"),
    (lambda: maxtext.gmm(LHS, QArray(RHS.astype(np.int8), RHS), SIZES[:2]), ValueError,
     "has 3 groups, more than the 2"),
]  # fmt: skip


@pytest.mark.parametrize("call, error, message", ERRORS, ids=range(len(ERRORS)))
def test_errors(call, error, message):
    check_errors(call, error, message)
