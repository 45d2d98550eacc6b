"""Defines one program per front end, a product and its gradients, and the expected values in float64.

    python front_end_programs.py FOLDER

runs the programs in a process of its own:

- Each program NAME is compiled through JAX's compilation cache in FOLDER/cache. Its results for 12 rows go to
  FOLDER/NAME.12.npz.
- Each exported program FOLDER/NAME.exported is loaded and run. Its results for 12 and for 9 rows go to
  FOLDER/NAME.exported.12.npz and FOLDER/NAME.exported.9.npz.
- The numbers of hits and misses of the cache for the programs NAME are printed as JSON.

All values are small integers, so that sums are exact, even in bfloat16.
"""

import collections
import contextlib
import json
import pathlib
import sys

import jax
import jax.numpy as jnp
import numpy as np
import raggemm
from arrays import integers
from raggemm.compat import ejkernel, lax, maxtext, megablox, sglang, tokamax, tops
from raggemm.compat import transformer_engine as te

G, K, N = 4, 8, 8  # With K == N, the result can use the memory of a donated x.
SIZES = np.array([3, 0, 2, 4], np.int32)
ROWS = (12, 9)


def with_gradients(product):
    def run(x, w, sizes):
        out, gradients_of = jax.vjp(lambda x, w: product(x, w, sizes), x, w)
        return out, *gradients_of(jnp.sign(out))

    return run


OVERRIDE = "override"
PROGRAMS = {
    "megablox": with_gradients(megablox.gmm),
    "tops": with_gradients(tops.gmm),
    "ejkernel": with_gradients(ejkernel.grouped_matmul),
    "maxtext": with_gradients(maxtext.gmm),
    "tokamax": with_gradients(lambda x, w, sizes: tokamax.ragged_dot(x, w, group_sizes=sizes)),
    "sglang": with_gradients(sglang.gmm),
    "transformer_engine": with_gradients(te.grouped_dense),
    "lax": with_gradients(lax.ragged_dot),
    "ragged_dot": with_gradients(raggemm.ragged_dot),
    "existing_out": with_gradients(
        lambda x, w, s: raggemm.gmm(x, w.astype(jnp.bfloat16), s, existing_out=jnp.zeros((x.shape[0], N), x.dtype))
    ),
    OVERRIDE: with_gradients(lambda *args: jax.lax.ragged_dot(*args)),
}


def lowering_of(name):
    """Returns a context manager for lowering a program. For OVERRIDE it enables the override."""
    return raggemm.override_ragged_dot() if name == OVERRIDE else contextlib.nullcontext()


def arguments(rows):
    return integers(0, rows, K), integers(1, G, K, N), SIZES


def groups(sizes):
    return [slice(end - size, end) for end, size in zip(np.cumsum(sizes), sizes, strict=True)]


def expected(x, w, sizes):
    """Returns the product in float64, and the gradients of x and w. The cotangent is the sign of the product."""
    x, w = x.astype(np.float64), w.astype(np.float64)
    out, dx, dw = np.zeros((len(x), w.shape[2])), np.zeros_like(x), np.zeros_like(w)
    for g, rows in enumerate(groups(sizes)):
        out[rows] = x[rows] @ w[g]
        ct = np.sign(out[rows])
        dx[rows], dw[g] = ct @ w[g].T, x[rows].T @ ct
    return out, dx, dw


def main(folder: pathlib.Path) -> None:
    jax.config.update("jax_compilation_cache_dir", str(folder / "cache"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    counts: collections.Counter[str] = collections.Counter()
    jax.monitoring.register_event_listener(lambda event, **_: counts.update([event.rpartition("/")[2]]))
    for name, program in PROGRAMS.items():
        with lowering_of(name):
            np.savez(folder / f"{name}.{ROWS[0]}.npz", *jax.jit(program)(*arguments(ROWS[0])))
    print(json.dumps({name: counts[name] for name in ("cache_hits", "cache_misses")}))
    for path in folder.glob("*.exported"):
        function = jax.export.deserialize(bytearray(path.read_bytes())).call
        for rows in ROWS:
            np.savez(folder / f"{path.name}.{rows}.npz", *function(*arguments(rows)))


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
