"""The example that decodes, on tiny layers: a step against float64, its bytes and the bound, and what it refuses."""

import pathlib
import sys
import types

import jax
import jax.numpy as jnp
import ml_dtypes
import moe_oracle
import numpy as np
import pytest
import quantized_operands
from raggemm import QuantizedTensor

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "examples"))

import decode

TINY = decode.Shape(width=256, hidden=128, experts=32, top_k=4, vocabulary=50)
BITS = {"bf16": 16, "int8": 8, "int4": 4 + 16 / 128, "mxfp4": 4 + 8 / 32}  # scales of blocks included
TOKENS = np.array([3, 49, 3, 0, 17])


def _float64(matrices):
    is_quantized = isinstance(matrices, QuantizedTensor)
    return quantized_operands.dense(matrices) if is_quantized else np.asarray(matrices).astype(np.float64)


def _normed(x):
    normed = x / np.sqrt((x * x).mean(1, keepdims=True) + 1e-6)
    return normed.astype(ml_dtypes.bfloat16).astype(np.float64)


def _layer(layer, x, chosen):
    """float64 x after a layer. The experts that were chosen must have the largest logits, but for what roundings to
    bfloat16 before may change."""
    normed = _normed(x)
    logits = normed @ np.float64(layer.router)
    assert all(len(set(experts)) == TINY.top_k for experts in chosen.tolist())
    of_chosen = np.take_along_axis(logits, chosen, 1)
    np.testing.assert_allclose(of_chosen, -np.sort(-logits, axis=1)[:, : TINY.top_k], atol=0.02)
    shares = np.exp(of_chosen)
    shares /= shares.sum(1, keepdims=True)
    pairs = sorted((e, t, share) for t in range(len(x)) for e, share in zip(chosen[t], shares[t], strict=True))
    experts, tokens, weights = map(np.array, zip(*pairs, strict=True))
    values = {"x": normed, "row_weights": weights}
    values |= {f"w_{name}": _float64(getattr(layer, name)) for name in ("gate", "up", "down")}
    return x + moe_oracle.mlp(values, tokens, np.bincount(experts, minlength=TINY.experts))


# ragged_dot takes no quantized weights.
PAIRS = [(w, e) for w in decode.FORMATS for e in decode.EXPERTS if w == "bf16" or e != "lax.ragged_dot"]


@pytest.mark.parametrize(("weights", "experts"), PAIRS)
def test_a_step_agrees_with_float64(weights, experts):
    layers = decode.make_layers(TINY, 3, weights)
    embedding = jax.random.normal(jax.random.key(5), (TINY.vocabulary, TINY.width), jnp.bfloat16)
    got = jax.jit(lambda *args: decode.step(decode.EXPERTS[experts], TINY.top_k, *args))(layers, embedding, TOKENS)
    x = _float64(embedding)[TOKENS]
    for layer, chosen in zip(layers, got.chosen, strict=True):
        x = _layer(layer, x, np.asarray(chosen))
    # Inputs have magnitude 1; rows are rounded to bfloat16 in front of each layer and in it.
    np.testing.assert_allclose(got.x, x, atol=0.02)
    logits = _normed(x) @ _float64(embedding).T
    np.testing.assert_allclose(got.logits, logits, atol=0.02 * TINY.width**0.5)
    np.testing.assert_array_equal(got.x[0], got.x[2])  # the same token


@pytest.mark.parametrize("weights", decode.FORMATS)
def test_each_layer_has_memory_of_its_own(weights):
    layers = decode.make_layers(TINY, 3, weights)
    arrays = jax.tree.leaves(layers)
    assert len({x.unsafe_buffer_pointer() for x in arrays}) == len(arrays)
    assert not np.array_equal(layers[0].router, layers[1].router)
    elements = 3 * 3 * TINY.experts * TINY.width * TINY.hidden
    scales = 3 * TINY.experts * (2 * TINY.hidden + TINY.width) * 4 if weights == "int8" else 0
    assert decode.stored_bytes([layer[1:] for layer in layers]) == elements * BITS[weights] / 8 + scales


def test_layers_fill_what_they_may(monkeypatch):
    monkeypatch.setattr(decode, "EXPERTS_BYTES", 5 * 3 * TINY.experts * TINY.width * TINY.hidden)
    assert [len(decode.make_layers(TINY, None, weights)) for weights in ("bf16", "int4")] == [2, 9]


def test_medians_and_bytes_of_steps(monkeypatch):
    clock = iter(np.cumsum([0.0, 9.0, 0.0, 5.0] + [0.0, 1.0, 0.0, 0.5] * 2 + [0.0, 3.0, 0.0, 0.25]).tolist())
    monkeypatch.setattr(decode, "time", types.SimpleNamespace(perf_counter=clock.__next__))
    monkeypatch.setattr(decode, "passes_over_memory", lambda: iter([1e9, 2e9, 7e9, 4e9]).__next__)
    layers = decode.make_layers(TINY, 2, "mxfp4")
    names = list(decode.EXPERTS)[:2]
    got = decode.measure(names, layers, TINY, 1, 3)
    assert got.rate == 4e9
    # A token has four experts in each of two layers.
    assert got.step_bytes == 2 * 4 * 3 * TINY.width * TINY.hidden * 4.25 / 8
    assert (got.seconds["product by product"], got.seconds["one call"]) == (1.0, 0.5)
    monkeypatch.undo()
    monkeypatch.setattr(decode, "PASS_BYTES", 1 << 20)
    everywhere = decode.measure(names[:1], layers, TINY, 60, 1)
    assert everywhere.step_bytes == decode.stored_bytes([layer[1:] for layer in layers])  # all experts


def test_program(monkeypatch, capsys):
    monkeypatch.setattr(decode, "Shape", lambda: TINY)
    monkeypatch.setattr(decode, "PASS_BYTES", 1 << 20)
    medians = decode.main(["--weights=bf16", "--layers=2", "--tokens=3", "--steps=2", "--ragged-dot"])
    out = capsys.readouterr().out.splitlines()
    assert out[0].startswith("2 layers of ") and out[0].endswith(f"{2 * 3 * 32 * 256 * 128 * 2 / 2**30:.2f} GiB")
    expert = 3 * 256 * 128 * 2
    assert medians.step_bytes % (expert / 2) == 0 and 2 * 4 <= medians.step_bytes / expert <= 2 * 3 * 4
    most = 3 * medians.rate / medians.step_bytes
    assert out[1] == f"a plain pass over memory: {medians.rate / 1e9:.2f} GB/s"
    assert out[2] == f"experts of a step: {medians.step_bytes / 1e6:.3f} MB, so at most {most:.2f} tokens/s"
    assert [line[:18].rstrip() for line in out[4:]] == list(decode.EXPERTS)
    for line, seconds in zip(out[4:], medians.seconds.values(), strict=True):
        assert line[18:].split() == [f"{1e3 * seconds:.2f}", f"{3 / seconds:.2f}", f"{3 / seconds / most:.3f}"]


def test_a_pass_takes_the_time_that_it_takes(monkeypatch):
    clock = iter([10.0, 10.5])
    rate = decode.passes_over_memory()
    monkeypatch.setattr(decode, "time", types.SimpleNamespace(perf_counter=clock.__next__))
    assert rate() == decode.PASS_BYTES / 0.5


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        *(("--layers=0", "--layers=0: must be positive"), ("--tokens=-1", "--tokens=-1: must be positive")),
        *(("--steps=0", "--steps=0: must be positive"), ("--ragged-dot", "needs --weights=bf16, not int4")),
    ],
)
def test_refuses(wrong, message, capsys):
    with pytest.raises(SystemExit):
        decode.main([wrong])
    assert message in capsys.readouterr().err
