"""`python expert_processes.py`: runs a layer of experts on several processes that exchange tokens over loopback.

Every process has one device and a share of the experts and tokens. It runs the layer forward and backward with each
exchange (all_gather and all_to_all), and compares the results with those of the whole layer on its own device.
"""

import argparse
import json
import os
import pathlib
import socket
import statistics
import struct
import subprocess
import sys
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from raggemm import expert_parallel
from raggemm.expert_parallel import Routing

TOKENS, MODEL, HIDDEN, EXPERTS, TOP_K = 1024, 256, 512, 32, 4  # MODEL: width of a token
TOLERANCES = {"float32": 1e-5, "bfloat16": 2e-2}  # largest allowed error, relative to an array's largest element
ROUNDS = 5
TIMEOUT = 300  # seconds
AXIS = "expert"
EXCHANGES = {"all_gather": expert_parallel.by_all_gather, "all_to_all": expert_parallel.by_all_to_all}


def _operands(dtype: str) -> dict[str, np.ndarray]:
    """Returns the tokens, routing and weights of the whole layer, the same in each process."""
    rng = np.random.default_rng(0)
    popularity = rng.permutation(1 / np.arange(2, EXPERTS + 2))
    # Draws TOP_K experts per token without replacement: the largest logits after Gumbel noise is added.
    ids = np.argsort(-np.log(popularity) - rng.gumbel(size=(TOKENS, EXPERTS)), axis=1)[:, :TOP_K]
    weights = rng.random((TOKENS, TOP_K))

    def normal(*shape: int) -> np.ndarray:
        return (rng.normal(size=shape) / np.sqrt(shape[-2])).astype(jnp.dtype(dtype))

    return {
        "tokens": rng.normal(size=(TOKENS, MODEL)).astype(jnp.dtype(dtype)),
        "expert_ids": ids.astype(np.int32),
        "weights": (weights / weights.sum(1, keepdims=True)).astype(np.float32),
        "up": normal(EXPERTS, MODEL, HIDDEN),
        "down": normal(EXPERTS, HIDDEN, MODEL),
    }


def _make_layer(exchange, *options):
    def layer(operands: dict[str, jax.Array]) -> jax.Array:
        experts = expert_parallel.mlp(operands["up"], operands["down"])
        routing = Routing(operands["expert_ids"], operands["weights"], EXPERTS)
        return exchange(experts, operands["tokens"], routing, *options)

    return layer


def _with_gradients(layer):
    def loss(floats, expert_ids):
        out = layer({**floats, "expert_ids": expert_ids})
        return jnp.sin(out).sum(), out

    def run(operands):
        floats = {name: x for name, x in operands.items() if name != "expert_ids"}
        gradients, out = jax.grad(loss, has_aux=True)(floats, operands["expert_ids"])
        return {"out": out, **gradients}

    return jax.jit(run)


def _received_bytes() -> int:
    """Returns how many bytes the open TCP sockets of this process received (tcpi_bytes_received of linux/tcp.h)."""
    total = 0
    for descriptor in pathlib.Path("/proc/self/fd").iterdir():
        try:
            if not os.readlink(descriptor).startswith("socket:"):
                continue
            with socket.socket(fileno=os.dup(int(descriptor.name))) as connection:
                information = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 136)
                total += struct.unpack_from("=Q", information, 128)[0]
        except (OSError, struct.error):  # closed, or no TCP socket
            continue
    return total


def _error(got: jax.Array, want: np.ndarray) -> float:
    (shard,) = got.addressable_shards
    part, want = np.asarray(shard.data).astype(np.float32), want.astype(np.float32)
    return float(np.abs(part - want[shard.index]).max() / np.abs(want).max())


def _run_exchange(exchange, operands: dict[str, Any], wanted: dict[str, np.ndarray]) -> dict[str, Any]:
    mesh = Mesh(np.array(jax.devices()), (AXIS,))
    sharding = NamedSharding(mesh, PartitionSpec(AXIS))
    sharded = {name: jax.make_array_from_callback(x.shape, sharding, x.__getitem__) for name, x in operands.items()}
    spec = PartitionSpec(AXIS)
    run = _with_gradients(jax.shard_map(_make_layer(exchange, AXIS), mesh=mesh, in_specs=spec, out_specs=spec))
    results = jax.block_until_ready(run(sharded))
    before, seconds = _received_bytes(), []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        jax.block_until_ready(run(sharded))
        seconds.append(time.perf_counter() - start)
    return {
        "bytes": (_received_bytes() - before) / ROUNDS,
        "ms": 1e3 * statistics.median(seconds),
        "error": _error(results["out"], wanted["out"]),
        "gradients": max(_error(x, wanted[name]) for name, x in results.items() if name != "out"),
    }


def _worker(arguments: argparse.Namespace) -> None:
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(
        f"127.0.0.1:{arguments.port}", num_processes=arguments.processes, process_id=arguments.worker
    )
    if arguments.dtype == "bfloat16":
        expert_parallel.check_processes()
    operands = _operands(arguments.dtype)
    wanted = jax.tree.map(np.asarray, _with_gradients(_make_layer(expert_parallel.on_one_device))(operands))
    share = EXPERTS // arguments.processes
    rows = int((operands["expert_ids"] // share == arguments.worker).sum())
    results = {name: _run_exchange(exchange, operands, wanted) for name, exchange in EXCHANGES.items()}
    print(json.dumps({"rows": rows, "exchanges": results}))
    jax.distributed.shutdown()


def _environment(processes: int) -> dict[str, str]:
    flags = os.environ.get("XLA_FLAGS", "").split()
    threads = max(1, len(os.sched_getaffinity(0)) // processes)
    return os.environ | {
        "XLA_FLAGS": " ".join(x for x in flags if "host_platform_device_count" not in x),
        "JAX_PLATFORMS": "cpu",
        "OMP_NUM_THREADS": str(threads),
    }


def _run_processes(processes: int, dtype: str) -> list[dict[str, Any]]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, __file__, f"--processes={processes}", f"--dtype={dtype}"]
    workers = [
        subprocess.Popen(
            [*command, f"--port={port}", f"--worker={i}"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=_environment(processes),
        )
        for i in range(processes)
    ]
    results, deadline = [], time.monotonic() + TIMEOUT
    try:
        for i, worker in enumerate(workers):
            out, errors = worker.communicate(timeout=max(1, deadline - time.monotonic()))
            if worker.returncode:
                raise SystemExit(f"process {i} failed with {worker.returncode}:\n{errors}")
            results.append(json.loads(out.splitlines()[-1]))
    finally:
        for worker in workers:
            worker.kill()
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--processes", type=int, default=2, help=f"number of processes, a divisor of {EXPERTS} (default 2)"
    )
    parser.add_argument(
        "--dtype", choices=TOLERANCES, default="float32", help="dtype of tokens and experts (default float32)"
    )
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--worker", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.processes < 1 or EXPERTS % arguments.processes:
        parser.error(f"--processes is {arguments.processes}, must be a divisor of {EXPERTS}")
    if arguments.worker is not None:
        _worker(arguments)
        return

    experts = f"{TOP_K} of {EXPERTS} experts each, hidden {HIDDEN}, {arguments.dtype}"
    print(f"{TOKENS} tokens of {MODEL}, {experts}; forward+backward")
    print("  exchange  process   rows  received MiB       ms  error of out  of gradients")
    results, tolerance = _run_processes(arguments.processes, arguments.dtype), TOLERANCES[arguments.dtype]
    for name in EXCHANGES:
        for i, result in enumerate(results):
            got = result["exchanges"][name]
            print(
                f"{name:>10}  {i:7}  {result['rows']:5}  {got['bytes'] / 2**20:12.2f}  {got['ms']:7.1f}"
                f"  {got['error']:12.2g}  {got['gradients']:12.2g}"
            )
    errors = [
        got[kind] for result in results for got in result["exchanges"].values() for kind in ("error", "gradients")
    ]
    if not max(errors) <= tolerance:
        raise SystemExit(f"expert_processes: FAILED, an error is {max(errors)}, more than {tolerance}")
    print(f"expert_processes: OK ({arguments.processes} processes)")


if __name__ == "__main__":
    main()
