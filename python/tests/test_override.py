import collections
import functools
import logging
import threading

import jax
import ml_dtypes
import numpy as np
import pytest
import raggemm
from arrays import sampled
from jax import lax
from jax.sharding import AxisType, PartitionSpec
from program_text import custom_calls
from ragged_dots import FORMS, Form
from raggemm import override_ragged_dot
from raggemm._src import versions

SIZES = np.array([4, 0, 3], np.int32)
BASIC = Form("mk,gkn->mn, m")
LHS, RHS, _ = BASIC.operands()
POISONED = RHS * np.where(np.arange(3)[:, None, None] == 2, np.nan, 1).astype(np.float32)  # NaN in the last group


def count_by_lowering(lowerings) -> dict[str, int]:
    return collections.Counter(lowering.by for lowering in lowerings)


def is_raggemm_result(out) -> bool:
    """Returns true if raggemm computed `out` from POISONED. JAX makes all rows NaN."""
    out = np.asarray(out)
    assert np.isnan(out[4:7]).all()
    return not np.isnan(out[:4]).any()


@pytest.mark.parametrize("form", sampled(FORMS[::2], 4), ids=str)
def test_every_form_of_ragged_dot_general(form):
    operands = form.operands()
    with override_ragged_dot() as lowerings:
        got = jax.jit(functools.partial(lax.ragged_dot_general, ragged_dot_dimension_numbers=form.numbers))(*operands)
    assert count_by_lowering(lowerings) == {"raggemm": 1}
    form.expected(*operands).check(got)


@pytest.mark.parametrize("check_vma", [True, False])
def test_shard_map(check_vma):
    mesh = jax.make_mesh((3,), ("rows",), axis_types=(AxisType.Auto,), devices=jax.devices()[:3])
    rows, sizes = PartitionSpec("rows"), np.array([[1, 0, 2], [3, 0, 0], [0, 1, 1]], np.int32)

    def shard(x, w, sizes):
        w = versions._vary(w, ("rows",)) if check_vma else w  # jax.lax: operands must vary along the same mesh axes
        return lax.ragged_dot(x, w, sizes[0])

    call = jax.jit(
        jax.shard_map(shard, mesh=mesh, in_specs=(rows, PartitionSpec(), rows), out_specs=rows, check_vma=check_vma)
    )
    with override_ragged_dot() as lowerings:
        got = call(LHS, RHS, sizes)
    assert count_by_lowering(lowerings) == {"raggemm": 1}
    want = [raggemm.ragged_dot(LHS[3 * i :][:3], RHS, sizes[i]) for i in range(3)]
    np.testing.assert_array_equal(got, np.concatenate(want))


E4M3, INT32 = ml_dtypes.float8_e4m3fn, {"preferred_element_type": np.int32}
FALLBACK = {
    "int32": (LHS.astype(np.int32), RHS.astype(np.int32), {}, "lhs is int32"),
    "result": (LHS.astype(np.int8), RHS.astype(np.int8), {"preferred_element_type": np.float32}, "result is float32"),
    "precision": (LHS, RHS, {"precision": "BF16_BF16_F32"}, "precision: BF16_BF16_F32"),
    "int4 with int16": (LHS.astype(ml_dtypes.int4), RHS.astype(np.int16), INT32, "rhs is int16"),
    "a result of float8": (LHS.astype(E4M3), RHS.astype(E4M3), {}, "result is float8_e4m3fn"),
    "float with an int32 result": (LHS, RHS.astype(np.int8), INT32, "result is int32"),
    "another float8": (LHS, RHS.astype(ml_dtypes.float8_e4m3b11fnuz), {}, "rhs is float8_e4m3b11fnuz"),
}


@pytest.mark.parametrize("case", FALLBACK)
def test_unsupported_calls_are_lowered_by_jax(case):
    lhs, rhs, options, why = FALLBACK[case]
    call = functools.partial(lax.ragged_dot, **options)
    with override_ragged_dot() as lowerings:
        got = jax.jit(call)(lhs, rhs, SIZES)
    assert [(x.by, x.why.startswith(why)) for x in lowerings] == [("jax", True)]
    np.testing.assert_array_equal(got, jax.jit(lambda *x: call(*x))(lhs, rhs, SIZES))


@pytest.mark.parametrize("platform", ["tpu", "cuda"])
def test_other_platforms_are_lowered_by_jax(platform):
    call = jax.jit(lambda *x: lax.ragged_dot(*x))
    own = call.trace(LHS, RHS, SIZES).lower(lowering_platforms=(platform,)).as_text()
    with override_ragged_dot() as lowerings:
        overridden = call.trace(LHS, RHS, SIZES).lower(lowering_platforms=(platform,)).as_text()
        assert not lowerings
        with pytest.raises(NotImplementedError, match=f"cpu only, not on {platform}"):
            jax.jit(lambda *x: lax.ragged_dot(*x, group_offset=0)).trace(LHS, RHS, SIZES).lower(
                lowering_platforms=(platform,)
            )
    assert own == overridden


def test_no_stale_program_after_entering_or_leaving():
    """No cache of JAX returns a program lowered with another state of the override."""
    jitted = jax.jit(lax.ragged_dot)
    inner = jax.jit(lambda *x: jitted(*x) + 0)

    def traced(*x):
        return jitted.trace(*x).lower().compile()(*x)

    def batched(*x):
        return jax.vmap(lax.ragged_dot)(*(a[None] for a in x))[0]

    for function in (jitted, inner, lax.ragged_dot, traced, batched):
        computed_by_raggemm = [is_raggemm_result(function(LHS, POISONED, SIZES))]
        for _ in range(2):
            with override_ragged_dot():
                computed_by_raggemm.append(is_raggemm_result(function(LHS, POISONED, SIZES)))
                with override_ragged_dot(False):
                    computed_by_raggemm.append(is_raggemm_result(function(LHS, POISONED, SIZES)))
                computed_by_raggemm.append(is_raggemm_result(function(LHS, POISONED, SIZES)))
            computed_by_raggemm.append(is_raggemm_result(function(LHS, POISONED, SIZES)))
        assert computed_by_raggemm == [False, *[True, False, True, False] * 2]


def test_enabling_applies_to_all_threads(caplog):
    results = []

    def thread():
        results.append(is_raggemm_result(jax.jit(lambda *x: lax.ragged_dot(*x))(LHS, POISONED, SIZES)))

    def run_in_thread():
        worker = threading.Thread(target=thread)
        worker.start()
        worker.join()

    call = jax.jit(lambda *x: lax.ragged_dot(*x))
    run_in_thread()
    raggemm.enable_ragged_dot_override()
    try:
        with caplog.at_level(logging.DEBUG, "raggemm.override"):
            run_in_thread()
            assert is_raggemm_result(call(LHS, POISONED, SIZES))
            assert custom_calls(call.lower(LHS, POISONED, SIZES)) == 1
        with override_ragged_dot(False):
            assert not is_raggemm_result(call(LHS, POISONED, SIZES))
        with override_ragged_dot():  # applies to this thread only
            run_in_thread()
    finally:
        raggemm.enable_ragged_dot_override(False)
    run_in_thread()
    assert results == [False, True, True, False]
    assert not is_raggemm_result(call(LHS, POISONED, SIZES))
    assert "ragged_dot of float32[9,9] float32[3,9,5] int32[3] lowered by raggemm" in caplog.text


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16, np.uint16, np.uint32, np.int32])
def test_sizes_of_every_dtype(dtype):
    """The override widens 8-bit and 16-bit sizes, which the library does not take."""
    with override_ragged_dot() as lowerings:
        got = jax.jit(lambda *x: lax.ragged_dot(*x))(LHS, RHS, SIZES.astype(dtype))
    assert count_by_lowering(lowerings) == {"raggemm": 1}
    np.testing.assert_array_equal(got, raggemm.ragged_dot(LHS, RHS, SIZES))


def test_xla_still_computes_every_group_for_every_row():
    """Fails when JAX gets a lowering of ragged_dot for CPU. Then compare it with raggemm, and say so in the docs."""
    groups, rows, steps, columns = 8, 64, 32, 16
    operands = np.ones((rows, steps)), np.ones((groups, steps, columns)), np.full(groups, rows // groups, np.int32)
    costs = jax.jit(lax.ragged_dot).lower(*operands).compile().cost_analysis()
    flops = (costs[0] if isinstance(costs, list) else costs)["flops"]
    assert flops >= groups * 2 * rows * steps * columns
