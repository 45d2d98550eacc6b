"""The example that trains, on a tiny model: its data, its arithmetic, and that runs repeat to the last bit."""

import dataclasses
import os
import pathlib
import re
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from raggemm import QuantizedTensor, dequantize, moe_mlp

EXAMPLES = pathlib.Path(__file__).parents[1] / "examples"
sys.path.insert(0, str(EXAMPLES))

import moe_lm  # noqa: E402
import moe_lm_model  # noqa: E402
import moe_lm_quantized  # noqa: E402
import moe_lm_unfused  # noqa: E402

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


def test_activation_and_dots_of_the_unfused_experts():
    """Against float64, and to the bit against a call whose token is a whole row."""
    gate, up = 4 * np.random.default_rng(2).standard_normal((2, 40, 32), np.float32)
    got, exact = np.asarray(moe_lm_unfused.activated(gate, up)), gate / (1 + np.exp(-gate.astype(np.float64))) * up
    assert (np.abs(got - exact) <= 4 * np.spacing(np.abs(exact).astype(np.float32))).all()
    identity = np.eye(64, dtype=np.float32)[None]
    rows = np.arange(40), None, np.array([40])
    whole = moe_mlp(np.hstack([gate, up]), *rows, identity, identity[:, :32], merged="halves")[:, :32]
    np.testing.assert_array_equal(got, whole)
    np.testing.assert_allclose(moe_lm_unfused.dots(gate, up), (np.float64(gate) * up).sum(1), rtol=0, atol=1e-4)


def trained(implementation, texts, steps=3):
    """Losses and parameters, by gradient descent. Operation by operation, for in one program what XLA makes of those
    around the experts, and in which order it sums, depends on its version, its flags and what the experts are."""
    parameters, losses = moe_lm_model.initial_parameters(TINY, jax.random.key(0)), []
    text = texts.training[: 4 * (TINY.context + 1)].reshape(4, -1)

    def objective(parameters):
        values, balance = moe_lm_model.losses(parameters, text, TINY, moe_lm_model.EXPERTS[implementation])
        return values.mean() + moe_lm.BALANCE * balance

    for _ in range(steps):
        loss, gradient = jax.value_and_grad(objective)(parameters)
        parameters = jax.tree.map(lambda x, g: x - 0.5 * g, parameters, gradient)
        losses.append(float(loss))
    return losses, parameters


def test_fused_and_unfused_train_to_the_same_bits(texts):
    (losses, parameters), unfused = trained("raggemm", texts), trained("unfused", texts)
    assert losses == unfused[0] and losses[2] < losses[0]
    jax.tree.map(np.testing.assert_array_equal, parameters, unfused[1])


def test_comparison_of_fused_and_unfused(monkeypatch, capsys):
    monkeypatch.setattr(moe_lm, "Shape", lambda: TINY)
    moe_lm.main(["--compare=2"])
    lines = capsys.readouterr().out.splitlines()
    words = r" *(\w+): a step of 512 tokens: \d+ ms, \d+ MiB of temporaries; loss after 2 steps (\S+) bits a byte"
    (ours, loss), (theirs, same) = (re.fullmatch(words, line).groups() for line in lines[:2])
    assert (ours, theirs) == ("raggemm", "unfused") and float(loss) == pytest.approx(float(same), rel=1e-6)
    assert lines[2].startswith("losses and parameters are ")


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


@pytest.mark.parametrize("length", ["--steps=0", "--steps=-1", "--minutes=0", "--minutes=nan", "--compare=0"])
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


@pytest.fixture
def few_texts(texts):
    """With one batch held out."""
    return texts._replace(held_out=texts.held_out[: moe_lm.BATCH * TINY.context + 1])


@pytest.fixture
def few_formats(monkeypatch):
    names = ("bfloat16", "int4, blocks of 32", "NVFP4")
    formats = {name: moe_lm_quantized.FORMATS[name] for name in names}
    monkeypatch.setattr(moe_lm_quantized, "FORMATS", formats)
    return formats


WIDE = dataclasses.replace(TINY, width=128, hidden=128)  # whose contractions have blocks


@pytest.mark.parametrize(
    ("name", "bits"),
    [
        *(("float32", 32), ("bfloat16", 16), ("int8, a scale for each column", 8.25)),
        *(("float8_e4m3fn, a scale for each column", 8.25), ("int4, blocks of 128", 4.125)),
        *(("int4, blocks of 32", 4.5), ("MXFP4", 4.25), ("NVFP4", 4.5)),
    ],
)
def test_formats_of_experts(name, bits):
    parameters = moe_lm_model.initial_parameters(WIDE, jax.random.key(0))
    quantized = moe_lm_quantized.quantized(parameters, name)
    assert moe_lm_quantized.bits_of_a_weight(quantized) == pytest.approx(bits, abs=0.001)
    kept = set(parameters["layers"][0]) - set(moe_lm_quantized.EXPERTS)
    assert all(quantized["layers"][0][x] is parameters["layers"][0][x] for x in kept)


def test_losses_of_quantized_experts_are_those_of_what_they_stand_for(few_texts, few_formats):
    model = moe_lm.Model(WIDE, "raggemm", few_texts, seed=3)
    trained = model.state
    results = moe_lm_quantized.held_out_losses(model)
    assert model.state is trained
    for name, made in few_formats.items():

        def dense(x, made=made):
            tensor, factor = y if isinstance(y := made(x), moe_lm_quantized.TwoLevels) else (y, 1)
            return (dequantize(tensor) if isinstance(tensor, QuantizedTensor) else tensor.astype(jnp.float32)) * factor

        layers = [x | {e: dense(x[e]) for e in moe_lm_quantized.EXPERTS} for x in trained.parameters["layers"]]
        model.state = trained._replace(parameters=trained.parameters | {"layers": layers})
        assert results[name][1] == pytest.approx(model.evaluate(), rel=1e-3), name  # of rows in float32


def test_program_of_quantized_experts(few_texts, few_formats, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(moe_lm_quantized, "Shape", lambda: WIDE)
    monkeypatch.setattr(moe_lm, "read_texts", lambda: few_texts)
    out = tmp_path / "table.md"
    results = moe_lm_quantized.main(["--steps=1", f"--out={out}"])
    text = out.read_text()
    assert capsys.readouterr().out == text and text.startswith("After 1 steps")
    assert f"| NVFP4 | 4.50 | {results['NVFP4'][1]:.4f} |" in text
    for wrong in ("--steps=0", f"--out={tmp_path}"):
        with pytest.raises(SystemExit):
            moe_lm_quantized.main([wrong])
