"""Tests programs of each front end: lowered ahead of time, with donated operands, exported, and cached on disk."""

import json
import subprocess
import sys

import front_end_programs
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from arrays import integers
from front_end_programs import (
    PROGRAMS,
    ROWS,
    SIZES,
    G,
    K,
    N,
    arguments,
    expected,
    groups,
    lowering_of,
)
from program_text import EXPORTABLE_CALLS
from raggemm.compat import ejkernel, maxtext, megablox

X, W = arguments(ROWS[0])[:2]
Y = integers(2, ROWS[0], N)


def check(got, *args):
    for x, want in zip(got, expected(*args), strict=True):
        assert x.dtype == np.float32
        np.testing.assert_array_equal(x, want)


@pytest.mark.parametrize("name", PROGRAMS)
def test_lowered_ahead_of_time_with_a_donated_operand(name):
    """XLA may write a result into a donated lhs, but only after the last use of lhs."""
    shapes = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in (X, W, SIZES)]
    with lowering_of(name):
        compiled = jax.jit(PROGRAMS[name], donate_argnums=0).lower(*shapes).compile()
    assert "raggemm_grouped_gemm_v1" in compiled.as_text()
    for sizes in (SIZES, SIZES[::-1].copy()):
        donated = jax.device_put(X)
        check(compiled(donated, W, sizes), X, W, sizes)
        assert donated.is_deleted()
    with pytest.raises(TypeError):
        compiled(jax.device_put(X), W, SIZES[:2])


def overwrite_rows(c):
    out, rows = c.copy(), SIZES.sum()
    out[:rows] = expected(X, W, SIZES)[0][:rows]
    return out


def add_weights(c):
    return c + np.stack([X[rows].T @ Y[rows] for rows in groups(SIZES)])


def add_rows(c):
    return c + expected(X, W, SIZES)[0]


# {name: (call that may write its result into c, function that computes the expected result)}
ACCUMULATING = {
    "megablox.gmm": (lambda c: megablox.gmm(X, W, SIZES, existing_out=c), overwrite_rows),
    "megablox.tgmm": (lambda c: megablox.tgmm(X.T, Y, SIZES, existing_out=c), add_weights),
    "ejkernel": (lambda c: ejkernel.grouped_matmul(X, W, SIZES, None, c), add_rows),
    "maxtext.gmm": (lambda c: maxtext.gmm(X, W, SIZES, existing_out=c), overwrite_rows),
    "maxtext.gmm, partial_sum": (lambda c: maxtext.gmm(X, W, SIZES, partial_sum=c), add_rows),
    "maxtext.tgmm": (lambda c: maxtext.tgmm(X.T, Y, SIZES, existing_out=c), add_weights),
}


@pytest.mark.parametrize("name", ACCUMULATING)
def test_donated_operands_are_overwritten(name):
    call, expected_result = ACCUMULATING[name]
    before = integers(3, *((G, K, N) if expected_result is add_weights else (ROWS[0], N)))
    compiled = jax.jit(call, donate_argnums=0).lower(before).compile()
    c = jax.jit(jnp.copy)(before)  # No other array shares the memory of a program's result.
    pointer = c.unsafe_buffer_pointer()
    out = compiled(c)
    assert out.unsafe_buffer_pointer() == pointer
    assert c.is_deleted()
    np.testing.assert_array_equal(out, expected_result(before))


def run(folder):
    """Runs front_end_programs.py. Returns the hits and misses of JAX's compilation cache."""
    command = [sys.executable, front_end_programs.__file__, folder]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.slow
def test_exported_and_from_the_persistent_cache_in_fresh_processes(tmp_path):
    (rows,) = jax.export.symbolic_shape("rows")
    symbolic = [jax.ShapeDtypeStruct((rows, K), X.dtype), *(jax.ShapeDtypeStruct(x.shape, x.dtype) for x in (W, SIZES))]
    for name, program in PROGRAMS.items():
        with lowering_of(name):
            exported = jax.export.export(jax.jit(program), disabled_checks=EXPORTABLE_CALLS)(*symbolic)
        assert "raggemm_grouped_gemm_v1" in exported.mlir_module()
        (tmp_path / f"{name}.exported").write_bytes(exported.serialize())

    first, second = run(tmp_path), run(tmp_path)
    assert first["cache_misses"] > 0
    assert second == {"cache_hits": sum(first.values()), "cache_misses": 0}
    for name in PROGRAMS:
        for file, count in ((name, ROWS[0]), *((f"{name}.exported", count) for count in ROWS)):
            with np.load(tmp_path / f"{file}.{count}.npz") as saved:
                check(saved.values(), *arguments(count))
