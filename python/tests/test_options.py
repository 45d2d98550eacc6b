"""Tests that raggemm.options affects exactly the calls that are lowered within it."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import plans
import pytest
import raggemm
from arrays import random
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from raggemm._src import library

SIZES = np.array([3, 0, 2, 4], np.int32)
LHS, RHS = random(12, 8), random(4, 8, 16, seed=1)
OPERANDS = LHS, RHS, SIZES
WRONG = LHS, RHS, np.array([3, 0, 99, 4], np.int32)
MESSAGE = "group 2 has size 99"
# Instruction sets of this CPU, the preferred one first.
USABLE = [isa["name"] for isa in library.description()["isas"] if isa["usable"]]
WORST, BEST = USABLE[-1], USABLE[0]
OTHER_DESCRIPTIONS = {name: library.description()[name] for name in ("executors", "max_threads", "bf16_sums")}


def isa_of(function, *operands) -> str:
    (isa,) = set(plans.lines("isa", function, *operands))
    return isa.upper()


def attributes(lowered) -> dict[str, str]:
    (config,) = set(re.findall(r"raggemm_grouped_gemm_v1.*backend_config=\{([^}]*)\}", lowered.compile().as_text()))
    found = re.findall(r'\b(isa|executor|threads|on_error) = "?(\w+)', config)
    return dict(found)


def fresh_gmm():
    return jax.jit(lambda *x: raggemm.gmm(*x))


@pytest.mark.parametrize("rule", ["pairs", "tiles"])
def test_rules_of_bf16(rule):
    lhs, rhs = random(9, 300).astype(jnp.bfloat16), random(3, 300, 40, seed=1).astype(jnp.bfloat16)
    sizes = np.array([4, 0, 5], np.int32)

    def product(*operands):
        return raggemm.gmm(*operands, preferred_element_type=jnp.float32)

    (arithmetic,) = plans.lines("arithmetic", product, lhs, rhs, sizes)
    assert arithmetic.endswith(", as the best ISA of this CPU sums them")
    results = []
    for isa in USABLE:
        with raggemm.options(bf16_sums=rule, isa=isa):
            (arithmetic,) = plans.lines("arithmetic", product, lhs, rhs, sizes)
            assert re.fullmatch(f"{rule}, .*, as bf16_sums says", arithmetic)
            results.append(np.asarray(product(lhs, rhs, sizes)))
    for result in results[1:]:
        np.testing.assert_array_equal(result, results[0])
    want = np.concatenate([np.float64(lhs[:4]) @ np.float64(rhs[0]), np.float64(lhs[4:]) @ np.float64(rhs[2])])
    np.testing.assert_allclose(results[0], want, rtol=0, atol=1e-4)
    with raggemm.options(bf16_sums="tiles" if rule == "pairs" else "pairs"):
        assert (results[0] != np.asarray(product(lhs, rhs, sizes))).any()  # the bf16_sums rules add in different orders


@pytest.mark.parametrize("isa", USABLE)
def test_isa_and_threads(isa):
    with raggemm.options(isa=isa, threads=1):
        text = plans.described(fresh_gmm(), *OPERANDS)
    assert f"\nisa: {isa.lower()}\n" in text
    assert "\nthreads: 1\n" in text
    with raggemm.options(isa=isa.lower(), threads=2):
        text = plans.described(raggemm.gmm, *OPERANDS)
    assert f"\nisa: {isa.lower()}\n" in text
    assert "\nthreads: 2\n" in text


@pytest.mark.parametrize("executor", ["SERIAL", "POOL", "OPENMP"])
def test_executor(executor):
    with raggemm.options(executor=executor.lower()):
        assert plans.lines("executor", fresh_gmm(), *OPERANDS) == [executor.lower()]


@pytest.mark.skipif(len(USABLE) == 1, reason="this CPU has one instruction set")
def test_no_stale_program_after_entering_or_leaving():
    """Tests the caches of jit, eager calls, traces and lower()."""
    jitted = fresh_gmm()
    inner = jax.jit(lambda *x: jitted(*x) + 0)
    trace = jax.jit(lambda *x: raggemm.gmm(*x)).trace(*OPERANDS)
    eager = [jnp.asarray(x) for x in OPERANDS]

    functions = (
        lambda: jitted(*OPERANDS),
        lambda: inner(*OPERANDS),
        lambda: raggemm.gmm(*OPERANDS),
        lambda: raggemm.gmm(*eager),
        lambda: trace.lower().compile()(*OPERANDS),
    )
    for function in functions:
        default, seen = isa_of(function), []
        for _ in range(2):
            with raggemm.options(isa=WORST):
                seen.append(isa_of(function))
                with raggemm.options(isa=BEST):
                    seen.append(isa_of(function))
                seen.append(isa_of(function))
            seen.append(isa_of(function))
        assert seen == [WORST, BEST, WORST, default] * 2


WRONG_OPTIONS = [
    ({"isa": "sse2"}, "isa is 'sse2', must be one of AUTO, AVX512, AVX2, SCALAR"),
    ({"bf16_sums": "rows"}, "bf16_sums is 'rows', must be one of AUTO, TILES, PAIRS, FMA, MMLA"),
    ({"isa": 2}, "isa is 2, must be one of AUTO, AVX512, AVX2, SCALAR"),
    ({"isa": "AVX512"}, "isa: AVX512 is not usable here, because of a test; usable: AUTO, AVX2, SCALAR"),
    ({"threads": 257}, "threads is 257, must be an integer in [0, 256]"),
    ({"threads": -1}, "threads is -1, must be an integer in [0, 256]"),
    ({"executor": "gpu"}, "executor is 'gpu', must be one of AUTO, OPENMP, POOL, SERIAL"),
    ({"on_error": "ignore"}, "on_error is 'ignore', must be one of raise, log, nan"),
]


@pytest.mark.parametrize("given, message", WRONG_OPTIONS, ids=[str(given) for given, _ in WRONG_OPTIONS])
def test_errors_list_the_valid_values(monkeypatch, given, message):
    isas = [{"name": name, "usable": name != "AVX512", "missing": "of a test"} for name in ("AVX512", "AVX2", "SCALAR")]
    monkeypatch.setattr(library, "description", lambda: {"isas": isas, **OTHER_DESCRIPTIONS})
    with pytest.raises(ValueError, match=re.escape(message) + "$"), raggemm.options(**given):
        pass


@pytest.mark.parametrize("context", [lambda: raggemm.options(threads=1), raggemm.override_ragged_dot])
def test_contexts_inside_a_trace_are_refused(context):
    def layer(x):
        with context():
            return raggemm.gmm(x, RHS, SIZES)

    with pytest.raises(RuntimeError, match="enter it around the call"):
        jax.jit(layer)(LHS)
    assert jax.jvp(layer, (LHS,), (LHS,))[1].shape == (12, 16)  # eager, so options apply


# Backward passes and partitioned calls.


@pytest.mark.skipif(len(USABLE) == 1, reason="this CPU has one instruction set")
def test_a_backward_pass_has_the_options_of_its_lowering():
    def loss(x, w):
        return jnp.sin(raggemm.gmm(x, w, SIZES)).sum()

    with raggemm.options(isa=WORST):
        assert plans.lines("isa", jax.jit(jax.grad(loss, (0, 1))), LHS, RHS) == [WORST.lower()] * 3
        assert plans.lines("isa", jax.grad(loss, (0, 1)), LHS, RHS) == [WORST.lower()] * 3
        out, vjp = jax.vjp(lambda x, w: raggemm.gmm(x, w, SIZES), LHS, RHS)
    with raggemm.options(isa=BEST):
        assert plans.lines("isa", vjp, out) == [BEST.lower()] * 2


@pytest.mark.parametrize("axis", [1, 2])
def test_partitioned_calls_have_the_options_of_their_lowering(axis):
    """The partitioner divides calls at compile time. `with raggemm.options` is over by then."""
    mesh = jax.make_mesh((4,), ("x",), axis_types=(AxisType.Auto,))
    spec = [None, None, None]
    spec[axis] = "x"
    w = jax.device_put(RHS, NamedSharding(mesh, PartitionSpec(*spec)))
    operands = [jax.device_put(x, NamedSharding(mesh, PartitionSpec())) for x in (LHS, SIZES)]
    raggemm.enable_partitioning()
    try:
        with raggemm.options(isa=WORST, on_error="nan"):
            lowered = jax.jit(lambda x, w, s: raggemm.gmm(x, w, s)).lower(operands[0], w, operands[1])
        text, seen = lowered.compile().as_text(), attributes(lowered)
    finally:
        raggemm.enable_partitioning(False)
    assert ("all-reduce" in text) == (axis == 1)
    assert "f32[4,8,16]" not in text  # the partitioner divided the call
    assert seen == {"isa": WORST, "on_error": "nan"}


# Errors.


def test_errors_are_logged_by_default_with_several_devices(capfd):
    assert attributes(fresh_gmm().lower(*OPERANDS)) == {"on_error": "log"}
    with pytest.raises((jax.errors.JaxRuntimeError, ValueError), match=MESSAGE):
        jax.block_until_ready(fresh_gmm()(*WRONG))
    lines = [line for line in capfd.readouterr().err.splitlines() if line.startswith("raggemm: ")]  # XLA logs, too
    assert len(lines) == 1 and re.search(MESSAGE, lines[0])


def test_on_error_raise(capfd):
    with raggemm.options(on_error="raise"), pytest.raises((jax.errors.JaxRuntimeError, ValueError), match=MESSAGE):
        jax.block_until_ready(fresh_gmm()(*WRONG))
    assert "raggemm" not in capfd.readouterr().err


def test_on_error_nan(capfd):
    with raggemm.options(on_error="nan"):
        assert np.isnan(fresh_gmm()(*WRONG)).all()
        gradient = jax.jit(jax.grad(lambda w: raggemm.gmm(LHS, w, WRONG[2]).sum()))(RHS)
        assert np.isnan(gradient).all()
        np.testing.assert_array_equal(fresh_gmm()(*OPERANDS), raggemm.gmm(*OPERANDS))
    message = capfd.readouterr().err
    assert message.startswith("raggemm: ")
    assert MESSAGE in message
