"""The contest of whole MLPs: what its formats stand for, and that wrong and missing contenders are told."""

import pathlib
import subprocess
import sys

import contest
import layer
import ml_dtypes
import numpy as np

CONTEST = pathlib.Path(contest.__file__)


def test_mxfp4_is_rounded_as_ml_dtypes_rounds():
    w = np.random.default_rng(1).standard_normal((50, 256), np.float32) * np.float32(3)
    w[0, :8] = [0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5, 7.9]
    codes, scale = layer.quantized(w, "mxfp4")
    factors = np.exp2(scale.astype(np.float32) - 127).repeat(32, 1)
    units = (w / factors).astype(ml_dtypes.float4_e2m1fn).astype(np.float32)
    assert (np.abs(w / factors) < 8).all()
    np.testing.assert_array_equal(layer.dequantized(codes, scale, "mxfp4"), units * factors)


def test_int8_is_off_by_half_a_step():
    w = np.random.default_rng(2).standard_normal((50, 256), np.float32)
    codes, scale = layer.quantized(w, "int8")
    assert np.abs(codes).max() == 127
    assert (np.abs(layer.dequantized(codes, scale, "int8") - w) <= scale * 0.501).all()


def test_bfloat16_is_rounded_to_nearest_even():
    w = np.random.default_rng(3).standard_normal(5000, np.float32)
    np.testing.assert_array_equal(layer.to_bf16(w), w.astype(ml_dtypes.bfloat16).view(np.uint16))


def test_ours_is_right_and_who_is_missing_is_told():
    arguments = ["--models=small", "--tokens=1,5", "--turns=2", "--seconds=0.01", f"--peers-python={sys.executable}"]
    command = [sys.executable, CONTEST, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    rows = [line.split() for line in done.stdout.splitlines() if line.startswith("small")]
    assert [row[1:3] for row in rows] == [[form, t] for form in ("bf16", "int8", "mxfp4") for t in ("1", "5")]
    assert all(float(row[3]) > 0 for row in rows)
    failures = [line for line in done.stdout.splitlines() if "torch" in line]
    assert len(failures) == 5 and all("ModuleNotFoundError" in line for line in failures)


def test_wrong_results_are_told(tmp_path, monkeypatch):
    files = layer.Layer(tmp_path, layer.MODELS["small"])
    files.make(["bf16"], [3])
    right = files.expected("bf16", 3, [0, 1, 2])
    files.save("ours", right)
    worker = contest.Worker.__new__(contest.Worker)
    worker.name, worker._layer, worker.error = "ours", files, None
    monkeypatch.setattr(contest.Worker, "ask", lambda *_: [])
    assert worker.check("bf16", 3) == 0 and worker.error is None
    files.save("ours", right * 1.02)
    assert worker.check("bf16", 3) > 0.01 and worker.error.startswith("WRONG")
