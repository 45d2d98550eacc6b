"""Parts of one token's MLP, timed call by call."""

from raggemm_demo import bench_calls
from raggemm_demo.checks import Checks
from raggemm_demo.layers import Layer, random_weights

DECODE = Layer("small", "decode", hidden=32, intermediate=16, sizes=(1, 0, 2, 1, 0, 4), top_k=2)


def test_calls_have_percentiles_of_each_part(monkeypatch):
    monkeypatch.setattr(bench_calls, "CALLS", 20)
    checks, weights = Checks(), random_weights(DECODE)
    assert bench_calls.run_layer(Layer("small", "prefill", 32, 16, DECODE.sizes), weights, checks) == []
    rows = bench_calls.run_layer(DECODE, weights, checks)
    assert (len(rows), checks.count, checks.failures) == (4, 1, [])
    text = bench_calls.summary(rows)
    for row in rows:
        assert 0 < row["p50"] <= row["p95"] <= row["p99"]
        [line] = [line for line in text.splitlines() if row["part"] in line]
        assert f"{row['p50']:.0f}" in line.split()
