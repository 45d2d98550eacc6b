"""The benchmark at JAX level on tiny layers: its report, that contenders agree, and that a wrong one fails it."""

import dataclasses
import json

import jax
import numpy as np
import pytest
from raggemm.demo import bench_jax, contenders, layers, programs
from raggemm.demo.checks import Checks
from raggemm.demo.programs import Limits

# An idle expert first, last and in between; the largest size is padded by 3.
PREFILL = layers.Layer(bench_jax.DEFAULT_MODEL, "prefill", hidden=16, intermediate=24, sizes=(0, 5, 13, 0, 1, 0))
DECODE = dataclasses.replace(PREFILL, phase="decode", sizes=(0, 1, 2, 0, 1, 0))
OTHER_MODEL = dataclasses.replace(DECODE, model="tiny", intermediate=8)
FIELDS = [
    *("model", "phase", "direction", "rows", "recorded_rows", "active", "experts", "contenders"),
    *("ratio_ragged_dot", "ratio_unrolled", "ratio_best_alternative"),
]
EVERYBODY = [*contenders.CONTENDERS, bench_jax.UNROLLED]


@pytest.fixture(autouse=True)
def never_wait(monkeypatch):
    """Times do not matter here."""
    monkeypatch.setattr(programs, "wait_until_quiet", lambda: None)


@pytest.fixture
def run_bench(monkeypatch, tmp_path, capsys):
    """Runs the benchmark on layers: its exit code, what it printed, line by line, and its JSON."""

    def run(recorded, *flags, temp_limit=2**30):
        monkeypatch.setattr(bench_jax, "recorded_layers", lambda: recorded)
        monkeypatch.setattr(bench_jax, "LIMITS", Limits(1000.0, temp_limit))
        code = bench_jax.main([f"--json={tmp_path / 'rows.json'}", *flags])
        return code, capsys.readouterr().out.splitlines(), json.loads((tmp_path / "rows.json").read_text())

    return run


def test_prints_a_report_and_writes_it(run_bench):
    code, lines, rows = run_bench([PREFILL, DECODE, OTHER_MODEL])
    assert (code, lines[-1][:22]) == (0, "raggemm bench_jax: OK ")
    assert [(row["phase"], row["direction"]) for row in rows] == [
        ("prefill", "forward"), ("prefill", "forward+backward"), ("decode", "forward"),
    ]  # fmt: skip
    for row in rows:
        assert list(row) == FIELDS
        assert row["rows"] == row["recorded_rows"] == (19 if row["phase"] == "prefill" else 4)
        assert (row["active"], row["experts"], list(row["contenders"])) == (3, 6, EVERYBODY)
        ms = {name: of["ms"] for name, of in row["contenders"].items()}
        assert row["ratio_ragged_dot"] == ms[contenders.RAGGED_DOT] / ms[contenders.RAGGEMM]
        assert row["ratio_unrolled"] == ms[bench_jax.UNROLLED] / ms[contenders.RAGGEMM]
        best = min(ms[name] for name in (*contenders.LOOPS, contenders.EINSUM))
        assert row["ratio_best_alternative"] == best / ms[contenders.RAGGEMM]
        for name, of in row["contenders"].items():
            assert of["ms"] > 0 and of["temp_bytes"] > 0 and of["compile_seconds"] > 0
            assert of["ratio"] == ms[name] / ms[contenders.RAGGEMM]
            assert of["compiled_for_each_routing"] == (name == bench_jax.UNROLLED)
    assert not any("fewer rows" in line for line in lines)


def test_full_runs_all_models(run_bench):
    code, _, rows = run_bench([DECODE, OTHER_MODEL], "--full")
    assert (code, [row["model"] for row in rows]) == (0, [DECODE.model, "tiny"])


def test_shows_compile_times(run_bench):
    _, lines, [row] = run_bench([DECODE])
    assert any(line.split()[-2:] == ["compile", "s"] for line in lines)
    for name in EVERYBODY:
        [line] = [line for line in lines if line.startswith(f"{name}  ")]
        assert f"{row['contenders'][name]['compile_seconds']:.2f}" in line
        assert ("for each routing" in line) == (name == bench_jax.UNROLLED)


def test_reduced_rows_are_followed_by_all_rows(run_bench):
    code, lines, rows = run_bench([PREFILL], temp_limit=1)
    assert code == 0
    assert [(row["direction"], row["rows"], row["recorded_rows"]) for row in rows] == [
        (direction, count, 19) for direction in ("forward", "forward+backward") for count in (3, 19)
    ]
    ms = {name: rows[0]["contenders"][name]["ms"] for name in contenders.LOOPS}
    for reduced, full in zip(rows[::2], rows[1::2], strict=True):
        assert list(reduced["contenders"]) == list(contenders.CONTENDERS)
        assert reduced["ratio_ragged_dot"] > 0 and reduced["ratio_unrolled"] is None
        assert list(full["contenders"]) == [contenders.RAGGEMM, min(ms, key=ms.get), bench_jax.UNROLLED]
        assert full["ratio_ragged_dot"] is None and full["ratio_best_alternative"] > 0
    assert any("fewer rows" in line for line in lines)


@pytest.mark.parametrize("sizes", [PREFILL.sizes, (8, 8), (0, 40, 0)])
@pytest.mark.parametrize("direction", [bench_jax.FORWARD, bench_jax.BACKWARD])
def test_contenders_agree(sizes, direction):
    layer, checks = dataclasses.replace(PREFILL, sizes=sizes), Checks()
    case = bench_jax.Case(layer, layer, direction)
    programs, _ = bench_jax.checked_programs(case, layers.random_weights(layer), EVERYBODY, checks)
    assert list(programs) == EVERYBODY
    assert checks.count == (len(EVERYBODY) - 1) * (1 if direction == bench_jax.FORWARD else 5)
    assert checks.failures == []


def test_finds_wrong_gradients(monkeypatch):
    right = contenders._OneExpert.backward
    monkeypatch.setattr(contenders._OneExpert, "backward", lambda *args: tuple(d * 1.02 for d in right(*args)))
    case, checks = bench_jax.Case(PREFILL, PREFILL, bench_jax.BACKWARD), Checks()
    wrong = (*contenders.LOOPS, bench_jax.UNROLLED)
    bench_jax.checked_programs(case, layers.random_weights(PREFILL), (contenders.RAGGEMM, *wrong), checks)
    assert len(checks.failures) == 4 * len(wrong)
    for of in ("x", *(f"the {name} weights" for name in layers.Weights._fields)):
        assert sum(f"gradient of {of}: error is" in failure for failure in checks.failures) == len(wrong), of


def test_fails_when_a_block_is_wrong(run_bench, monkeypatch):
    right = contenders.ragged_dot
    monkeypatch.setattr(contenders, "ragged_dot", lambda *operands: right(*operands) * 1.01)
    code, lines, _ = run_bench([DECODE])
    assert (code, lines[-1]) == (1, "raggemm bench_jax: FAILED")
    assert any(f"{contenders.RAGGED_DOT}, y: error is" in line for line in lines)


def test_gradients_of_idle_experts_are_zero():
    layer = PREFILL
    x, sizes = layers.random_rows(layer)
    operands = (x, layers.random_weights(layer), sizes, layers.random_target(layer))
    block = {**contenders.blocks(layer.padded_size), bench_jax.UNROLLED: bench_jax.unrolled_block(layer.sizes)}
    for name in EVERYBODY:
        gradients = jax.jit(jax.grad(bench_jax.loss_of(block[name]), argnums=1))(*operands)
        for gradient in gradients:
            assert [bool(np.asarray(d).any()) for d in gradient] == [size > 0 for size in layer.sizes], name
