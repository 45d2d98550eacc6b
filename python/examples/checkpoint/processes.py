"""Decoding in several processes. Each has one device, a share of the experts, and a copy of all other weights."""

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
from checkpoint.files import CheckpointError
from checkpoint.weights import Mlp
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from raggemm.expert_parallel import Routing, by_all_reduce, mlp

AXIS = "expert"


def run_all(count: int) -> int:
    """Runs this program in `count` processes, and shows the output of the first one. Returns an exit code."""
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


def make_global(mesh: Mesh, tree: Any, spec: PartitionSpec) -> Any:
    """Makes global arrays of the processes' arrays: shards along axis 0 if `spec` names an axis, else replicas."""

    def array(x: jax.Array) -> jax.Array:
        shape = (mesh.size * x.shape[0], *x.shape[1:]) if spec else x.shape
        return jax.make_array_from_single_device_arrays(shape, NamedSharding(mesh, spec), [x])

    return jax.tree.map(array, tree)


def weight_specs(weights: Any) -> Any:
    replicated = {name: PartitionSpec() for name in weights}
    layers = [{name: PartitionSpec(*[AXIS] * (name == "experts")) for name in layer} for layer in weights["layers"]]
    return replicated | {"layers": layers}


def shard_step(config: Config, mesh: Mesh, weights: Any) -> tuple[Callable, Any]:
    def experts(x: jax.Array, local: Mlp, token_weights: jax.Array, chosen: jax.Array) -> jax.Array:
        routing = Routing(chosen, token_weights, config.experts)
        return by_all_reduce(mlp(local.up, local.down, **local.options()), x, routing, AXIS)

    def step(*args: Any) -> Any:
        return model.next_token(config, experts, *args)

    if any("experts" in layer and layer["experts"].order is not None for layer in weights["layers"]):
        raise CheckpointError("--processes: the experts have act order (g_idx), which only one process supports")
    specs = weight_specs(weights)
    global_weights = jax.tree.map(
        lambda spec, part: make_global(mesh, part, spec),
        specs,
        weights,
        is_leaf=lambda x: isinstance(x, PartitionSpec),
    )
    replicated = PartitionSpec()
    in_specs = (specs, replicated, replicated, replicated)
    sharded = jax.shard_map(step, mesh=mesh, in_specs=in_specs, out_specs=replicated, check_vma=False)
    return sharded, global_weights
