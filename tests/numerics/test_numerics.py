"""A short run of the numerics report, and that it notices wrong products."""

import fractions

import ml_dtypes
import numerics
import numpy as np
import pytest


@pytest.mark.parametrize("kind", numerics.KINDS)
@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32])
def test_products_are_exact(kind, dtype):
    operands = numerics.make_operands(kind, dtype, 20, seed=5)
    for i, j in ((0, 0), (15, 31)):
        pairs = zip(operands.lhs[1, i], operands.rhs[1, :, j], strict=True)
        want = sum(fractions.Fraction(float(a)) * fractions.Fraction(float(b)) for a, b in pairs)
        got = fractions.Fraction(operands.exact[1, i, j])
        assert abs(got - want) <= abs(want) * fractions.Fraction(1, 2**53)


def test_errors_are_in_units_in_the_last_place():
    exact = np.array([1.0, 2.0, 0.0])
    text, of_tolerance = numerics.errors_of(np.float32([1 + 2**-22, 2, 0]), exact, np.full(3, 2.0**-22))
    assert text.split(" / ")[0] == "2" and of_tolerance == 1
    assert numerics.errors_of(np.float32([np.nan, 2, 0]), exact, np.ones(3))[1] == np.inf


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


def test_where_the_report_goes_is_checked_first(tmp_path, capsys):
    with pytest.raises(SystemExit) as ended:
        numerics.main([f"--out={tmp_path}/nowhere/numerics.md"])
    assert ended.value.code == 2 and "there is no folder" in capsys.readouterr().err
