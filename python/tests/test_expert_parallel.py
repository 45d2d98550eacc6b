"""Tests raggemm.expert_parallel on devices and processes against one device and float64."""

import functools
import os
import pathlib
import re
import socket
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import raggemm
from arrays import sampled
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P
from raggemm import gmm
from raggemm._src import library, options
from raggemm.expert_parallel import (
    Routing,
    by_all_gather,
    by_all_reduce,
    by_all_to_all,
    check_processes,
    mlp,
    on_one_device,
)

EXAMPLE = str(pathlib.Path(__file__).parents[1] / "examples/expert_processes.py")
T, D, HIDDEN, EXPERTS, TOP_K = 32, 6, 10, 8, 3  # T counts the tokens of all devices


def operands(dtype=np.float32):
    """Returns random operands. All tokens of the first device choose experts 2, 3 and 2.

    Two tokens of the second device have invalid ids.
    """
    rng = np.random.default_rng(0)
    ids = np.stack([rng.permutation(EXPERTS)[:TOP_K] for _ in range(T)]).astype(np.int32)
    ids[: T // 4] = (2, 3, 2)
    ids[9, 1], ids[10] = -1, EXPERTS
    up, down = rng.normal(size=(EXPERTS, D, HIDDEN)), rng.normal(size=(EXPERTS, HIDDEN, D))
    tokens, weights = rng.normal(size=(T, D)), rng.random((T, TOP_K))
    return tokens.astype(dtype), ids, weights.astype(np.float32), up.astype(dtype), down.astype(dtype)


def products(up, down):
    def experts(rows, sizes, offset):
        hidden = jax.nn.silu(gmm(rows, up, sizes, group_offset=offset))
        return gmm(hidden, down, sizes, rows.dtype, group_offset=offset)

    return experts


def make_layer(algorithm, *options, experts_of=mlp):
    def f(tokens, ids, weights, up, down):
        return algorithm(experts_of(up, down), tokens, Routing(ids, weights, EXPERTS), *options)

    return f


def oracle(tokens, ids, weights, up, down):
    tokens, weights, up, down = (np.asarray(x).astype(np.float64) for x in (tokens, weights, up, down))
    out = np.zeros((T, D))
    for t, k in np.ndindex(ids.shape):
        e = ids[t, k]
        if 0 <= e < EXPERTS:
            h = tokens[t] @ up[e]
            out[t] += weights[t, k] * (h / (1 + np.exp(-h))) @ down[e]
    return out


@functools.cache
def mesh(*shape):
    return jax.make_mesh(shape, ("data", "expert")[-len(shape) :], axis_types=(AxisType.Auto,) * len(shape))


def sharded(f, check_vma=True):
    return jax.shard_map(f, mesh=mesh(4), in_specs=P("expert"), out_specs=P("expert"), check_vma=check_vma)


def with_gradients(f, args):
    """Returns the result of f and the gradients of a loss.

    The loss is linear in the result. For other losses, XLA may compute the gradient from an unrounded result.
    """
    target = np.random.default_rng(1).normal(size=(T, D)).astype(np.float32)

    def loss(*args):
        out = f(*args)
        return (out.astype(jnp.float32) * target).sum(), out

    gradients, out = jax.jit(jax.grad(loss, (0, 2, 3, 4), has_aux=True))(*args)
    return [out, *gradients]


@functools.cache
def one_device_results(experts_of=mlp):
    return with_gradients(make_layer(on_one_device, experts_of=experts_of), operands())


@pytest.mark.parametrize("experts_of", [mlp, products])
def test_on_one_device(experts_of):
    np.testing.assert_allclose(one_device_results(experts_of)[0], oracle(*operands()), rtol=1e-5, atol=1e-5)
    assert (one_device_results(experts_of)[0][10] == 0).all()


@pytest.mark.parametrize("check_vma", sampled([True, False], 2))
def test_all_gather(check_vma):
    got = with_gradients(sharded(make_layer(by_all_gather, "expert"), check_vma), operands())
    for x, want in zip(got, one_device_results(), strict=True):
        np.testing.assert_allclose(x, want, rtol=1e-5, atol=2e-5)


def test_rows_of_other_devices_are_not_used():
    """A user's function may return NaN for rows of experts on other devices."""

    def with_nan(up, down):
        def experts(rows, sizes, offset):
            ends, index = jnp.cumsum(sizes), jnp.arange(len(rows))
            own = (index >= ends[offset] - sizes[offset]) & (index < ends[offset + len(up) - 1])
            return jnp.where(own[:, None], products(up, down)(rows, sizes, offset), jnp.nan)

        return experts

    got = jax.jit(sharded(make_layer(by_all_gather, "expert", experts_of=with_nan)))(*operands())
    np.testing.assert_allclose(got, one_device_results()[0], rtol=1e-5, atol=2e-5)


def test_all_reduce_of_replicated_tokens():
    specs = (P(), P(), P(), P("expert"), P("expert"))
    f = jax.shard_map(make_layer(by_all_reduce, "expert"), mesh=mesh(4), in_specs=specs, out_specs=P())
    for x, want in zip(with_gradients(f, operands()), one_device_results(), strict=True):
        np.testing.assert_allclose(x, want, rtol=1e-5, atol=2e-5)


@pytest.mark.parametrize(
    ("experts_of", "capacity"), sampled([(mlp, 1), (mlp, None), (mlp, 10**6), (products, None)], 3, unpack=True)
)
def test_all_to_all_has_the_bits_of_one_device(experts_of, capacity):
    """The capacity does not affect the bits, even if an expert gets more rows than that."""
    got = with_gradients(
        sharded(make_layer(by_all_to_all, "expert", capacity, experts_of=experts_of), capacity is None), operands()
    )
    for x, want in zip(got, one_device_results(experts_of), strict=True):
        np.testing.assert_array_equal(x, want)


def test_wrong_arguments():
    tokens, ids, weights, *_ = operands()

    def call(
        algorithm=on_one_device, tokens=tokens, ids=ids, weights=weights, experts=EXPERTS, result=lambda rows: rows
    ):
        return algorithm(lambda rows, *_: result(rows), tokens, Routing(ids, weights, experts))

    for error, message, change in (
        (TypeError, "tokens: dtype is int32", {"tokens": ids}),
        (ValueError, r"tokens: shape is \(6,\), must have 2 axes", {"tokens": tokens[0]}),
        (ValueError, r"expert_ids: shape is \(31, 3\), must be \(32, k\)", {"ids": ids[1:]}),
        (TypeError, "expert_ids: dtype is float32", {"ids": weights}),
        (
            ValueError,
            r"weights: shape is \(32, 2\), must be that of expert_ids, \(32, 3\)",
            {"weights": weights[:, 1:]},
        ),
        (ValueError, "num_experts is 0, must be at least 1", {"experts": 0}),
        (ValueError, r"experts: the result for rows \(96, 6\) has shape \(95, 6\)", {"result": lambda rows: rows[1:]}),
    ):
        with pytest.raises(error, match=message):
            call(**change)

    def on_devices(algorithm, experts):
        def f(tokens, ids, weights):
            return call(algorithm, tokens, ids, weights, experts)

        return sharded(f)(tokens, ids, weights)

    with pytest.raises(ValueError, match="num_experts is 6, must be a multiple of the 4 devices of axis 'expert'"):
        on_devices(functools.partial(by_all_gather, axis_name="expert"), 6)
    with pytest.raises(ValueError, match="capacity is 0, must be at least 1"):
        on_devices(functools.partial(by_all_to_all, axis_name="expert", capacity=0), EXPERTS)


@pytest.mark.slow
@pytest.mark.parametrize("process_count", [4])
def test_processes_over_loopback(process_count):
    """Each row is computed once, and about the least possible number of bytes is sent.

    The result of all_to_all has the bits of one device.
    """
    command = [sys.executable, EXAMPLE, f"--processes={process_count}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [line.split() for line in done.stdout.splitlines() if re.match(r" *all_", line)]
    table = {
        algorithm: [list(map(float, rest)) for w, *rest in lines if w == algorithm]
        for algorithm in ("all_gather", "all_to_all")
    }
    tokens, top_k, mebibyte_of_tokens = 1024, 4, 1
    for algorithm, rows in table.items():
        assert [row[0] for row in rows] == list(range(process_count))
        assert sum(row[1] for row in rows) == tokens * top_k
        others = (process_count - 1) / process_count  # Share of the data that goes to other processes.
        # Data is sent four times: to the experts and back, in the forward pass and in the gradient.
        least = 4 * others * mebibyte_of_tokens * (1 if algorithm == "all_gather" else top_k / process_count)
        assert all(least * 0.6 < row[2] < least * 3 for row in rows), (algorithm, least, rows)
        assert all(row[3] > 0 for row in rows)
    # With jaxlib 0.9.2, gradients differ by 1.1e-7 from one device, because XLA rounds its sums differently.
    assert all(row[4] == 0 and row[5] < 3e-7 for row in table["all_to_all"])


@pytest.mark.slow
def test_processes_with_different_rules_are_refused():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    command = [sys.executable, EXAMPLE, "--dtype=bfloat16", f"--port={port}"]
    workers = [
        subprocess.Popen(
            [*command, f"--worker={i}"],
            env=os.environ | {"RAGGEMM_BF16_SUMS": rule, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": ""},
            stderr=subprocess.PIPE,
            text=True,
        )
        for i, rule in enumerate(("PAIRS", "TILES"))
    ]
    for worker in workers:
        error = worker.communicate(timeout=100)[1]
        assert worker.returncode != 0
        assert "bf16_sums differs between processes: PAIRS in processes [0], TILES in processes [1]; " in error


def test_rule_of_a_single_process(monkeypatch):
    for rule in library.description()["bf16_sums"][1:]:
        with raggemm.options(bf16_sums=rule):
            check_processes()
            assert options.bf16_rule() == rule
    assert options.bf16_rule() in ("PAIRS", "TILES")
    monkeypatch.setattr(library, "description", lambda: {"bf16": None, "error": "RAGGEMM_BF16_SUMS: is wrong"})
    with pytest.raises(ValueError, match="is wrong"):
        check_processes()
