"""bench_jax --layer on tiny layers: routing, contenders against float64, the report, what it leaves out and finds."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import moe_oracle
import numpy as np
import pytest
from raggemm_demo import bench_jax, bench_layer, layers, programs, whole_mlps
from raggemm_demo.checks import Checks, disagreement
from raggemm_demo.programs import Limits

# 8 tokens of 2 experts each, of which 2 are idle.
TINY = layers.Layer(bench_jax.DEFAULT_MODEL, "prefill", 16, 24, (0, 5, 7, 0, 3, 1), top_k=2)
EVERYBODY = [*whole_mlps.OURS, *whole_mlps.OTHERS]
FORWARD_ONLY = [name for name in EVERYBODY if name != whole_mlps.SAVED]
FIELDS = ["model", "direction", "tokens", "top_k", "active", "experts", "contenders"]


@pytest.fixture(autouse=True)
def few_tokens(monkeypatch):
    """Of which times do not matter."""
    monkeypatch.setattr(programs, "wait_until_quiet", lambda: None)
    monkeypatch.setattr(bench_layer, "TOKENS", {"decode": (1,), "prefill": (3, 8)})


@pytest.fixture
def run(monkeypatch, tmp_path, capsys):
    """Runs the benchmark: its exit code, what it printed, line by line, and its JSON."""

    def run(*recorded, limits=Limits(1000.0, 2**30)):  # noqa: B008
        monkeypatch.setattr(bench_jax, "recorded_layers", lambda: recorded)
        monkeypatch.setattr(bench_layer, "LIMITS", limits)
        code = bench_jax.main(["--layer", f"--json={tmp_path / 'rows.json'}"])
        return code, capsys.readouterr().out.splitlines(), json.loads((tmp_path / "rows.json").read_text())

    return run


def test_all_tokens_have_the_recorded_sizes():
    for layer in (TINY, *layers.recorded_layers()):
        tokens = layer.rows // layer.top_k
        chosen = whole_mlps.recorded_routing(layer, tokens)
        assert chosen.shape == (tokens, layer.top_k) and chosen.dtype == np.int32
        assert np.bincount(chosen.ravel(), minlength=layer.experts).tolist() == list(layer.sizes)
        assert all(len(set(experts)) == layer.top_k for experts in chosen.tolist())
        np.testing.assert_array_equal(whole_mlps.recorded_routing(layer, 1), chosen[:1])
        with pytest.raises(ValueError, match=f"tokens is {tokens + 1}, but {tokens} were recorded"):
            whole_mlps.recorded_routing(layer, tokens + 1)


def _float64(array):
    return np.asarray(array).astype(np.float64)


@pytest.mark.parametrize("tokens", [8])
def test_contenders_agree_with_float64(tokens):
    weights, chosen = layers.random_weights(TINY), whole_mlps.recorded_routing(TINY, tokens)
    random = np.random.default_rng(tokens)
    x = jnp.asarray(random.standard_normal((tokens, TINY.hidden)), jnp.bfloat16)
    shares, target = (random.standard_normal(s, np.float32) for s in (chosen.shape, x.shape))
    pairs = sorted((e, t, j) for (t, j), e in np.ndenumerate(chosen))
    experts, row_tokens, slots = map(np.array, zip(*pairs, strict=True))
    sizes = np.bincount(experts, minlength=TINY.experts)

    def oracle(x, weights, shares, xp):
        values = {"x": x, "row_weights": shares[row_tokens, slots]}
        values |= {f"w_{name}": w for name, w in weights._asdict().items()}
        return moe_oracle.mlp(values, row_tokens, sizes, xp=xp)

    exact = _float64(x), layers.Weights(*map(_float64, weights)), _float64(shares)
    want = oracle(*exact, np)
    with jax.enable_x64(True):
        loss = lambda *args: layers.distance(oracle(*args, jnp), target)  # noqa: E731
        want_dx, want_dweights, want_dshares = jax.tree.map(np.asarray, jax.grad(loss, (0, 1, 2))(*exact))
    mlps = whole_mlps.mlps(8)
    assert list(mlps) == EVERYBODY
    for name, mlp in mlps.items():
        got = jax.jit(mlp)(x, weights, shares, chosen)
        assert (got.shape, got.dtype) == (x.shape, jnp.float32) and disagreement(got, want) <= 1, name
        loss = lambda *args, mlp=mlp: layers.distance(mlp(*args, chosen), target)  # noqa: E731
        dx, dweights, dshares = jax.jit(jax.grad(loss, (0, 1, 2)))(x, weights, shares)
        assert disagreement(dx, want_dx) <= 3, name
        assert all(disagreement(d, w) <= 3 for d, w in zip(dweights, want_dweights, strict=True)), name
        assert disagreement(dshares, want_dshares) <= 3, name


def test_prints_a_report_and_writes_it(run, monkeypatch):
    monkeypatch.setattr(bench_layer, "TOKENS", {"decode": (1,), "prefill": (8,)})
    code, lines, rows = run(TINY, dataclasses.replace(TINY, phase="decode"))
    # Each other contender has a y, or a loss and five gradients.
    assert (code, lines[-1]) == (0, f"raggemm bench_jax: OK ({2 * (4 + 5 * 6)} comparisons)")
    assert [(row["direction"], row["tokens"]) for row in rows] == [
        (direction, tokens) for tokens in (8, 1) for direction in ("forward", "forward+backward")
    ]
    for row in rows:
        assert list(row) == FIELDS and (row["top_k"], row["experts"]) == (2, 6)
        assert list(row["contenders"]) == (FORWARD_ONLY if row["direction"] == "forward" else EVERYBODY)
        fused = row["contenders"][whole_mlps.FUSED]
        for of in row["contenders"].values():
            assert of["ms"] > 0 and of["temp_bytes"] > 0 and of["ratio"] == of["ms"] / fused["ms"]
        [line] = [x for x in lines if x.startswith(f"{row['model']}, {row['direction']}, {row['tokens']} tokens")]
        assert line.endswith(f" tokens of 2 experts each, {row['active']} of 6 experts active")
    assert [row["active"] for row in rows if row["tokens"] == 8] == [4, 4]
    table = lines[-len(rows) - 4 :]
    heading = lines[len(lines) - len(rows) - 5 : len(lines) - len(rows) - 3]
    contenders = ("fused", "saved", "unfused", "ragged_dot", "loop", "dense")
    assert heading[0].split() == ["active", *contenders, *contenders]
    assert heading[1].split() == ["model", "direction", "tokens", "experts", "ms"] + 5 * ["/", "fused"] + 6 * ["MiB"]
    for row, line in zip(rows, table[1:], strict=False):
        assert f"{row['contenders'][whole_mlps.DENSE]['ratio']:.2f}" in line
        assert f"{row['contenders'][whole_mlps.UNFUSED]['temp_bytes'] / 2**20:.1f}" in line
    assert not any("would need" in line for line in lines)


@pytest.mark.parametrize("limits", [Limits(1e-6, 2**30), Limits(1000.0, 1)])
def test_leaves_out_what_needs_too_much(run, limits):
    code, lines, rows = run(TINY, limits=limits)
    assert code == 0 and any(f"-: would need over {limits}" in line for line in lines)
    for row in rows:
        # How long it takes is known from fewer tokens.
        is_first = row["tokens"] == 3 and limits.temp_bytes > 1
        ours = [name for name in whole_mlps.OURS if row["direction"] != "forward" or name != whole_mlps.SAVED]
        assert list(row["contenders"]) == [*ours, *(whole_mlps.OTHERS if is_first else ())]


def test_who_was_left_out_stays_out():
    fewer = {"tokens": 64, "contenders": {"a": {"ms": 1250.0}, "b": {"ms": 1251.0}}}
    assert bench_layer.LIMITS.seconds == 10
    assert [bench_layer._is_slow(name, 512, fewer) for name in "abc"] == [False, True, True]
    assert not bench_layer._is_slow("c", 512, None)
    fewer = {"tokens": 1, "contenders": {"a": {"ms": 9999.0}}}
    assert [bench_layer._is_slow("a", tokens, fewer) for tokens in (8, 64)] == [False, True]


@pytest.mark.parametrize(
    "of", ["y", "gradient of x", "gradient of the gate weights", "gradient of the router's weights"]
)
def test_finds_what_is_wrong(monkeypatch, of):
    right = whole_mlps.mlps

    @jax.custom_vjp
    def scaled(x, weights, shares):
        return x, weights, shares

    scaled.defvjp(lambda *args: (args, None), lambda _, cts: jax.tree.map(lambda d: d * 1.03, cts))

    def wrong(x, weights, shares, chosen):
        x_, weights_, shares_ = scaled(x, weights, shares)
        given = {"gradient of x": (x_, weights, shares), "gradient of the gate weights": (x, weights_, shares)}
        return right(8)[whole_mlps.DENSE](*given.get(of, (x, weights, shares_)), chosen) * (1.01 if of == "y" else 1)

    monkeypatch.setattr(whole_mlps, "mlps", lambda size: right(size) | {whole_mlps.DENSE: wrong})
    direction = bench_layer.FORWARD if of == "y" else bench_layer.BACKWARD
    case, counted = bench_layer.Case(TINY, direction, whole_mlps.recorded_routing(TINY, 8)), Checks()
    bench_layer.report(case, layers.random_weights(TINY), None, counted)
    assert any(f"{whole_mlps.DENSE}, {of}: error is" in failure for failure in counted.failures)
