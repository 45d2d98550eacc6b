"""Tests raggemm.compat.tokamax with the arguments that tokamax passes to an implementation.

raggemm must raise NotImplementedError for calls that it cannot compute. Only then does tokamax try its next
implementation.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import moe_oracle
import numpy as np
import pytest
from ragged_dots import Form
from raggemm.compat import tokamax

FORM = Form("mk,gkn->mn, m")
LHS, RHS, _ = FORM.operands()
SIZES = np.array([4, 0, 3], np.int32)


@dataclasses.dataclass
class GroupSizes:
    """A stand-in for tokamax' class GroupSizes."""

    value: Any
    representative_value: tuple[int, ...] = (3, 3, 3)


class QuantizedArray:
    dtype, shape, ndim = RHS.dtype, RHS.shape, RHS.ndim


def dot(lhs, rhs, sizes, **options):
    options = {"precision": None, "preferred_element_type": None, "activation": None} | options
    return tokamax.ragged_dot(lhs, rhs, group_sizes=sizes, ragged_dot_dimension_numbers=FORM.numbers, **options)


def test_activation_is_applied_before_the_result_is_rounded():
    lhs, rhs = LHS.astype(ml_dtypes.bfloat16), RHS.astype(ml_dtypes.bfloat16)
    dtypes = []

    def activation(x):
        dtypes.append(x.dtype)
        return jnp.sin(100 * x)

    got = dot(lhs, rhs, SIZES, activation=activation)
    assert (got.dtype, dtypes) == (jnp.bfloat16, [jnp.float32])
    exact = FORM.einsum(lhs.astype(np.float64), rhs.astype(np.float64), SIZES)
    # If products were rounded to bfloat16 first, the error would be up to 2.
    np.testing.assert_allclose(np.asarray(got).astype(np.float64), np.sin(100 * exact), atol=2e-2)


def test_group_offset():
    """Rows of groups before group_offset and after the groups of rhs are zero."""
    offset = np.array([1], np.int32)
    kept = np.concatenate([np.zeros(4), np.ones(3), np.zeros(2)])[:, None]
    exact = FORM.expected(LHS, RHS, SIZES)
    for sizes in (SIZES, GroupSizes(SIZES)):
        got = dot(LHS, RHS[1:], sizes, group_offset=offset, zero_initialize=True)
        dataclasses.replace(exact, want=exact.want * kept).check(got)

    def loss(w, offset):
        return dot(LHS, w, SIZES, group_offset=offset).sum()

    gradient = jax.jit(jax.grad(loss))(RHS[1:], offset)
    np.testing.assert_allclose(gradient[1], np.broadcast_to(LHS[4:7].sum(0)[:, None], RHS[2].shape), rtol=1e-5)
    with pytest.raises(NotImplementedError, match=r"group_offset: shape is .2,.*must be"):
        tokamax.ragged_dot(LHS, RHS[1:], group_sizes=SIZES, group_offset=np.array([1, 1]))


# {tokamax' name of an activation: raggemm's name}. In tokamax, gelu is the tanh approximation.
GATED = {"silu": "silu", "gelu": "gelu_tanh", "gelu_tanh": "gelu_tanh", "swigluoai": "swiglu_oai"}


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16], ids=str)
@pytest.mark.parametrize("name", GATED)
def test_merged_gate_and_up(name, dtype):
    merged = (4 * np.concatenate([RHS, RHS[::-1]], 2)).astype(dtype)
    lhs, columns = LHS.astype(dtype), RHS.shape[2]
    products = FORM.einsum(lhs.astype(np.float64), merged.astype(np.float64), SIZES)
    want = moe_oracle.activated(np, GATED[name], products[:, :columns], products[:, columns:])
    # If products were rounded to bfloat16 first, errors would exceed `tolerance`.
    tolerance = 2**-8 if dtype == ml_dtypes.bfloat16 else 2e-6
    for activation, expected in ((None, want), (jnp.tanh, np.tanh(want))):
        options = {"fuse_gateup_activation": name, "activation": activation}
        got = dot(lhs, merged, SIZES, **options)
        assert (got.dtype, got.shape) == (dtype, want.shape)
        np.testing.assert_allclose(np.asarray(got).astype(np.float64), expected, rtol=tolerance, atol=tolerance * 2**-4)


def test_manual_axis_type():
    manual = getattr(jax.sharding, "ManualAxisType", None)
    if manual is None:
        pytest.skip(f"jax {jax.__version__} has no ManualAxisType")
    replicated, spec = jax.sharding.PartitionSpec(), jax.sharding.PartitionSpec("x")

    def call(lhs, rhs, sizes):
        kind = manual(varying=frozenset({"x"}))
        out = dot(lhs, rhs, sizes, manual_axis_type=kind)
        assert jax.typeof(out).manual_axis_type == kind
        return out

    mesh = jax.make_mesh((2,), ("x",))
    specs = {"in_specs": (replicated,) * 3, "out_specs": spec}
    got = jax.jit(jax.shard_map(call, mesh=mesh, **specs))(LHS, RHS, SIZES)
    for part in np.split(np.asarray(got), 2):
        FORM.expected(LHS, RHS, SIZES).check(part)
    with pytest.raises(NotImplementedError, match=r"manual_axis_type: unreduced is .'x'"):
        kind = manual(unreduced=frozenset({"x"}))
        tokamax.ragged_dot(LHS, RHS, group_sizes=SIZES, manual_axis_type=kind)


REFUSED = {
    "integers": (LHS.astype(np.int32), RHS.astype(np.int32), {}, "lhs: dtype is int32"),
    "a precision": (LHS, RHS, {"precision": "BF16_BF16_F32"}, "precision: BF16_BF16_F32"),
    "an algorithm": (LHS, RHS, {"precision": jax.lax.DotAlgorithmPreset.TF32_TF32_F32}, "TF32_TF32_F32"),
    "an unknown precision": (LHS, RHS, {"precision": "sharp"}, "sharp"),
    "quantized": (LHS, QuantizedArray(), {}, "rhs: QuantizedArray"),
    "residuals": (LHS, RHS, {"return_residuals": True}, "return_residuals: True"),
    "an unknown argument": (LHS, RHS, {"lookahead": 3}, "lookahead: 3"),
    "an unknown gate": (LHS, RHS, {"fuse_gateup_activation": "situ:4.0:none"}, "situ.*must be one of 'silu', 'gelu'"),
    "an odd number of columns": (LHS, RHS, {"fuse_gateup_activation": "silu"}, "has 5 columns, must have an even"),
    "shapes": (LHS[:, 1:], RHS, {}, "contracting dimensions"),
    "groups": (LHS, RHS[:2], {}, "rhs group dimension size"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_unsupported_calls_fall_through(case):
    lhs, rhs, options, message = REFUSED[case]
    with pytest.raises(NotImplementedError, match=message):
        dot(lhs, rhs, SIZES, **options)


def test_other_platforms_fall_through(monkeypatch):
    class Device:
        platform = "tpu"

    monkeypatch.setattr(tokamax.backend, "get_default_device", Device)
    with pytest.raises(NotImplementedError, match="not on tpu"):
        tokamax.ragged_dot(LHS, RHS, group_sizes=SIZES)
