"""The demo on tiny layers: contenders and checks against float64, the table, and that a wrong product fails."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from raggemm import dequantize
from raggemm.ops import gmm
from raggemm_demo import __main__ as demo
from raggemm_demo import checks, contenders, formats, layers
from raggemm_demo.checks import disagreement

# An idle expert first, last and in between; the largest size is padded by 3. int4 has blocks of 128 steps.
TINY = layers.Layer(demo.GRADIENT_MODEL, "prefill", hidden=64, intermediate=96, sizes=(0, 5, 13, 0, 1, 0))
DECODE = dataclasses.replace(TINY, phase="decode", sizes=(0, 1, 2, 0, 1, 0))


@pytest.fixture(autouse=True)
def never_wait(monkeypatch):
    """Times do not matter here."""
    monkeypatch.setattr(demo, "wait_until_quiet", lambda: None)


def run_demo(monkeypatch, capsys, *arguments, recorded=(DECODE,)):
    """Runs the demo on layers: its exit code and what it printed, line by line."""
    monkeypatch.setattr(demo, "recorded", lambda: recorded)
    return demo.main(arguments), capsys.readouterr().out.splitlines()


def test_prints_a_row_for_each_layer_and_the_gradients(monkeypatch, capsys):
    code, lines = run_demo(monkeypatch, capsys, recorded=(TINY, DECODE))
    # A block has 3 products and 5 contenders, gradients 3 contenders of 5 results.
    assert (code, lines[-1]) == (0, f"raggemm demo: OK ({2 * (3 + 5) + 3 * 5} checks)")
    assert [line.split()[:3] for line in lines[2:5]] == [
        [TINY.model, phase, rows] for phase, rows in (("prefill", "19"), ("grad", "19"), ("decode", "4"))
    ]
    assert lines[0].split() == [
        "active",
        "raggemm",
        "one",
        "call",
        *["ragged_dot", "loop"] * 2,
        "raggemm",
        "ragged_dot",
        "largest",
    ]
    assert len({len(line) for line in lines[:5]}) == 1 and "3 of 6" in lines[2]


def test_long_runs_raggemm_on_all_rows(monkeypatch, capsys):
    monkeypatch.setattr(demo, "PREFILL_ROWS", 8)
    monkeypatch.setattr(demo, "LONG", demo.Effort(2, 0.1))
    code, lines = run_demo(monkeypatch, capsys, "--long", recorded=(dataclasses.replace(TINY, model="tiny"),))
    assert code == 0 and sum("on all 19 rows" in line for line in lines) == 2
    assert int(lines[2].split()[2]) < 19


@pytest.mark.parametrize("name", formats.FORMATS)
def test_quantized_weights(name, monkeypatch, capsys):
    code, lines = run_demo(monkeypatch, capsys, f"--weights={name}", recorded=(TINY,))
    assert (code, lines[-1]) == (0, "raggemm demo: OK (8 checks)")
    assert "bfloat16" in lines[0]


@pytest.mark.parametrize("name", ["gmm", "ragged_dot", "fused_block", "_dot"])
def test_fails_when_a_contender_is_wrong(name, monkeypatch, capsys):
    right = getattr(contenders, name)
    monkeypatch.setattr(contenders, name, lambda *operands: right(*operands) * 1.02)
    code, lines = run_demo(monkeypatch, capsys)
    assert (code, lines[-1]) == (1, "raggemm demo: FAILED")
    assert any("decode, " in line and "error is" in line for line in lines)


@pytest.mark.parametrize("arguments", [(), ("--weights=int4",)])
def test_fails_when_a_product_is_wrong(arguments, monkeypatch, capsys):
    monkeypatch.setattr(demo, "gmm", lambda *operands: 1.001 * gmm(*operands))
    code, lines = run_demo(monkeypatch, capsys, *arguments)
    assert code == 1 and any("decode, down: error is" in line for line in lines)


def test_fails_when_gradients_are_wrong(monkeypatch, capsys):
    right = demo.loss_of

    def wrong(block):
        if block is contenders.fused_block:
            return lambda x, w, s, t: right(block)(x, w, s, t) + 0.05 * w.up.astype(jnp.float32).sum()
        return right(block)

    monkeypatch.setattr(demo, "loss_of", wrong)
    code, lines = run_demo(monkeypatch, capsys, recorded=(TINY,))
    assert code == 1 and any(f"{contenders.FUSED}, gradient of up: error is" in line for line in lines)


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


def test_dequantized_in_float64():
    weights = np.random.default_rng(0).normal(size=(2, 64, 6)).astype(np.float32)
    for name, format in formats.FORMATS.items():
        tensor = format.quantized(jnp.asarray(weights))
        for got, want in zip(formats.Dequantized(tensor), dequantize(tensor), strict=False):
            np.testing.assert_allclose(got, want, rtol=1e-7, err_msg=name)


def test_recorded_layers():
    recorded = layers.recorded_layers()
    models = ("qwen3-30b-a3b", "mixtral-8x7b", "gpt-oss-20b")
    assert [(x.model, x.phase) for x in recorded] == [(m, p) for m in models for p in ("prefill", "decode")]
    assert recorded[0].rows == 897 * 8 and recorded[0].active == 59 and recorded[0].padded_size == 880


@pytest.mark.parametrize("rows", [0, 1, 3, 4, 7, 18, 19, 20])
def test_fewer_rows_keep_every_active_expert(rows):
    reduced = TINY.with_rows(rows)
    assert [size > 0 for size in reduced.sizes] == [size > 0 for size in TINY.sizes]
    assert all(a <= b for a, b in zip(reduced.sizes, TINY.sizes, strict=True))
    assert max(3, rows - 3) <= reduced.rows <= max(3, rows) or reduced == TINY


def test_errors_are_in_units_of_the_tolerance(monkeypatch):
    monkeypatch.setattr(checks, "_WIDENED", 64)
    rng = np.random.default_rng(0)
    lhs, rhs = rng.normal(size=(3, 700)).astype(jnp.bfloat16), rng.normal(size=(700, 5)).astype(np.float32)
    a, b = lhs.astype(np.float64), rhs.astype(np.float64)
    for dtype in (np.float32, jnp.bfloat16):
        got = (a @ b + 1e-3 * rng.normal(size=(3, 5))).astype(dtype)
        bound = oracle.tolerance(700, np.abs(a) @ np.abs(b), a @ b, np.float32, dtype)
        assert np.isclose(checks.largest_error(got, lhs, rhs), oracle.Expected(a @ b, bound).error(got).max())


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
