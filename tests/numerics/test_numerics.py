"""Runs numerics.py briefly, and tests that it notices wrong products."""

import numerics
import numpy as np
import pytest


@pytest.mark.slow
def test_short_report(tmp_path):
    out = tmp_path / "numerics.md"
    assert numerics.main(["--short", f"--out={out}"]) == 0
    assert "Nothing is wrong." in out.read_text()


def test_wrong_products_fail(tmp_path, monkeypatch):
    monkeypatch.setattr(numerics, "TYPES", [numerics.Types(np.float32, np.float32)])
    monkeypatch.setattr(numerics, "KINDS", {"even": numerics.KINDS["even"], "cancelling": numerics.KINDS["cancelling"]})
    monkeypatch.setattr(numerics, "QUANTIZED", numerics.QUANTIZED[2:3])
    monkeypatch.setitem(numerics.MODES, "uniform", lambda lhs, rhs, dtype, _: (lhs @ rhs * 1.001).astype(dtype))
    right = numerics.quantized_products
    monkeypatch.setattr(
        numerics, "quantized_products", lambda *operands: [1.05 * right(*operands)[0], right(*operands)[1]]
    )
    out = tmp_path / "numerics.md"
    assert numerics.main(["--short", f"--out={out}"]) == 1
    text = out.read_text()
    assert "- WRONG: other bits: uniform: even, f32 to f32, K 320\n" in text
    assert f"- WRONG: other bits: uniform: even, {numerics.QUANTIZED[0].name}, K 320\n" in text
    assert text.count("- WRONG: error of ") >= 3
