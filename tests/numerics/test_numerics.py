"""The numerics report: its exact products, what it finds, and a short run of it."""

import fractions
import re

import jax
import ml_dtypes
import numerics
import numpy as np
import pytest
import quantized
from exact_products import KINDS, exact_matmul, make_operands, rounded, units_in_the_last_place
from raggemm import dequantize


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32, np.float64])
def test_products_are_exact(kind, dtype):
    k = 20
    operands = make_operands(kind, dtype, k, seed=5)
    lhs, rhs = (
        [[fractions.Fraction(float(x)) for x in row] for row in matrix]
        for matrix in (operands.lhs[1], operands.rhs[1].T)
    )
    for i, j in ((0, 0), (3, 7), (15, 31)):
        want = sum(a * b for a, b in zip(lhs[i], rhs[j], strict=True)) * fractions.Fraction(2) ** operands.shift
        got = fractions.Fraction(operands.exact.high[1, i, j]) + fractions.Fraction(operands.exact.low[1, i, j])
        assert abs(got - want) <= abs(want) * fractions.Fraction(1, 2 ** (104 if dtype is np.float64 else 53))


def test_kinds_are_what_they_say():
    def operands(kind):
        return make_operands(kind, np.float32, 64, seed=0)

    def condition(kind):
        return np.median(operands(kind).magnitude / np.abs(operands(kind).exact.high))

    assert condition("cancelling") > 1e4 > 1e2 > condition("even")
    result = np.abs(np.ldexp(operands("denormal results").exact.high, -operands("denormal results").shift))
    assert result.min() > 0 and result.max() < 2.0**-126 and np.median(result) > 2.0**-145
    wide = np.abs(operands("wide range").lhs)
    assert wide.max() / np.median(wide) > 2.0**20


def test_rounding_is_to_nearest_even():
    assert rounded(np.array([2049.0, 2051.0, 65520.0, -65519.9]), np.float16).tolist() == [2048, 2052, np.inf, -65504]
    assert float(rounded(np.array(257.0000000001), ml_dtypes.bfloat16)) == 258  # astype rounds twice: 256
    assert units_in_the_last_place(np.array([1.0, 0.99, 0.0]), np.float32).tolist() == [2**-23, 2**-24, 2**-149]


def test_exact_products_of_float64():
    lhs, rhs = np.array([[[1 + 2.0**-52, 1.0]]]), np.array([[[1 + 2.0**-52], [-1.0]]])
    exact = exact_matmul(lhs, rhs, wide=True)
    assert exact.high.item() == 2.0**-51 + 2.0**-104


@pytest.fixture(scope="module")
def short_report(tmp_path_factory):
    out = tmp_path_factory.mktemp("numerics") / "numerics.md"
    assert numerics.main(["--short", f"--out={out}"]) == 0
    return out.read_text()


def test_where_the_report_goes_is_checked_first(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(numerics, "others", lambda: pytest.fail("worked first"))
    with pytest.raises(SystemExit) as ended:
        numerics.main([f"--out={tmp_path}/nowhere/numerics.md"])
    assert ended.value.code == 2 and "there is no folder" in capsys.readouterr().err


def test_short_report(short_report):
    for kind in KINDS:
        assert f"## {kind.capitalize()}" in short_report
    rows = re.findall(r"^\| *f32 to f32 \| +300 \| +ragged K \| +([\d.e-]+) \|", short_report, re.MULTILINE)
    assert len(rows) == len(KINDS) and all(0 <= float(x) <= 1 for x in rows)
    even = short_report[: short_report.index("## Cancelling")]
    for types, most in (("f32 to f32", 50), ("f32 to f32, X3", 2000), ("f32 to f32, X6", 50)):
        row = rf"^\| *{types} \| +300 \| +uniform \| +[\d.e-]+ \| +[\d.e]+ / [\d.e]+ / ([\d.e]+) \|"
        (mean,) = re.findall(row, even, re.MULTILINE)
        assert most / 100 < float(mean) < most
    assert "XLA dot" in short_report and "numpy" in short_report and "Nothing is wrong." in short_report


def test_short_report_has_every_way_to_quantize(short_report):
    section = short_report[short_report.index("## Quantized") : short_report.index("## Verdict")]
    for way in quantized.WAYS:
        rows = re.findall(rf"^\| *{re.escape(way.name)} \| +(\w+) \| +320 \| +([\d.e-]+) \|", section, re.MULTILINE)
        assert [kind for kind, _ in rows] == ["even", "cancelling"] and all(0 < float(x) <= 1 for _, x in rows), (
            way.name
        )
    # Elements that are rounded to bfloat16 with their scales are a part of a tolerance that is mostly theirs.
    assert all(float(x) > 0.01 for x in re.findall(r"for each step \| +\w+ \| +320 \| +([\d.e-]+) \|", section))


@pytest.mark.parametrize("way", [quantized.WAYS[2], quantized.WAYS[7], quantized.WAYS[9]], ids=lambda way: way.name)
def test_a_wrong_product_of_quantized_operands_is_found(way, monkeypatch):
    monkeypatch.setattr(quantized, "WAYS", (way,))
    right = quantized._ragged
    monkeypatch.setattr(quantized, "_ragged", lambda *operands: right(*operands) * np.float32(1.05))
    _, wrong = quantized.check(short=True)
    assert any(re.fullmatch(rf"error of [\d.]+ tolerances: even, {re.escape(way.name)}, K 320", x) for x in wrong)
    assert f"other bits: uniform, even, {way.name}, K 320" in wrong


def test_what_quantized_operands_stand_for():
    x = jax.random.normal(jax.random.key(0), (2, 64, 6))
    for way in quantized.WAYS:
        tensor = way.rhs(x)
        np.testing.assert_allclose(quantized._float64(tensor), dequantize(tensor), rtol=1e-6, atol=1e-30)


def test_an_error_beyond_the_tolerance_fails(monkeypatch, tmp_path, capsys):
    """In one of the modes."""

    def wrong(lhs, rhs, dtype, precision):
        return (lhs @ rhs * 1.001).astype(dtype)

    monkeypatch.setitem(numerics.MODES, "uniform", wrong)
    monkeypatch.setattr(numerics, "KINDS", {"even": KINDS["even"]})
    monkeypatch.setattr(numerics, "TYPES", [numerics.Types(np.float32, np.float32)] * 6)
    monkeypatch.setattr(quantized, "WAYS", ())
    assert numerics.main(["--short", f"--out={tmp_path}/numerics.md"]) == 1
    text = capsys.readouterr().out
    assert re.search(r"WRONG: error of [\d.]+ tolerances: even, f32 to f32, K 300, uniform", text)
    assert "WRONG: other bits: uniform, even, f32 to f32, K 300" in text
    assert "ragged" not in text[text.index("## Verdict") :]


def test_a_wrong_conversion_is_found(monkeypatch):
    def flushing(lhs, rhs, **options):
        flushed = np.where(np.abs(lhs) < 2.0**-126, 0, lhs)
        return flushed.astype(options["preferred_element_type"])

    monkeypatch.setattr(numerics, "grouped_gemm", flushing)
    with jax.enable_x64(True), np.errstate(all="ignore"):
        wrong = numerics.wrong_conversions()
    assert any(text.startswith("float32 to float32") for text in wrong)
    assert not any(text.startswith("float16 to float32") for text in wrong)
