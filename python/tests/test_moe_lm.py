"""The example that trains, on a tiny model: its data, its arithmetic, and that runs repeat to the last bit."""

import os
import pathlib
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

EXAMPLES = pathlib.Path(__file__).parents[1] / "examples"
sys.path.insert(0, str(EXAMPLES))

import moe_lm  # noqa: E402
import moe_lm_model  # noqa: E402

TINY = moe_lm_model.Shape(layers=1, width=16, heads=2, experts=32, hidden=16, context=32)
# The bits of a mixture-of-experts layer's results and gradients, and how many threads computed them.
LAYER_BITS = """
import functools, hashlib, pathlib, jax, jax.numpy as jnp, numpy as np
from moe_lm_model import EXPERTS, Shape, initial_parameters, moe_layer
shape = Shape(layers=1, width=64, hidden=96)
layer = initial_parameters(shape, jax.random.key(1))["layers"][0]
x = np.random.default_rng(2).standard_normal((700, shape.width), np.float32)
def objective(layer, x):
    y, balance = moe_layer(layer, x, shape.top_k, EXPERTS["raggemm"])
    return jnp.sum(jnp.sin(y)) + balance, y
(_, y), gradients = jax.jit(jax.value_and_grad(objective, (0, 1), has_aux=True))(layer, x)
assert all(bool(jnp.isfinite(g).all()) for g in jax.tree.leaves(gradients))
digest = hashlib.sha256(b"".join(np.asarray(a).tobytes() for a in [y, *jax.tree.leaves(gradients)])).hexdigest()
threads = [path.read_text().strip() for path in pathlib.Path("/proc/self/task").glob("*/comm")]
print(digest, threads.count("tf_XLAEigen"))
"""


@pytest.fixture(scope="module")
def texts():
    return moe_lm.read_texts()


@pytest.fixture(scope="module")
def model(texts):
    return moe_lm.Model(TINY, "raggemm", texts, seed=3)


def test_held_out_licences_are_not_trained_on(texts):
    training, held_out = (bytes(text.astype(np.uint8)) for text in texts)
    assert len(training) > 5 * len(held_out) > 50_000
    for name in moe_lm.HELD_OUT:
        text = (moe_lm.LICENCES / name).read_bytes()
        assert text in held_out
        # No three lines of theirs in a row.
        lines = text.splitlines(keepends=True)
        passages = [b"".join(lines[i : i + 3]) for i in range(len(lines) - 2)]
        assert [p for p in passages if len(p) > 120 and p in training] == []


def test_missing_licences_are_named(tmp_path):
    (tmp_path / "Artistic").write_text("text")
    with pytest.raises(FileNotFoundError, match=r"missing: \['Apache-2.0', 'CC0-1.0'\]"):
        moe_lm.read_texts(tmp_path)


@pytest.mark.parametrize(
    ("text", "bits"),
    [(b"ababababa", 0.0), (b"abacabaca", 4 / 8), (np.random.default_rng(0).integers(0, 4, 200_000, np.uint8), 2.0)],
)
def test_entropy_given_the_byte_before(text, bits):
    assert moe_lm.pair_entropy(np.frombuffer(text, np.uint8).astype(np.int32)) == pytest.approx(bits, abs=1e-3)


@pytest.mark.parametrize("implementation", moe_lm_model.EXPERTS)
def test_layer_agrees_with_a_loop_over_tokens(implementation):
    layer = moe_lm_model.initial_parameters(TINY, jax.random.key(0))["layers"][0]
    x = np.random.default_rng(1).standard_normal((40, TINY.width), np.float32)
    y, balance = jax.jit(moe_lm_model.moe_layer, static_argnums=(2, 3))(
        layer, x, 2, moe_lm_model.EXPERTS[implementation]
    )
    router, both, down = (np.asarray(layer[name], np.float64) for name in ("router", "gate_and_up", "down"))
    scores = x @ router[0]
    probabilities = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
    want, counts = np.zeros_like(y, np.float64), np.zeros(TINY.experts)
    for t, row in enumerate(x):
        chosen = np.argsort(-probabilities[t])[:2]
        counts[chosen] += 1
        for e in chosen:
            gate, up = np.split(row @ both[e], 2)
            want[t] += (
                probabilities[t, e] / probabilities[t, chosen].sum() * (gate / (1 + np.exp(-gate)) * up) @ down[e]
            )
    np.testing.assert_allclose(y, want, atol=1e-4, rtol=1e-4)
    want_balance = TINY.experts * np.sum(counts / counts.sum() * probabilities.mean(0))
    np.testing.assert_allclose(balance, want_balance, rtol=1e-5)


def test_permuted_has_the_gradient_of_a_gather():
    rng = np.random.default_rng(0)
    x, ct, order = jnp.asarray(rng.normal(size=(9, 3))), jnp.asarray(rng.normal(size=(9, 3))), rng.permutation(9)
    got = jax.vjp(lambda x: moe_lm_model.permuted(x, order, np.argsort(order)), x)[1](ct)
    np.testing.assert_array_equal(got[0], jax.vjp(lambda x: x[order], x)[1](ct)[0])


def test_same_seed_same_bits_and_other_seed_other_ones(model, texts):
    start = jax.tree.map(jnp.copy, model.state)
    runs = []
    for _ in range(2):
        model.state = jax.tree.map(jnp.copy, start)
        runs.append([*(model.advance() for _ in range(4)), model.evaluate()])
    assert runs[0] == runs[1]
    assert runs[0][4] < 8.5
    again = moe_lm.Model(TINY, "raggemm", texts, seed=3)
    assert [again.advance() for _ in range(2)] == runs[0][:2]
    other = moe_lm.Model(TINY, "ragged_dot", texts, seed=3)
    np.testing.assert_allclose([other.advance() for _ in range(2)], runs[0][:2], rtol=1e-4)


def test_learns(model):
    before = model.evaluate()
    for _ in range(30):
        model.advance()
    assert model.evaluate() < before - 0.3


def test_program(texts, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(moe_lm, "Shape", lambda: TINY)
    picture = tmp_path / "loss.png"
    loss = moe_lm.main(["--steps=2", f"--png={picture}"])
    said = capsys.readouterr()
    assert f"entropy of a held-out byte given the one before: {moe_lm.pair_entropy(texts.held_out):.4f}" in said.out
    assert f"after 2 steps: {loss!r}" in said.out
    assert "tokens/s" in said.err
    assert picture.read_bytes().startswith(b"\x89PNG")
    with pytest.raises(SystemExit):
        moe_lm.main(["--steps=2", "--minutes=1"])


@pytest.mark.parametrize("length", ["--steps=0", "--steps=-1", "--minutes=0", "--minutes=nan"])
def test_length_must_be_positive(length, capsys):
    with pytest.raises(SystemExit):
        moe_lm.main([length])
    assert "must be positive" in capsys.readouterr().err


def test_where_the_picture_goes_is_checked_first(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(moe_lm, "read_texts", lambda: pytest.fail("worked first"))
    for path in (tmp_path / "nowhere" / "loss.png", tmp_path):
        with pytest.raises(SystemExit) as ended:
            moe_lm.main([f"--png={path}"])
        assert ended.value.code == 2 and f"--png={path}: cannot be written" in capsys.readouterr().err


def test_layer_has_the_same_bits_at_every_thread_count():
    programs = {}
    for threads in (1, 5):
        environment = {**os.environ, "NPROC": str(threads), "PYTHONPATH": str(EXAMPLES), "XLA_FLAGS": ""}
        programs[threads] = subprocess.Popen(
            [sys.executable, "-c", LAYER_BITS], stdout=subprocess.PIPE, env=environment
        )
    digests = set()
    for threads, program in programs.items():
        digest, used = program.communicate()[0].split()
        assert int(used) == threads
        digests.add(digest)
    assert len(digests) == 1
