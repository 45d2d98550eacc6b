"""The demo and the benchmark on tiny layers: contenders, checks, tables, and that a wrong product fails."""

import dataclasses
import json
import math
import re
import runpy
import sys

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from raggemm import dequantize
from raggemm.ops import gmm, tgmm
from raggemm_demo import __main__ as demo
from raggemm_demo import bench_jax, checks, contenders, formats, layers, programs, progress, quantized
from raggemm_demo.checks import Checks, disagreement
from raggemm_demo.programs import Limits

# An idle expert first, last and in between; the largest size is padded by 3.
TINY = layers.Layer(demo.GRADIENT_MODEL, "prefill", hidden=16, intermediate=24, sizes=(0, 5, 13, 0, 1, 0))
FORWARD_ONLY = dataclasses.replace(TINY, model="tiny", phase="decode")
FIELDS = [
    *("model", "phase", "rows", "active", "experts", "reduced", "raggemm_ms", "fused_ms", "ragged_dot_ms"),
    *("loop_ms", "einsum_ms"),
    *("ratio_ragged_dot", "ratio_alternative", "temp_bytes_raggemm", "temp_bytes_ragged_dot", "max_error"),
]
DECODE = dataclasses.replace(TINY, phase="decode", sizes=(0, 1, 2, 0, 1, 0))
OTHER_MODEL = dataclasses.replace(DECODE, model="tiny", intermediate=8)
BENCH_FIELDS = [
    *("model", "phase", "direction", "rows", "recorded_rows", "active", "experts", "contenders"),
    *("ratio_fused", "ratio_ragged_dot", "ratio_unrolled", "ratio_best_alternative"),
]
EVERYBODY = [*contenders.CONTENDERS, bench_jax.UNROLLED]
# A row has 3 products and 5 contenders, the gradients have 6 products and 4 results, a reduced row has 3 products.
FORWARD_CHECKS, GRADIENT_CHECKS, ALL_ROWS_CHECKS = 8, 10, 3


@pytest.fixture(autouse=True)
def never_wait(monkeypatch):
    """Times do not matter here."""
    monkeypatch.setattr(programs, "wait_until_quiet", lambda: None)


def test_dots_of_the_bfloat16_loop_are_those_that_the_cpu_has_a_unit_for():
    x, sizes = layers.random_rows(TINY)
    block = contenders.blocks(TINY.padded_size)[contenders.LOOPS[0]]
    text = jax.jit(block).lower(x, layers.random_weights(TINY), sizes).as_text()
    dots = re.findall(r"dot_general .*: \(tensor<\S+x(\w+)>, tensor<\S+x(\w+)>\) -> tensor<\S+x(\w+)>", text)
    assert dots == [("bf16", "bf16", "f32")] * 3


def test_the_benchmark_is_a_program_and_says_how_long_it_takes(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["bench_jax", "--help"])
    with pytest.raises(SystemExit):
        runpy.run_module("raggemm_demo.bench_jax", run_name="__main__")
    assert "under three minutes" in " ".join(capsys.readouterr().out.split())


@pytest.fixture
def run_demo(monkeypatch, tmp_path, capsys):
    """Runs the demo on a layer: its exit code, what it printed, line by line, and its JSON."""

    def run(layer):
        monkeypatch.setattr(demo, "recorded_layers", lambda: [layer])
        code = demo.main([f"--json={tmp_path / 'rows.json'}"])
        return code, capsys.readouterr().out.splitlines(), json.loads((tmp_path / "rows.json").read_text())

    return run


def test_prints_a_table_and_writes_it(run_demo, monkeypatch):
    monkeypatch.setattr(demo, "LIMITS", Limits(1000.0, 2**30))
    code, lines, [row] = run_demo(TINY)
    assert (code, lines[-1]) == (0, f"raggemm demo: OK ({FORWARD_CHECKS + GRADIENT_CHECKS} checks)")
    assert list(row) == FIELDS
    assert row == row | {"model": TINY.model, "phase": "prefill", "rows": 19, "active": 3, "experts": 6}
    assert row["reduced"] is False
    assert 0 < row["max_error"] <= 1
    assert row["ratio_ragged_dot"] == row["ragged_dot_ms"] / row["raggemm_ms"]
    assert row["ratio_alternative"] == min(row["loop_ms"], row["einsum_ms"]) / row["raggemm_ms"]
    assert any(demo.GRADIENT_MODEL in line and "3 of 6" in line for line in lines)
    assert not any("fewer rows" in line for line in lines)


def test_a_row_is_printed_when_it_is_there(monkeypatch, capsys):
    """With its heading for the first, and as it stands in the table at the end."""
    monkeypatch.setattr(demo, "recorded_layers", lambda: [DECODE, OTHER_MODEL])
    printed, begin = [], progress.Progress.begin
    monkeypatch.setattr(
        progress.Progress, "begin", lambda *args: (printed.append(capsys.readouterr().out), begin(*args))
    )
    assert demo.main([]) == 0
    first, second = printed[1].splitlines()[:-1], capsys.readouterr().out.splitlines()
    *heading, row = first[-3:]
    assert row.split()[:2] == [DECODE.model, "decode"] and heading[1].split()[:2] == ["model", "phase"]
    table = second[second.index(heading[0]) :]
    assert table[:3] == [*heading, row] and second.count(table[3]) == 2


@pytest.mark.parametrize("limits", [Limits(1000.0, 2**30), Limits(1000.0, 1)], ids=["all rows", "fewer"])
def test_every_step_is_announced(limits, monkeypatch):
    steps = []
    monkeypatch.setattr(demo, "recorded_layers", lambda: [TINY])
    monkeypatch.setattr(demo, "LIMITS", limits)
    monkeypatch.setattr(progress.Progress, "step", lambda _, what: steps.append(what))
    assert demo.main([]) == 0
    assert steps == [
        "how many rows lax.ragged_dot can afford",
        *contenders.CONTENDERS,
        *("comparing with float64", "timing all in turns"),
        *(["raggemm alone on all rows"] if limits.temp_bytes == 1 else []),
        "gradients",
    ]


def test_says_what_runs_and_the_time_left(monkeypatch, capsys):
    seconds = iter((100.0, 101.0, 102.0, 106.0, 112.0))
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(seconds))
    said = progress.Progress([TINY, DECODE], steps=2)  # work as 2 to 1
    for layer, steps in ((TINY, 3), (DECODE, 1)):
        said.begin(layer)
        for number in range(steps):
            said.step(f"step {number}")
    assert capsys.readouterr() == (
        "",
        f"{TINY.model} prefill: step 0\n"
        f"{TINY.model} prefill: step 1, about 2 s left\n"
        f"{TINY.model} prefill: step 2, about 1 s left\n"
        f"{TINY.model} decode: step 0, about 3 s left\n",
    )


def test_what_runs_is_one_line_of_a_terminal(monkeypatch, capsys):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    said = progress.Progress([TINY], steps=2)
    said.begin(TINY)
    said.step("one")
    progress.say("a row")
    assert capsys.readouterr() == ("a row\n", f"\r\x1b[K{TINY.model} prefill: one\r\x1b[K")


def test_says_when_a_row_is_reduced(run_demo, monkeypatch):
    monkeypatch.setattr(demo, "LIMITS", Limits(1000.0, 1))
    code, lines, [row] = run_demo(FORWARD_ONLY)
    assert (code, lines[-1]) == (0, f"raggemm demo: OK ({FORWARD_CHECKS + ALL_ROWS_CHECKS} checks)")
    assert (row["reduced"], row["rows"], row["active"]) == (True, 3, 3)
    assert any("3*" in line for line in lines) and any("fewer rows" in line for line in lines)
    assert any("all 19 rows" in line for line in lines)


def test_fails_when_a_product_is_wrong(run_demo, monkeypatch):
    monkeypatch.setattr(contenders, "gmm", lambda *operands: gmm(*operands).at[-1].multiply(1.01))
    monkeypatch.setattr(demo, "gmm", contenders.gmm)
    code, lines, [row] = run_demo(FORWARD_ONLY)
    assert (code, lines[-1]) == (1, "raggemm demo: FAILED")
    assert row["max_error"] > 1
    assert "tiny decode, gate: error is" in "\n".join(lines)


def test_fails_when_a_contender_is_wrong(run_demo, monkeypatch):
    monkeypatch.setattr(contenders, "_first_rows", lambda sizes: jnp.cumsum(sizes))
    code, lines, [row] = run_demo(FORWARD_ONLY)
    assert (code, lines[-1], row["max_error"] <= 1) == (1, "raggemm demo: FAILED", True)


@pytest.mark.parametrize("name", formats.FORMATS)
def test_quantized_weights(name, monkeypatch, capsys, tmp_path):
    blocks = dataclasses.replace(TINY, hidden=64, intermediate=96)  # of 32 steps and more
    monkeypatch.setattr(demo, "recorded_layers", lambda: [blocks])
    monkeypatch.setattr(demo, "LIMITS", Limits(1000.0, 2**30))
    assert demo.main([f"--weights={name}", f"--json={tmp_path / 'rows.json'}"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == "raggemm demo: OK (6 checks)"
    (row,) = json.loads((tmp_path / "rows.json").read_text())
    assert row == row | {"weights": name, "rows": 19, "active": 3, "reduced": False}
    bits, steps, scale_bytes = {"int8": (8, 0, 4), "fp8": (8, 0, 4), "int4": (4, 128, 2), "mxfp4": (4, 32, 1)}[name]
    scales = [n * (1 if not steps else k // math.gcd(k, steps)) for k, n in ((64, 96), (64, 96), (96, 64))]
    assert row["weights_bytes"] == 6 * (3 * 64 * 96 * bits // 8 + sum(scales) * scale_bytes)
    assert 0 < row["max_error"] <= 1
    assert row["ratio_bfloat16"] == row["bfloat16_ms"] / row["raggemm_ms"]
    assert row["ratio_alternative"] == min(row["ragged_dot_ms"], row["loop_ms"]) / row["raggemm_ms"]
    assert any(name in line and "3 of 6" in line for line in lines)


def test_a_wrong_product_of_quantized_weights_fails(monkeypatch, capsys):
    monkeypatch.setattr(demo, "recorded_layers", lambda: [dataclasses.replace(DECODE, hidden=64, intermediate=96)])
    monkeypatch.setattr(quantized, "gmm", lambda *operands: 1.001 * gmm(*operands))
    assert demo.main(["--weights=int4"]) == 1
    assert "decode, down: error is" in capsys.readouterr().out


def test_dequantized_in_float64():
    weights = np.random.default_rng(0).normal(size=(2, 64, 6)).astype(np.float32)
    for name, format in formats.FORMATS.items():
        tensor = format.quantized(jnp.asarray(weights))
        for got, want in zip(formats.Dequantized(tensor), dequantize(tensor), strict=False):
            assert got.dtype == np.float64, name
            np.testing.assert_allclose(got, want, rtol=1e-7)


@pytest.mark.parametrize("sizes", [TINY.sizes, (8, 8), (0, 40, 0)])
def test_contenders_agree_with_float64(sizes):
    layer = layers.Layer("", "", 16, 24, sizes)
    weights, (x, sizes) = layers.random_weights(layer), layers.random_rows(layer)
    expert = np.repeat(np.arange(layer.experts), layer.sizes)
    gate, up, down = (np.asarray(w.astype(jnp.float32)).astype(np.float64)[expert] for w in weights)
    rows = np.asarray(x.astype(jnp.float32)).astype(np.float64)[:, None]
    gate, up = rows @ gate, rows @ up
    want = ((gate / (1 + np.exp(-gate)) * up) @ down)[:, 0]
    for name, block in contenders.blocks(layer.padded_size).items():
        assert disagreement(jax.jit(block)(x, weights, sizes), want) <= 1, name


def test_recorded_layers():
    recorded = layers.recorded_layers()
    models = ("qwen3-30b-a3b", "mixtral-8x7b", "gpt-oss-20b")
    assert [(x.model, x.phase) for x in recorded] == [(m, p) for m in models for p in ("prefill", "decode")]
    assert [(x.experts, x.hidden, x.intermediate) for x in recorded[::2]] == [
        (128, 2048, 768), (8, 4096, 14336), (32, 2880, 2880),
    ]  # fmt: skip
    assert recorded[0].rows == 897 * 8 and recorded[0].active == 59 and recorded[0].padded_size == 880


@pytest.mark.parametrize("rows", [0, 1, 3, 4, 7, 18, 19, 20])
def test_fewer_rows_keep_every_active_expert(rows):
    reduced = TINY.with_rows(rows)
    assert [size > 0 for size in reduced.sizes] == [size > 0 for size in TINY.sizes]
    assert all(a <= b for a, b in zip(reduced.sizes, TINY.sizes, strict=True))
    assert max(3, rows - 3) <= reduced.rows <= max(3, rows) or reduced == TINY
    assert (reduced == TINY) == (rows >= TINY.rows)


@pytest.mark.parametrize("widened", [2**17, 64, 1])
def test_errors_are_in_units_of_the_tolerance(monkeypatch, widened):
    monkeypatch.setattr(checks, "_WIDENED", widened)
    rng = np.random.default_rng(0)
    lhs, rhs = rng.normal(size=(3, 700)).astype(jnp.bfloat16), rng.normal(size=(700, 5)).astype(np.float32)
    a, b = lhs.astype(np.float64), rhs.astype(np.float64)
    for dtype in (np.float32, jnp.bfloat16):
        got = (a @ b + 1e-3 * rng.normal(size=(3, 5))).astype(dtype)
        bound = oracle.tolerance(700, np.abs(a) @ np.abs(b), a @ b, np.float32, dtype)
        assert np.isclose(checks.largest_error(got, lhs, rhs), oracle.Expected(a @ b, bound).error(got).max())


def test_sampled_errors_see_every_kind_of_product():
    layer = layers.Layer("", "", 16, 24, TINY.sizes)
    weights, (x, sizes) = layers.random_weights(layer), layers.random_rows(layer)
    out = np.random.default_rng(1).normal(size=(layer.rows, 24)).astype(np.float32)
    products = {
        "forward": (gmm(x, weights.gate, sizes), lambda got: checks.rows_error(got, x, weights.gate, layer.sizes)),
        "transposed": (
            gmm(out, weights.gate, sizes, transpose_rhs=True),
            lambda got: checks.rows_error(got, out, weights.gate, layer.sizes, rhs_is_trans=True),
        ),
        "weights": (tgmm(x.T, out, sizes), lambda got: checks.weights_error(got, x, out, layer.sizes)),
    }
    for name, (got, error) in products.items():
        assert error(got) < 0.1, name
        assert error(got * (1 + 1e-3)) > 1, name
        assert error(got.at[-1, -1].set(jnp.nan)) == np.inf, name


def test_gradients_of_idle_experts_are_zero():
    layer = layers.Layer("", "", 16, 24, TINY.sizes)
    x, sizes = layers.random_rows(layer)
    out = np.ones((layer.rows, 24), np.float32)
    got = tgmm(x.T, out, sizes)
    assert checks.weights_error(got.at[0, 0, 0].set(1.0), x, out, layer.sizes) > 1


def test_disagreement():
    rows = np.random.default_rng(0).normal(size=(4, 300)).astype(np.float32)
    rows[1] = 0
    assert disagreement(rows, rows) == 0
    assert 0 < disagreement(rows.astype(jnp.bfloat16), rows) < 1
    assert disagreement(rows * np.float32(1.01), rows) > 1
    for wrong in (1e-10, np.nan):
        other = rows.copy()
        other[1, 0] = wrong
        assert disagreement(other, rows) == np.inf


def test_help_tells_what_it_needs(capsys):
    with pytest.raises(SystemExit) as exit:
        demo.main(["--help"])
    assert exit.value.code == 0
    assert "10 GiB of memory" in " ".join(capsys.readouterr().out.split())


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
    code, lines, rows = run_bench([TINY, DECODE, OTHER_MODEL])
    assert (code, lines[-1][:22]) == (0, "raggemm bench_jax: OK ")
    assert [(row["phase"], row["direction"]) for row in rows] == [
        ("prefill", "forward"), ("prefill", "forward+backward"), ("decode", "forward"),
    ]  # fmt: skip
    for row in rows:
        assert list(row) == BENCH_FIELDS
        assert row["rows"] == row["recorded_rows"] == (19 if row["phase"] == "prefill" else 4)
        assert (row["active"], row["experts"], list(row["contenders"])) == (3, 6, EVERYBODY)
        ms = {name: of["ms"] for name, of in row["contenders"].items()}
        assert row["ratio_ragged_dot"] == ms[contenders.RAGGED_DOT] / ms[contenders.RAGGEMM]
        assert row["ratio_unrolled"] == ms[bench_jax.UNROLLED] / ms[contenders.RAGGEMM]
        best = min(ms[name] for name in (*contenders.LOOPS, contenders.EINSUM))
        assert row["ratio_best_alternative"] == best / ms[contenders.RAGGEMM]
        for name, of in row["contenders"].items():
            assert of["ms"] > 0 and of["temp_bytes"] > 0 and of["compile_seconds"] > 0
            assert isinstance(of["temp_bytes"], int)
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
    code, lines, rows = run_bench([TINY], temp_limit=1)
    assert code == 0
    assert [(row["direction"], row["rows"], row["recorded_rows"]) for row in rows] == [
        (direction, count, 19) for direction in ("forward", "forward+backward") for count in (3, 19)
    ]
    ms = {name: rows[0]["contenders"][name]["ms"] for name in contenders.LOOPS}
    for reduced, full in zip(rows[::2], rows[1::2], strict=True):
        assert list(reduced["contenders"]) == list(contenders.CONTENDERS)
        assert reduced["ratio_ragged_dot"] > 0 and reduced["ratio_unrolled"] is None
        ours = [contenders.RAGGEMM, contenders.FUSED]
        assert list(full["contenders"]) == [*ours, min(ms, key=ms.get), bench_jax.UNROLLED]
        assert full["ratio_ragged_dot"] is None and full["ratio_best_alternative"] > 0
    assert any("fewer rows" in line for line in lines)


@pytest.mark.parametrize("sizes", [TINY.sizes, (0, 40, 0)])
@pytest.mark.parametrize("direction", [bench_jax.FORWARD, bench_jax.BACKWARD])
def test_contenders_agree(sizes, direction):
    layer, counted = dataclasses.replace(TINY, sizes=sizes), Checks()
    case = bench_jax.Case(layer, layer, direction)
    of_names, _ = bench_jax.checked_programs(case, layers.random_weights(layer), EVERYBODY, counted)
    assert list(of_names) == EVERYBODY
    assert counted.count == (len(EVERYBODY) - 1) * (1 if direction == bench_jax.FORWARD else 5)
    assert counted.failures == []


def test_finds_wrong_gradients(monkeypatch):
    right = contenders._OneExpert.backward
    monkeypatch.setattr(contenders._OneExpert, "backward", lambda *args: tuple(d * 1.02 for d in right(*args)))
    case, counted = bench_jax.Case(TINY, TINY, bench_jax.BACKWARD), Checks()
    wrong = (*contenders.LOOPS, bench_jax.UNROLLED)
    bench_jax.checked_programs(case, layers.random_weights(TINY), (contenders.RAGGEMM, *wrong), counted)
    assert len(counted.failures) == 4 * len(wrong)
    for of in ("x", *(f"the {name} weights" for name in layers.Weights._fields)):
        assert sum(f"gradient of {of}: error is" in failure for failure in counted.failures) == len(wrong), of


def test_fails_when_a_block_is_wrong(run_bench, monkeypatch):
    right = contenders.ragged_dot
    monkeypatch.setattr(contenders, "ragged_dot", lambda *operands: right(*operands) * 1.01)
    code, lines, _ = run_bench([DECODE])
    assert (code, lines[-1]) == (1, "raggemm bench_jax: FAILED")
    assert any(f"{contenders.RAGGED_DOT}, y: error is" in line for line in lines)


def test_gradients_of_idle_experts_are_zero_in_every_block():
    layer, (x, sizes) = TINY, layers.random_rows(TINY)
    operands = (x, layers.random_weights(layer), sizes, layers.random_target(layer))
    block = {**contenders.blocks(layer.padded_size), bench_jax.UNROLLED: bench_jax.unrolled_block(layer.sizes)}
    for name in EVERYBODY:
        gradients = jax.jit(jax.grad(bench_jax.loss_of(block[name]), argnums=1))(*operands)
        for gradient in gradients:
            assert [bool(np.asarray(d).any()) for d in gradient] == [size > 0 for size in layer.sizes], name
