"""What another process does with the files of this one: runs exported programs, and compiles through a cache.

    python fresh_process.py FOLDER

For each NAME.exported in the folder and each NAME.*.npz, its arguments in order, writes NAME.*.npy, the result. Prints
as JSON how often the cache in FOLDER/cache had the gradients of gmm.
"""

import collections
import json
import pathlib
import sys

import jax
import jax.numpy as jnp
import numpy as np
import raggemm


def main(folder: pathlib.Path) -> None:
    counts = collections.Counter()
    jax.monitoring.register_event_listener(lambda event, **_: counts.update([event.rpartition("/")[2]]))
    jax.config.update("jax_compilation_cache_dir", str(folder / "cache"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    gradients = jax.jit(jax.grad(lambda x, w, s: jnp.sin(raggemm.gmm(x, w, s)).sum(), (0, 1)))
    with np.load(folder / "gmm.12.npz") as arguments:
        dlhs, drhs = gradients(*arguments.values())
    np.savez(folder / "gradients.npz", dlhs, drhs)
    print(json.dumps({name: counts[name] for name in ("cache_hits", "cache_misses")}))

    for path in folder.glob("*.exported"):
        function = jax.export.deserialize(bytearray(path.read_bytes())).call
        for saved in folder.glob(f"{path.stem}.*.npz"):
            with np.load(saved) as arguments:
                np.save(saved.with_suffix(".npy"), function(*arguments.values()))


main(pathlib.Path(sys.argv[1]))
