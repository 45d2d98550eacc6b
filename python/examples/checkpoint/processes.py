"""A model over several processes: each has one device and its share of the experts, and all else whole."""

import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from checkpoint import model
from checkpoint.config import Config
from checkpoint.weights import Mlp
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from raggemm.expert_parallel import Routing, by_all_reduce, mlp

AXIS = "expert"


def run_all(count: int) -> int:
    """Starts this program again, `count` times; the first one's output is shown. Returns 0, or what one ended with."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "NPROC": str(max(1, len(os.sched_getaffinity(0)) // count))}
    flags = os.environ.get("XLA_FLAGS", "").split()
    environment["XLA_FLAGS"] = " ".join(x for x in flags if "host_platform_device_count" not in x)
    with contextlib.ExitStack() as stack:
        started = []
        for i in range(count):
            out = None if i == 0 else subprocess.DEVNULL
            command = [sys.executable, *sys.argv, f"--process={i}", f"--port={port}"]
            started.append(subprocess.Popen(command, stdout=out, stderr=out, env=environment))
            stack.callback(started[-1].kill)
        return next((code for process in started if (code := process.wait())), 0)


def join(process: int, count: int, port: int) -> Mesh:
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(f"127.0.0.1:{port}", num_processes=count, process_id=process)
    return Mesh(np.array(jax.devices()), (AXIS,))


def spread(mesh: Mesh, tree: Any, spec: PartitionSpec) -> Any:
    """What each process has, as arrays of all of them: parts of an axis, or copies. Nothing is copied."""

    def array(x: jax.Array) -> jax.Array:
        shape = (mesh.size * x.shape[0], *x.shape[1:]) if spec else x.shape
        return jax.make_array_from_single_device_arrays(shape, NamedSharding(mesh, spec), [x])

    return jax.tree.map(array, tree)


def specs(weights: Any) -> Any:
    copies = {name: PartitionSpec() for name in weights}
    layers = [{name: PartitionSpec(*[AXIS] * (name == "experts")) for name in layer} for layer in weights["layers"]]
    return copies | {"layers": layers}


def step_apart(config: Config, mesh: Mesh, weights: Any) -> tuple[Callable, Any]:
    """model.next_token over the mesh, and these weights on it."""

    def experts(x: jax.Array, own: Mlp, shares: jax.Array, chosen: jax.Array) -> jax.Array:
        routing = Routing(chosen, shares, config.experts)
        return by_all_reduce(mlp(own.up, own.down, **own.options()), x, routing, AXIS)

    def step(*args: Any) -> Any:
        return model.next_token(config, experts, *args)

    of_weights = specs(weights)
    placed = jax.tree.map(
        lambda spec, part: spread(mesh, part, spec),
        of_weights,
        weights,
        is_leaf=lambda x: isinstance(x, PartitionSpec),
    )
    replicated = PartitionSpec()
    inside = (of_weights, replicated, replicated, replicated)
    return jax.shard_map(step, mesh=mesh, in_specs=inside, out_specs=replicated, check_vma=False), placed
