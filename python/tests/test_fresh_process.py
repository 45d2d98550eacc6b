"""Exported programs and the persistent compilation cache, used by processes that did not make them."""

import functools
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
from processes import printed_by
from raggemm import gmm, ragged_dot, tgmm

SIZES = np.array([3, 0, 2, 4], np.int32)
ROWS = (12, 9, 40)
K, N, G = 6, 5, 4


def random(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def gradients(x, w, s):
    return jax.grad(lambda x, w: jnp.sin(gmm(x, w, s)).sum(), (0, 1))(x, w)


FUNCTIONS = {
    "gmm": gmm,
    "gmm_bfloat16": lambda x, w, s: gmm(x, w.astype(jnp.bfloat16), s, existing_out=jnp.ones((x.shape[0], N))),
    "tgmm": lambda x, y, s: tgmm(x.T, y, s),
    "ragged_dot": ragged_dot,
    "gradient": lambda x, w, s: gradients(x, w, s)[1],
}


def arguments(name, rows):
    return random(rows, K), random(rows, N, seed=1) if name == "tgmm" else random(G, K, N, seed=1), SIZES


def run(folder):
    return printed_by(pathlib.Path(__file__).with_name("fresh_process.py"), folder)


def test_exported_programs_and_the_cache_in_two_fresh_processes(tmp_path):
    (rows,) = jax.export.symbolic_shape("rows")
    allowed = [jax.export.DisabledSafetyCheck.custom_call("raggemm_grouped_gemm_v1")]
    for name, function in FUNCTIONS.items():
        shapes = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in arguments(name, ROWS[0])]
        symbolic = [jax.ShapeDtypeStruct((rows, *x.shape[1:]), x.dtype) if x.shape[0] == ROWS[0] else x for x in shapes]
        exported = jax.export.export(jax.jit(function), disabled_checks=allowed)(*symbolic)
        (tmp_path / f"{name}.exported").write_bytes(exported.serialize(vjp_order=1))
        for count in ROWS:
            np.savez(tmp_path / f"{name}.{count}.npz", *arguments(name, count))

    assert run(tmp_path) == {"cache_hits": 0, "cache_misses": 1}
    assert run(tmp_path) == {"cache_hits": 1, "cache_misses": 0}
    with np.load(tmp_path / "gradients.npz") as saved:
        for got, want in zip(saved.values(), gradients(*arguments("gmm", 12)), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-6)
    for name, function in FUNCTIONS.items():
        for count in ROWS:
            got, want = np.load(tmp_path / f"{name}.{count}.npy"), jax.jit(function)(*arguments(name, count))
            np.testing.assert_array_equal(got, want, err_msg=f"{name} {count}")


def test_an_exported_program_keeps_its_gradient():
    shapes = jax.eval_shape(lambda: arguments("gmm", 12))
    allowed = [jax.export.DisabledSafetyCheck.custom_call("raggemm_grouped_gemm_v1")]
    data = jax.export.export(jax.jit(gmm), disabled_checks=allowed)(*shapes).serialize(vjp_order=1)
    reloaded = jax.export.deserialize(data).call
    x, w, s = arguments("gmm", 12)
    got = jax.grad(lambda x, w: jnp.sin(reloaded(x, w, s)).sum(), (0, 1))(x, w)
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-6, atol=1e-6), got, gradients(x, w, s))
