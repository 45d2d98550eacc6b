"""Expert parallelism: a mixture-of-experts layer with experts sharded over a mesh axis of CPU devices.

No function drops tokens. Results and gradients of by_all_to_all are bit-identical to those of on_one_device, but with
jaxlib 0.9.2 gradients can differ by a rounding of XLA's own sums. by_all_gather and by_all_reduce sum a token's experts
in another order. by_all_gather is cheaper than by_all_to_all if a token has more experts than there are devices. Call
the by_ functions inside jax.shard_map, over devices of one process or several (jax.distributed with gloo):

    def layer(tokens, expert_ids, weights, gate, up, down):
        routing = Routing(expert_ids, weights, num_experts=64)
        return by_all_to_all(mlp(up, down, w_gate=gate), tokens, routing, "expert")

    mesh = jax.make_mesh((4,), ("expert",), axis_types=(AxisType.Auto,))
    spec = PartitionSpec("expert")  # tokens and experts are sharded along their first axis
    jax.jit(jax.shard_map(layer, mesh=mesh, in_specs=(spec,) * 6, out_specs=spec))

On different CPUs, processes may sum products of bfloat16 by different rounding rules (see raggemm.options). This also
concerns quantized operands, and float32 operands that are multiplied as bfloat16. With different rules, results depend
on which process has an expert. check_processes detects different rules.

python/examples/expert_processes.py runs the layers in several processes.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import multihost_utils

from raggemm._src import checks, library, options
from raggemm._src.mlp import moe_mlp
from raggemm._src.routing import sort_expert_ids, sum_dtype

__all__ = [
    "Routing",
    "by_all_gather",
    "by_all_reduce",
    "by_all_to_all",
    "check_processes",
    "mlp",
    "on_one_device",
]

# A function (rows [r,d], group_sizes int32 [num_experts], group_offset int32 []) -> results [r,n]. It computes the
# experts of one device, from expert group_offset on. Results for rows of other devices' experts are ignored.
Experts = Callable[[jax.Array, jax.Array, jax.Array], jax.Array]


@functools.partial(
    jax.tree_util.register_dataclass, data_fields=("expert_ids", "weights"), meta_fields=("num_experts",)
)
@dataclasses.dataclass(frozen=True)
class Routing:
    """The experts of each token. An id outside [0, num_experts) means no expert, for example in padding."""

    expert_ids: jax.Array  # integer [t,k]
    weights: jax.Array  # float [t,k]
    num_experts: int  # number of experts on all devices together


class _ExpertOrder(NamedTuple):
    ids: jax.Array  # expert of each sorted row, int32 [t*k]; num_experts means no expert
    order: jax.Array  # index of each sorted row before sorting, int32 [t*k]
    group_sizes: jax.Array  # rows of each expert, int32 [num_experts]

    def sort(self, rows: jax.Array) -> jax.Array:
        return rows[self.order]

    def unsort(self, rows: jax.Array) -> jax.Array:
        return rows[jnp.argsort(self.order)]


def _order_by_expert(expert_ids: jax.Array, num_experts: int) -> _ExpertOrder:
    """Sorts expert ids stably: rows of an expert keep their order, so that gradients of weights keep their bits."""
    return _ExpertOrder(*sort_expert_ids(expert_ids, num_experts))


def _check_arguments(tokens: jax.Array, routing: Routing) -> tuple[jax.Array, Routing]:
    if not isinstance(routing, Routing):
        raise TypeError(f"routing: is a {type(routing).__name__}, must be a Routing")
    tokens, weights = checks.as_float_array("tokens", tokens), checks.as_float_array("weights", routing.weights)
    ids, num_experts = (
        checks.as_integer_array("expert_ids", routing.expert_ids),
        checks.check_count("num_experts", routing.num_experts, 1),
    )
    if tokens.ndim != 2:
        raise ValueError(f"tokens: shape is {tokens.shape}, must have 2 axes")
    if ids.ndim != 2 or ids.shape[0] != tokens.shape[0]:
        raise ValueError(
            f"expert_ids: shape is {ids.shape}, must be ({tokens.shape[0]}, k), with tokens {tokens.shape}"
        )
    if weights.shape != ids.shape:
        raise ValueError(f"weights: shape is {weights.shape}, must be that of expert_ids, {ids.shape}")
    weights = jnp.where((ids >= 0) & (ids < num_experts), weights, 0)
    return tokens, Routing(ids, weights, num_experts)


def _experts_per_device(num_experts: int, axis_name: str) -> int:
    devices = lax.axis_size(axis_name)
    if num_experts % devices:
        raise ValueError(
            f"num_experts is {num_experts}, must be a multiple of the {devices} devices of axis {axis_name!r}"
        )
    return num_experts // devices


def _repeat_tokens(tokens: jax.Array, top_k: int) -> jax.Array:
    """Repeats each token top_k times: [t,d] -> [t*k,d].

    Broadcasts in float32 or float64, so that the gradient is summed in this dtype. The gradient of a gather would be
    summed in the order of the experts.
    """
    t, d = tokens.shape
    wide = tokens.astype(sum_dtype(tokens))
    return jnp.broadcast_to(wide[:, None], (t, top_k, d)).reshape(t * top_k, d).astype(tokens.dtype)


def _weighted_sum(rows: jax.Array, routing: Routing) -> jax.Array:
    t, k = routing.weights.shape
    dtype = sum_dtype(rows, routing.weights)
    return (rows.reshape(t, k, rows.shape[1]).astype(dtype) * routing.weights[..., None].astype(dtype)).sum(1)


def _run_experts(experts: Experts, rows: jax.Array, group_sizes: jax.Array, group_offset: jax.Array) -> jax.Array:
    if not callable(experts):
        raise TypeError(f"experts: is a {type(experts).__name__}, must be a function, such as mlp returns")
    out = experts(rows, group_sizes, group_offset)
    if jnp.ndim(out) != 2 or out.shape[0] != rows.shape[0]:
        raise ValueError(f"experts: the result for rows {rows.shape} has shape {jnp.shape(out)}, must be [r,n]")
    return out


def check_processes() -> None:
    """Checks that all processes of jax.distributed sum products of bfloat16 by the same rounding rule.

    All processes must call this collective, before layers that multiply bfloat16.

    Raises:
      RuntimeError: in every process, if the rules differ.
    """
    rule = options.bf16_rule()
    names = library.description()["bf16_sums"]
    rules = np.ravel(multihost_utils.process_allgather(np.int32(names.index(rule))))
    if len(used := dict.fromkeys(rules.tolist())) > 1:
        named = ", ".join(f"{names[rule]} in processes {np.flatnonzero(rules == rule).tolist()}" for rule in used)
        raise RuntimeError(
            f"bf16_sums differs between processes: {named}; results would depend on the process. Select one rule for "
            "all with raggemm.options(bf16_sums=...) or RAGGEMM_BF16_SUMS"
        )


def mlp(w_up: Any, w_down: Any, **options: Any) -> Experts:
    """Returns a function that computes the experts of one device: the argument `experts` of the other functions.

    Args:
      w_up, w_down: matrices of this device's experts, [num_experts / devices,.,.].
      options: keyword arguments of moe_mlp, except group_offset. Results have the type of rows by default, and are not
        multiplied by routing weights.
    """

    def experts(rows: jax.Array, group_sizes: jax.Array, group_offset: jax.Array) -> jax.Array:
        row_tokens = jnp.arange(rows.shape[0], dtype=jnp.int32)
        return moe_mlp(rows, row_tokens, None, group_sizes, w_up, w_down, group_offset=group_offset, **options)

    return experts


def on_one_device(experts: Experts, tokens: jax.Array, routing: Routing) -> jax.Array:
    """Computes for each token the weighted sum of its experts' results, without communication.

    Args:
      experts: computes all experts.
      tokens: [t,d].
      routing: experts of these tokens.

    Returns:
      [t,n], of the dtype of the results of `experts`.
    """
    tokens, routing = _check_arguments(tokens, routing)
    order = _order_by_expert(routing.expert_ids, routing.num_experts)
    rows = order.sort(_repeat_tokens(tokens, routing.expert_ids.shape[1]))
    out = _run_experts(experts, rows, order.group_sizes, jnp.int32(0))
    out = jnp.where((order.ids < routing.num_experts)[:, None], out, 0)
    return _weighted_sum(order.unsort(out), routing).astype(out.dtype)


def _sum_local_experts(
    experts: Experts, tokens: jax.Array, routing: Routing, axis_name: str
) -> tuple[jax.Array, np.dtype]:
    """Computes this device's experts, and for each token the weighted sum of their results.

    Returns:
      (sums in float32 or float64, dtype that `experts` returned).
    """
    local = _experts_per_device(routing.num_experts, axis_name)
    first = lax.axis_index(axis_name).astype(jnp.int32) * local
    order = _order_by_expert(routing.expert_ids, routing.num_experts)
    rows = order.sort(_repeat_tokens(tokens, routing.expert_ids.shape[1]))
    out = _run_experts(experts, rows, order.group_sizes, first)
    is_local = (order.ids >= first) & (order.ids < first + local)
    out = jnp.where(is_local[:, None], out, 0)
    return _weighted_sum(order.unsort(out), routing), out.dtype


def by_all_gather(experts: Experts, tokens: jax.Array, routing: Routing, axis_name: str) -> jax.Array:
    """Computes the layer for all devices' tokens. Gathers tokens by all_gather, and sums results by psum_scatter.

    Each device temporarily holds k copies of all devices' tokens.

    Args:
      experts: computes this device's num_experts / devices experts.
      tokens: [t,d], the tokens of this device.
      routing: experts of these tokens, with ids that count the experts of all devices.
      axis_name: mesh axis along which the experts are sharded, in the order of the devices.

    Returns:
      [t,n], for this device's tokens.
    """
    tokens, routing = _check_arguments(tokens, routing)
    _experts_per_device(routing.num_experts, axis_name)
    if not len(tokens):  # XLA has no all_gather of empty arrays.
        return on_one_device(experts, tokens, routing)
    gather = functools.partial(lax.all_gather, axis_name=axis_name, tiled=True)
    out, dtype = _sum_local_experts(experts, gather(tokens), jax.tree.map(gather, routing), axis_name)
    return lax.psum_scatter(out, axis_name, tiled=True).astype(dtype)


def by_all_reduce(experts: Experts, tokens: jax.Array, routing: Routing, axis_name: str) -> jax.Array:
    """Computes the layer for tokens that every device has. Sums results by psum.

    Suits decoding with few tokens, because it exchanges only once, one row per token.

    Args:
      experts, axis_name: see by_all_gather.
      tokens: [t,d], the same on all devices.
      routing: the same on all devices.

    Returns:
      [t,n], the same on all devices.
    """
    out, dtype = _sum_local_experts(experts, *_check_arguments(tokens, routing), axis_name)
    return lax.psum(out, axis_name).astype(dtype)


class _Exchange(NamedTuple):
    """An exchange of rows between devices. The buffer has `capacity` rows for each device."""

    axis_name: str
    devices: int
    capacity: int
    slots: jax.Array  # position of each row in the buffers, int32 [t*k]; past the end if a row is not sent

    def send(self, rows: jax.Array) -> jax.Array:
        buffers = jnp.zeros((self.devices * self.capacity, rows.shape[1]), rows.dtype)
        return self._all_to_all(buffers.at[self.slots].set(rows, mode="drop", unique_indices=True))

    def send_back(self, rows: jax.Array) -> jax.Array:
        """Sends results back. Results of rows that were not sent are zero."""
        return self._all_to_all(rows).at[self.slots].get(mode="fill", fill_value=0)

    def _all_to_all(self, buffers: jax.Array) -> jax.Array:
        return lax.all_to_all(buffers, self.axis_name, split_axis=0, concat_axis=0, tiled=True)


def _exchange_and_run(
    experts: Experts, rows: jax.Array, order: _ExpertOrder, axis_name: str, capacity: int
) -> jax.Array:
    """Computes results for this device's sorted rows on the devices of their experts.

    Sends at most `capacity` rows to each device. Results of further rows are zero.
    """
    num_experts, local = len(order.group_sizes), _experts_per_device(len(order.group_sizes), axis_name)
    devices = num_experts // local
    sizes = order.group_sizes.reshape(devices, local)
    counts = sizes.sum(1, dtype=jnp.int32)
    starts = jnp.cumsum(counts) - counts
    device = order.ids // local  # device of each row's expert; `devices` for rows without an expert
    index = jnp.arange(len(rows), dtype=jnp.int32) - starts.at[device].get(mode="fill", fill_value=0)
    not_sent = devices * capacity + jnp.arange(len(rows), dtype=jnp.int32)  # unique positions past the end
    slots = jnp.where((device < devices) & (index < capacity), device * capacity + index, not_sent)
    exchange = _Exchange(axis_name, devices, capacity, slots)

    # Numbers of rows that arrive from each device for each local expert, [devices,local].
    received = lax.all_to_all(sizes, axis_name, split_axis=0, concat_axis=0, tiled=True)
    slot = jnp.arange(capacity, dtype=jnp.int32)
    expert_of_slot = jax.vmap(lambda ends: jnp.searchsorted(ends, slot, side="right"))(jnp.cumsum(received, 1))
    # Rows of an expert stay in the order of the source devices, and so in the order of all tokens.
    local_order = _order_by_expert(expert_of_slot, local)
    first = lax.axis_index(axis_name).astype(jnp.int32) * local
    group_sizes = lax.dynamic_update_slice(jnp.zeros_like(order.group_sizes), local_order.group_sizes, (first,))
    out = _run_experts(experts, local_order.sort(exchange.send(rows)), group_sizes, first)
    return exchange.send_back(local_order.unsort(out))


def by_all_to_all(
    experts: Experts, tokens: jax.Array, routing: Routing, axis_name: str, capacity: int | None = None
) -> jax.Array:
    """Computes the layer for all devices' tokens. Exchanges rows by all_to_all.

    XLA on CPU has no ragged all_to_all, so each device sends `capacity` rows, with padding, to every device. If any
    device has more than `capacity` rows for one device, all devices use the largest possible capacity, t*k.

    Args:
      experts: see by_all_gather. Its group_sizes are zero for experts of other devices.
      tokens, routing, axis_name: see by_all_gather.
      capacity: rows that a device sends to each device, at least 1. The default is twice the mean number.

    Returns:
      [t,n], for this device's tokens.
    """
    tokens, routing = _check_arguments(tokens, routing)
    local = _experts_per_device(routing.num_experts, axis_name)
    devices, top_k = routing.num_experts // local, routing.expert_ids.shape[1]
    max_capacity = max(len(tokens) * top_k, 1)
    capacity = -(-2 * max_capacity // devices) if capacity is None else checks.check_count("capacity", capacity, 1)

    order = _order_by_expert(routing.expert_ids, routing.num_experts)
    rows = order.sort(_repeat_tokens(tokens, top_k))
    run = functools.partial(_exchange_and_run, experts, axis_name=axis_name)
    if capacity >= max_capacity:
        out = run(rows, order, capacity=max_capacity)
    else:
        needed = lax.pmax(order.group_sizes.reshape(devices, local).sum(1).max(), axis_name)
        run_small, run_large = functools.partial(run, capacity=capacity), functools.partial(run, capacity=max_capacity)
        out = lax.cond(needed <= capacity, run_small, run_large, rows, order)
    return _weighted_sum(order.unsort(out), routing).astype(out.dtype)
