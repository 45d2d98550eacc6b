"""Tests the judge of whole MLPs without its peers: formats, coldness, turns, tables and failures."""

import argparse

import ggml
import judge
import layer
import numpy as np
import ours
import pytest
import raggemm

RANDOM = np.random.default_rng(0)
CELL = {"model": "small", "format": "int8", "rows": "row", "tokens": 8, "system": "raggemm"}


def _weights(form, rows=16, k=64):
    w = RANDOM.standard_normal((rows, k), np.float32)
    return w, layer.quantize(w, form)


@pytest.mark.parametrize(("form", "most"), [("int4-32", 0.12), ("mxfp4", 0.13), ("int8", 0.008), ("int8-32", 0.006)])
def test_a_format_is_as_exact_as_its_bits_allow(form, most):
    w, q = _weights(form)
    assert most / 3 < judge.distance(layer.dequantize(q, form), w) < most


def test_mxfp4_rounds_ties_to_even_codes():
    ties = np.zeros((1, 32), np.float32)
    ties[0, :9] = 6, 0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5, -5
    assert layer.dequantize(layer.quantize(ties, "mxfp4"), "mxfp4")[0, :9].tolist() == [6, 0, 1, 1, 2, 2, 4, 4, -4]


@pytest.mark.parametrize("form", layer.FORMATS)
def test_raggemm_gets_the_values_that_results_are_expected_for(form):
    q = layer.Quantized(*(part[None] for part in _weights(form)[1]))
    values = np.asarray(raggemm.dequantize(ours._tensor(q, form)))[0]
    np.testing.assert_allclose(values.T, layer.dequantize(layer.Quantized(*(part[0] for part in q)), form), rtol=1e-6)


@pytest.mark.parametrize("form", ggml.TYPES)
def test_blocks_of_ggml_have_the_same_values(form):
    _, q = _weights(form)
    wide, scaled_by_power = form == "int8-32", form == "mxfp4"
    blocks = ggml.pack(q, form).reshape(16, 2, (32 if wide else 16) + (1 if scaled_by_power else 2))
    if scaled_by_power:
        scale, codes = 2.0 ** (blocks[..., :1].astype(int) - 127), blocks[..., 1:]
    else:
        scale, codes = np.ascontiguousarray(blocks[..., :2]).view(np.float16).astype(float), blocks[..., 2:]
    codes = codes if wide else np.concatenate([codes & 15, codes >> 4], -1)
    # Values of e2m1 are those that OCP's specification lists.
    e2m1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    decoded = {"int4-32": codes - 8.0, "int8-32": codes.view(np.int8), "mxfp4": np.append(e2m1, -e2m1)[codes & 15]}
    np.testing.assert_array_equal((decoded[form] * scale).reshape(16, 64), layer.dequantize(q, form))


@pytest.mark.parametrize(("form", "rounded"), [("int4-32", "32"), ("mxfp4", "32"), ("int8", "row"), ("int4-32", "row")])
def test_rows_of_raggemm_are_right(form, rounded):
    """Weights are packed when rounded rows follow exact rows, and unpacked when the exact calls run again."""
    small = layer.Layer("small", form)
    system = ours.make("raggemm", None, small)
    for tokens in (1, 9):
        calls = {rows: system.prepare(rows, small.rows(tokens), small.calls(tokens)[0]) for rows in ("exact", rounded)}
        for rows, most in (("exact", 0.005), (rounded, judge.TOLERANCE[rounded]), ("exact", 0.005)):
            out = system.to_numpy(calls[rows]())
            assert judge.distance(out[small.checked_rows(tokens)], small.expected(tokens)) < most
            assert isinstance(system._copies[0]["up"], raggemm.PackedWeights) == (rows != "exact")


@pytest.mark.parametrize("model", ["qwen3-30b-a3b", "gpt-oss-20b"])
@pytest.mark.parametrize("form", layer.FORMATS)
def test_a_gibibyte_lies_between_two_uses_of_an_expert(model, form):
    some = layer.Layer(model, form)
    for tokens in (1, 8, 64):
        calls, last = some.calls(tokens), {}
        used = np.cumsum([0] + [len(np.unique(call.experts)) for call in calls * 2])
        for i, call in enumerate(calls * 2):
            for expert in np.unique(call.experts):
                key = (call.copy, int(expert))
                if key in last:
                    assert (used[i] - used[last[key] + 1]) * some.expert_bytes > 0.95 * 2**30, (tokens, key)
                last[key] = i


class _Worker:
    def __init__(self, name, out, log, ms=1.0):
        self.name, self._out, self._log, self._ms = name, out, log, ms

    def ask(self, rows, tokens, seconds):
        self._log.append((self.name, seconds))
        if not seconds:
            return {"out": self._out}
        return {"ms": [self._ms, self._ms, 9.0], "waited": 0.3 * (self._ms == 3), "huge_pages": self._ms / 3}


def test_systems_take_turns_and_wrong_ones_are_not_timed():
    log, small = [], layer.Layer("small", "int8")
    right = small.expected(1)
    outs = {"raggemm": (right, 2.0), "sglang": (right * 1.02, 3.0), "zendnn": (-right, 1.0)}
    workers = [_Worker(name, out, log, ms) for name, (out, ms) in outs.items()]
    cells = judge.measure(workers, small, "row", 1, argparse.Namespace(rounds=2, seconds=5))
    assert [name for name, seconds in log if seconds] == ["raggemm", "sglang", "sglang", "raggemm"]
    assert cells[1]["ms"] == 3.0 and cells[1]["ratio"] == 1.5 and cells[1]["distance"] == pytest.approx(0.02)
    assert "ms" not in cells[2] and cells[2]["error"] == "WRONG: 2 off"
    pages, busy = judge.warnings(cells)
    assert "raggemm has only 67%" in pages and "1 of 2 measurements" in busy


def test_tables_keep_exact_and_rounded_rows_apart():
    cells = [
        CELL | {"rows": "exact", "ms": 4.0, "ratio": 1.0, "distance": 0.002},
        CELL | {"ms": 2.0, "ratio": 1.0, "distance": 0.017},
        CELL | {"system": "zendnn", "ms": 1.5, "ratio": 0.75, "distance": 0.0181},
        CELL | {"system": "sglang", "error": "ended by SIGILL"},
    ]
    exact, rounded = (judge.table(cells, exact).splitlines() for exact in (True, False))
    assert [field.split() for field in exact[-1].split("|")] == [
        ["small", "int8", "exact", "8"],
        ["4.000", "0.20", "%"],
    ]
    fields = [field.split() for field in rounded[-1].split("|")]
    assert fields[1:] == [["2.000", "1.70", "%"], ["failed"], ["1.500", "1.81", "%", "0.75"]]
    assert "nothing measured" in judge.table(cells[1:], True)


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("--models=qwen", "qwen: must be among qwen3-30b-a3b, gpt-oss-20b, small"),
        ("--formats=int4-32,fp8", "fp8: must be among int4-32, mxfp4, int8, int8-32"),
        ("--tokens=8,0", "8,0: must be positive integers"),
        ("--rounds=0", "--rounds must be at least 1"),
        ("--threads=0", "--threads at most the number of cores"),
    ],
)
def test_wrong_arguments_are_named(argument, message, capsys):
    with pytest.raises(SystemExit) as error:
        judge.parse([argument])
    assert error.value.code == 2 and message in capsys.readouterr().err


def test_a_system_that_cannot_run_is_named_with_its_reason(tmp_path):
    worker = judge.Worker("ggml", tmp_path, "small", "int4-32", 1)
    worker.end()
    assert "libggml-base.so cannot be loaded" in worker.built["error"]
    assert worker.built["error"] == worker.ask(rows="32", tokens=1, seconds=0)["error"]
