"""Expert parallelism: a mixture-of-experts layer whose experts are sharded over an axis of a mesh of CPU devices.

    mlp                 what a device's experts make of rows, as one call of raggemm.moe_mlp
    on_one_device       the layer without communication, which the others equal
    by_all_gather       every device gets all tokens, computes its experts' rows, and the results are summed
    by_all_to_all       each token goes to the devices of its experts and comes back
    by_all_reduce       every device has all tokens, as when few are decoded, and the results are summed

The layers drop no token. by_all_to_all gives the bits of on_one_device, result and gradients (with jaxlib 0.9.2
gradients up to a rounding of XLA's own sums); by_all_gather sums the results of a token's experts in another order, as
by_all_reduce does, and is cheaper where a token has more experts than there are devices. The last three are for the
inside of jax.shard_map, over the devices of one process or of several (jax.distributed with gloo):

    def layer(tokens, expert_ids, weights, gate, up, down):
        routing = Routing(expert_ids, weights, num_experts=64)
        return by_all_to_all(mlp(up, down, w_gate=gate), tokens, routing, "expert")

    mesh = jax.make_mesh((4,), ("expert",), axis_types=(AxisType.Auto,))
    spec = PartitionSpec("expert")  # tokens and experts are sharded along their first axis
    jax.jit(jax.shard_map(layer, mesh=mesh, in_specs=(spec,) * 6, out_specs=spec))

Processes on different CPUs may sum bfloat16 with bfloat16, quantized operands and float32 as products of bfloat16 by
different rules, so that a token's result depends on where its expert is: check_processes finds out.

python/examples/expert_processes.py runs it in several processes over loopback.
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

# (rows [r,d], group_sizes int32 [num_experts], group_offset int32 []) -> [r,n]: what the device's experts make of rows
# that are sorted by expert. Its first expert is number group_offset. Rows of other experts may be there and be
# anything in the result, as raggemm.gmm has it.
Experts = Callable[[jax.Array, jax.Array, jax.Array], jax.Array]


@functools.partial(
    jax.tree_util.register_dataclass, data_fields=("expert_ids", "weights"), meta_fields=("num_experts",)
)
@dataclasses.dataclass(frozen=True)
class Routing:
    """The experts of tokens: expert_ids integer [t,k], weights float [t,k], num_experts over all devices.

    An id outside [0, num_experts) stands for no expert, as padding has it: it adds nothing, whatever its weight.
    """

    expert_ids: jax.Array
    weights: jax.Array
    num_experts: int


class _Sorted(NamedTuple):
    """The t*k rows of tokens, each once for each of its experts, in the order of the experts."""

    ids: jax.Array  # int32 [t*k], sorted; num_experts stands for no expert
    order: jax.Array  # int32 [t*k]: which row comes here
    group_sizes: jax.Array  # int32 [num_experts]

    def __call__(self, rows: jax.Array) -> jax.Array:
        return rows[self.order]

    def undo(self, rows: jax.Array) -> jax.Array:
        return rows[jnp.argsort(self.order)]


def _sorted_by_expert(expert_ids: jax.Array, num_experts: int) -> _Sorted:
    """Sorts ids in any shape. The order of the rows of one expert is kept, for the bits of its weights' gradients."""
    return _Sorted(*sort_expert_ids(expert_ids, num_experts))


def _checked(tokens: jax.Array, routing: Routing) -> tuple[jax.Array, Routing]:
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


def _experts_of_each_device(num_experts: int, axis_name: str) -> int:
    devices = lax.axis_size(axis_name)
    if num_experts % devices:
        raise ValueError(
            f"num_experts is {num_experts}, must be a multiple of the {devices} devices of axis {axis_name!r}"
        )
    return num_experts // devices


def _for_each_expert(tokens: jax.Array, top_k: int) -> jax.Array:
    """[t,d] -> [t*k,d]. Not a gather of repeated rows, whose gradient would be summed in the order of the experts; by
    way of float32, in which the gradient is summed then."""
    t, d = tokens.shape
    wide = tokens.astype(sum_dtype(tokens))
    return jnp.broadcast_to(wide[:, None], (t, top_k, d)).reshape(t * top_k, d).astype(tokens.dtype)


def _weighted_sum(rows: jax.Array, routing: Routing) -> jax.Array:
    """[t*k,n] -> [t,n], float32 or wider."""
    t, k = routing.weights.shape
    dtype = sum_dtype(rows, routing.weights)
    return (rows.reshape(t, k, rows.shape[1]).astype(dtype) * routing.weights[..., None].astype(dtype)).sum(1)


def _results(experts: Experts, rows: jax.Array, group_sizes: jax.Array, first: jax.Array) -> jax.Array:
    if not callable(experts):
        raise TypeError(f"experts: is a {type(experts).__name__}, must be a function, as mlp gives it")
    out = experts(rows, group_sizes, first)
    if jnp.ndim(out) != 2 or out.shape[0] != rows.shape[0]:
        raise ValueError(f"experts: the result for rows {rows.shape} has shape {jnp.shape(out)}, must be [r,n]")
    return out


def check_processes() -> None:
    """Raises RuntimeError, in each process, where the processes of jax.distributed sum bfloat16 with bfloat16 by
    different rules: those that raggemm.options(bf16_sums=...) or RAGGEMM_BF16_SUMS name, else those of their CPUs.

    All processes must call it, as a collective; before layers whose products are of bfloat16, in which results depend
    on the rule. Those of float32 and float64 do not.
    """
    own = options.bf16_rule()
    names = library.description()["bf16_sums"]
    rules = np.ravel(multihost_utils.process_allgather(np.int32(names.index(own))))
    if len(used := dict.fromkeys(rules.tolist())) > 1:
        named = ", ".join(f"{names[rule]} in processes {np.flatnonzero(rules == rule).tolist()}" for rule in used)
        raise RuntimeError(
            f"bfloat16 with bfloat16 is summed by different rules: {named}; results would depend on the process. Name "
            "one rule for all with raggemm.options(bf16_sums=...) or RAGGEMM_BF16_SUMS"
        )


def mlp(w_up: Any, w_down: Any, **options: Any) -> Experts:
    """Experts whose matrices are a device's, [num_experts / devices,.,.]; options: as moe_mlp has them, but for
    group_offset. Results are not weighted, and of the type of rows without preferred_element_type."""

    def experts(rows: jax.Array, group_sizes: jax.Array, group_offset: jax.Array) -> jax.Array:
        each = jnp.arange(rows.shape[0], dtype=jnp.int32)
        return moe_mlp(rows, each, None, group_sizes, w_up, w_down, group_offset=group_offset, **options)

    return experts


def on_one_device(experts: Experts, tokens: jax.Array, routing: Routing) -> jax.Array:
    """sum over k of weights[:, k] * (what expert expert_ids[:, k] makes of the token).

    Args:
      experts: all experts, called once with group_offset 0.
      tokens: [t,d].
      routing: of these tokens.

    Returns:
      [t,n] of the dtype that experts gives.
    """
    tokens, routing = _checked(tokens, routing)
    by_expert = _sorted_by_expert(routing.expert_ids, routing.num_experts)
    rows = by_expert(_for_each_expert(tokens, routing.expert_ids.shape[1]))
    out = _results(experts, rows, by_expert.group_sizes, jnp.int32(0))
    out = jnp.where((by_expert.ids < routing.num_experts)[:, None], out, 0)
    return _weighted_sum(by_expert.undo(out), routing).astype(out.dtype)


def _of_own_experts(
    experts: Experts, tokens: jax.Array, routing: Routing, axis_name: str
) -> tuple[jax.Array, np.dtype]:
    """Returns each token's sum over this device's experts, in the dtype of sums, and the dtype of experts."""
    local = _experts_of_each_device(routing.num_experts, axis_name)
    first = lax.axis_index(axis_name).astype(jnp.int32) * local
    by_expert = _sorted_by_expert(routing.expert_ids, routing.num_experts)
    rows = by_expert(_for_each_expert(tokens, routing.expert_ids.shape[1]))
    out = _results(experts, rows, by_expert.group_sizes, first)
    is_local = (by_expert.ids >= first) & (by_expert.ids < first + local)
    out = jnp.where(is_local[:, None], out, 0)
    return _weighted_sum(by_expert.undo(out), routing), out.dtype


def by_all_gather(experts: Experts, tokens: jax.Array, routing: Routing, axis_name: str) -> jax.Array:
    """on_one_device of the tokens of all devices along an axis: tokens by all_gather, results by psum_scatter.

    Each device holds all tokens for a while, k times, and computes the rows of its own experts.

    Args:
      experts: this device's num_experts / devices experts.
      tokens: [t,d], this device's.
      routing: of these tokens, over the experts of all devices.
      axis_name: of the mesh axis that the experts are sharded along, device by device in order.

    Returns:
      [t,n], for this device's tokens.
    """
    tokens, routing = _checked(tokens, routing)
    _experts_of_each_device(routing.num_experts, axis_name)
    if not len(tokens):  # there is no all_gather of nothing
        return on_one_device(experts, tokens, routing)
    gathered = functools.partial(lax.all_gather, axis_name=axis_name, tiled=True)
    out, dtype = _of_own_experts(experts, gathered(tokens), jax.tree.map(gathered, routing), axis_name)
    return lax.psum_scatter(out, axis_name, tiled=True).astype(dtype)


def by_all_reduce(experts: Experts, tokens: jax.Array, routing: Routing, axis_name: str) -> jax.Array:
    """on_one_device of tokens that every device along an axis has: results by psum, no token is sent.

    For decoding, where tokens are few: one exchange of as many rows as there are tokens. A token's experts are summed
    in another order than on one device.

    Args:
      experts, axis_name: as for by_all_gather.
      tokens: [t,d], the same on all devices.
      routing: of these tokens, the same on all devices.

    Returns:
      [t,n], the same on all devices.
    """
    out, dtype = _of_own_experts(experts, *_checked(tokens, routing), axis_name)
    return lax.psum(out, axis_name).astype(dtype)


class _Exchange(NamedTuple):
    """Rows in the order of the experts, cut into one buffer of `capacity` rows for each device."""

    axis_name: str
    devices: int
    capacity: int
    slots: jax.Array  # int32 [t*k]: where in the buffers a row goes; past their end where it goes nowhere

    def there(self, rows: jax.Array) -> jax.Array:
        """[t*k,d] -> [devices*capacity,d], what the devices send to this one."""
        buffers = jnp.zeros((self.devices * self.capacity, rows.shape[1]), rows.dtype)
        return self._swapped(buffers.at[self.slots].set(rows, mode="drop", unique_indices=True))

    def back(self, rows: jax.Array) -> jax.Array:
        """The opposite; zero for rows that went nowhere."""
        return self._swapped(rows).at[self.slots].get(mode="fill", fill_value=0)

    def _swapped(self, buffers: jax.Array) -> jax.Array:
        return lax.all_to_all(buffers, self.axis_name, split_axis=0, concat_axis=0, tiled=True)


def _exchanged(experts: Experts, rows: jax.Array, by_expert: _Sorted, axis_name: str, capacity: int) -> jax.Array:
    """Returns the results of all devices' experts for sorted rows, at most capacity for a device."""
    num_experts, local = len(by_expert.group_sizes), _experts_of_each_device(len(by_expert.group_sizes), axis_name)
    devices = num_experts // local
    sizes = by_expert.group_sizes.reshape(devices, local)
    counts = sizes.sum(1, dtype=jnp.int32)
    starts = jnp.cumsum(counts) - counts
    device = by_expert.ids // local  # == devices for no expert
    place = jnp.arange(len(rows), dtype=jnp.int32) - starts.at[device].get(mode="fill", fill_value=0)
    beyond = devices * capacity + jnp.arange(len(rows), dtype=jnp.int32)  # unique too
    slots = jnp.where((device < devices) & (place < capacity), device * capacity + place, beyond)
    exchange = _Exchange(axis_name, devices, capacity, slots)

    received = lax.all_to_all(sizes, axis_name, split_axis=0, concat_axis=0, tiled=True)  # [source, local expert]
    slot = jnp.arange(capacity, dtype=jnp.int32)
    expert_of_slot = jax.vmap(lambda ends: jnp.searchsorted(ends, slot, side="right"))(jnp.cumsum(received, 1))
    arrived = _sorted_by_expert(
        expert_of_slot, local
    )  # an expert's rows in the order of the devices, which is that of all tokens
    first = lax.axis_index(axis_name).astype(jnp.int32) * local
    group_sizes = lax.dynamic_update_slice(jnp.zeros_like(by_expert.group_sizes), arrived.group_sizes, (first,))
    out = _results(experts, arrived(exchange.there(rows)), group_sizes, first)
    return exchange.back(arrived.undo(out))


def by_all_to_all(
    experts: Experts, tokens: jax.Array, routing: Routing, axis_name: str, capacity: int | None = None
) -> jax.Array:
    """on_one_device of the tokens of all devices along an axis, with its bits: rows by all_to_all, there and back.

    XLA:CPU has no all_to_all of ragged parts, so that each device sends each other one `capacity` rows, padding where
    it has fewer. When one has more, which all find out before, they use the largest capacity that may be needed, t*k:
    nothing is dropped.

    Args:
      experts, tokens, routing, axis_name: as for by_all_gather. group_sizes is zero for other devices' experts.
      capacity: rows from one device to another one, at least 1; by default twice the mean.

    Returns:
      [t,n], for this device's tokens.
    """
    tokens, routing = _checked(tokens, routing)
    local = _experts_of_each_device(routing.num_experts, axis_name)
    devices, top_k = routing.num_experts // local, routing.expert_ids.shape[1]
    most = max(len(tokens) * top_k, 1)
    capacity = -(-2 * most // devices) if capacity is None else checks.check_count("capacity", capacity, 1)

    by_expert = _sorted_by_expert(routing.expert_ids, routing.num_experts)
    rows = by_expert(_for_each_expert(tokens, top_k))
    run = functools.partial(_exchanged, experts, axis_name=axis_name)
    if capacity >= most:
        out = run(rows, by_expert, capacity=most)
    else:
        needed = lax.pmax(by_expert.group_sizes.reshape(devices, local).sum(1).max(), axis_name)
        within, beyond = functools.partial(run, capacity=capacity), functools.partial(run, capacity=most)
        out = lax.cond(needed <= capacity, within, beyond, rows, by_expert)
    return _weighted_sum(by_expert.undo(out), routing).astype(out.dtype)
