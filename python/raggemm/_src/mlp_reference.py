"""The experts' MLP as a sequence of grouped GEMMs: its value and its gradients.

Computes what the custom calls do not support: some derivatives and batches, and symbolic extents.
"""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec

from raggemm._src.activations import Activation, activation_attributes, apply_activation
from raggemm._src.call import WORD_BLOCKS, from_blocks, from_word_values
from raggemm._src.dtypes import FLOATS, SUB_BYTE
from raggemm._src.grouped_gemm import compute_product
from raggemm._src.operands import ArgNames, make_operands
from raggemm._src.routing import gather_rows, sum_token_rows
from raggemm._src.tensors import QuantizedTensor

REQUIRED = ("x", "row_tokens", "group_sizes", "w_up", "w_down")
Args = dict[str, Any]


def widen_partial_bytes(args: Args) -> Args:
    """Widens weight elements narrower than a byte to one byte, if rows would end inside a byte."""
    wide: Args = {}
    for part in ("up", "gate", "down"):
        matrix, zero = f"w_{part}", f"{part}_zero"
        count, wider = SUB_BYTE.get(args[matrix].dtype, (1, None)) if matrix in args else (1, None)
        if count > 1 and args[matrix].shape[-1] % count:
            wide |= {name: args[name].astype(wider) for name in (matrix, zero) if name in args}
    return args | wide


def is_given(attribute: str | bool | int | np.float32) -> bool:
    """Returns True unless the value of an attribute is "" or False, which are left out. A number may be 0."""
    return attribute is not False and attribute != ""


@dataclasses.dataclass(frozen=True, repr=False)
class MlpCall:
    """The static parameter of mlp_p."""

    activation: Activation
    merged: str
    up_is_trans: bool
    down_is_trans: bool
    up_layout: str  # layout of w_up and w_gate
    down_layout: str
    dtype: np.dtype
    saves_products: bool  # True if a gradient keeps up and gate of the forward pass.
    weight_on: str  # "INPUT": row_weights multiply rows of x. "": they multiply the experts' results.
    operands: tuple[str, ...]  # names of the given optional operands, in the order of the custom call
    returns_products: bool = False  # True if the call also returns up and gate.
    lhs_block: int | None = None  # like lhs_block of Call, for the rows of x and of activations

    @property
    def names(self) -> tuple[str, ...]:
        return (*REQUIRED, *self.operands)

    @property
    def saved_products(self) -> tuple[str, ...]:
        if not self.returns_products:
            return ()
        return ("up", "gate") if "w_gate" in self.operands else ("up",)

    def unflatten(self, flatten: Sequence[Any]) -> Args:
        return dict(zip(self.names, flatten, strict=True))

    def flatten(self, args: Args) -> list[Any]:
        return [args[name] for name in self.names]

    def attributes(self) -> dict[str, str | bool | int | np.float32]:
        same = ("merged", "up_is_trans", "down_is_trans", "up_layout", "down_layout", "weight_on")
        attributes = activation_attributes(self.activation) | {name: getattr(self, name) for name in same}
        attributes |= {"operands": ",".join(self.operands), "results": ",".join(self.saved_products)}
        return attributes if self.lhs_block is None else attributes | {"lhs_block": self.lhs_block}

    def intermediate_size(self, args: Args) -> int:
        return args["w_down"].shape[2 if self.down_layout or self.down_is_trans else 1]

    def up_columns(self, args: Args) -> int:
        return (2 if self.merged else 1) * self.intermediate_size(args)

    def unpack_weights(self, args: Args) -> tuple["MlpCall", Args]:
        plain = {}
        for name, n in self.block_columns(args).items():
            layout = self.down_layout if name == "w_down" else self.up_layout
            plain[name] = from_blocks(args[name], n, layout)
            values = [f"{name.removeprefix('w_')}_{field}" for field in ("scale", "zero")]
            if layout == WORD_BLOCKS:
                plain |= {x: from_word_values(args[x], n) for x in values if x in args}
        return dataclasses.replace(self, up_layout="", down_layout=""), widen_partial_bytes(args | plain)

    def block_columns(self, args: Args) -> dict[str, int]:
        columns = self.up_columns(args)
        found = {name: columns for name in ("w_up", "w_gate") if self.up_layout and name in args}
        return found | ({"w_down": args["x"].shape[1]} if self.down_layout else {})

    def __call__(self, *flatten: Any) -> tuple[jax.Array, ...]:
        call, args = self.unpack_weights(self.unflatten(flatten))
        return reference_impl(call, args)[: 1 + len(self.saved_products)]

    def out_avals(self, x: Any, *others: Any) -> list[Any]:
        block_columns, rows = self.up_columns(self.unflatten((x, *others))), others[0].shape[0]

        def result(shape, dtype):
            sharding = x.sharding.update(spec=PartitionSpec(None, None))
            return x.update(shape=shape, dtype=np.dtype(dtype), weak_type=False, sharding=sharding)

        return [result(x.shape, self.dtype), *(result((rows, block_columns), np.float32) for _ in self.saved_products)]

    def __repr__(self) -> str:
        attributes = " ".join(f"{name}={value}" for name, value in self.attributes().items() if is_given(value))
        return f"MLP({attributes} -> {np.dtype(self.dtype)})"


def _mask_processed_rows(args: dict[str, Any]) -> jax.Array:
    """Returns float32 [M]: 1 for rows of processed groups, 0 for other rows.

    Checks sizes and tokens. With on_error="nan", a wrong size or token makes the result NaN.
    """
    tokens, groups = args["x"].shape[0], args["w_up"].shape[0]
    lhs, rhs = (jnp.zeros(shape, jnp.float32) for shape in ((tokens, 0), (groups, 0, 1)))
    return compute_product(
        ArgNames(lhs="x", sizes="group_sizes", row_index="row_tokens"),
        *make_operands(lhs, rhs, args["group_sizes"], (1, 1)),
        bias=jnp.ones((groups, 1), jnp.float32),
        group_offset=args.get("group_offset"),
        row_index=args["row_tokens"],
    )[:, 0]


def multiply_weight(
    args: dict[str, Any],
    weight: str,
    rows: jax.Array,
    is_trans: bool,
    has_bias: bool = True,
    lhs_block: int | None = None,
) -> jax.Array:
    """Multiplies each row by the matrix of its group, and adds the bias if given: float32 [M,columns].

    weight: suffix of the names of matrix and bias, such as "up" for w_up and b_up. lhs_block: see Call.
    """
    data = args[f"w_{weight}"]
    is_array = data.dtype in FLOATS
    w = data if is_array else QuantizedTensor(data, args.get(f"{weight}_scale"), args.get(f"{weight}_zero"))
    return compute_product(
        ArgNames(sizes="group_sizes"),
        *make_operands(rows, w, args["group_sizes"], (1, 2 if is_trans else 1)),
        alpha=args.get(f"alpha_{weight}"),
        bias=args.get(f"b_{weight}") if has_bias else None,
        group_offset=args.get("group_offset"),
        preferred_element_type=jnp.float32,
        lhs_block=lhs_block,
    )


def compute_first_products(call: MlpCall, args: dict[str, Any], rows: jax.Array) -> tuple[jax.Array, ...]:
    """Returns the products of float32 rows [M,H] with w_up and, if given, w_gate.

    Rounds the rows to the dtype of x separately for each product. So JAX adds the gradients of the rows in float32.
    """
    weights, dtype = ("up", "gate") if "w_gate" in args else ("up",), args["x"].dtype
    return tuple(
        multiply_weight(args, weight, rows.astype(dtype), call.up_is_trans, lhs_block=call.lhs_block)
        for weight in weights
    )


def split_gate_and_up(
    call: MlpCall, up: jax.Array, gate: jax.Array | None = None
) -> tuple[jax.Array | None, jax.Array]:
    if call.merged == "HALVES":
        gate, up = jnp.split(up, 2, axis=1)
    elif call.merged == "INTERLEAVED":
        gate, up = up[:, ::2], up[:, 1::2]
    return gate, up


def resolve_row_tokens(args: dict[str, Any]) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Returns three arrays [M]: the token of each row, the weight of each row, and error terms.

    An ignored row has the token T, the number of tokens. Error terms are 0, or NaN if a token or size is wrong and
    on_error is "nan". They are also added to the weights.
    """
    row_tokens, tokens, is_placed = args["row_tokens"], args["x"].shape[0], _mask_processed_rows(args)
    takes_part = (is_placed != 0) & (row_tokens >= 0) & (row_tokens < tokens)
    wrong = is_placed - is_placed
    weights = args.get("row_weights", jnp.ones(row_tokens.shape, jnp.float32)) + wrong
    return jnp.where(takes_part, row_tokens, tokens), weights, wrong


def gather_input_rows(call: MlpCall, args: dict[str, Any], token: jax.Array, weights: jax.Array) -> jax.Array:
    """Returns the inputs of the first products, float32 [M,H]. Ignored rows (token T) are 0."""
    x = args["x"]
    rows = gather_rows(x.astype(jnp.float32), token)
    if call.weight_on != "INPUT":
        return rows
    is_token = token < x.shape[0]  # ignored rows get weight 0, because their weights may be NaN
    return rows * jnp.where(is_token, weights, 0)[:, None]


def reference_impl(call: MlpCall, args: dict[str, Any]) -> tuple[jax.Array, ...]:
    """Computes an expert MLP. Returns its value and the first products: up, and gate if w_gate is given."""
    x = args["x"]
    token, weights, wrong = resolve_row_tokens(args)
    first = compute_first_products(call, args, gather_input_rows(call, args, token, weights))
    if call.weight_on == "INPUT":
        weights = jnp.ones_like(weights) + wrong
    down = args["w_down"].dtype
    a = apply_activation(call.activation, *split_gate_and_up(call, *first)).astype(down if down in FLOATS else x.dtype)
    rows = multiply_weight(args, "down", a, call.down_is_trans, lhs_block=call.lhs_block)
    return sum_token_rows(rows, weights, token, x.shape[0], call.dtype, args.get("row_slots")), *first


def _operand_type(args: Args, weight: str) -> Any:
    dtype = args[f"w_{weight}"].dtype
    return dtype if dtype in FLOATS else args["x"].dtype


def _multiply_per_group(args: Args, lhs: jax.Array, rhs: jax.Array, dtype: Any) -> jax.Array:
    return compute_product(
        ArgNames(sizes="group_sizes"),
        *make_operands(lhs, rhs, args["group_sizes"], (0, 0), rhs_rank=2),
        group_offset=args.get("group_offset"),
        num_actual_groups=args["w_up"].shape[0],
        preferred_element_type=dtype,
    )


def _weight_cotangent(args: Args, name: str, rows: jax.Array, ct: jax.Array, is_trans: bool) -> jax.Array:
    operands = (ct, rows) if is_trans else (rows, ct)
    return _multiply_per_group(args, *operands, args[name].dtype)


def _bias_cotangent(args: Args, name: str, ct: jax.Array) -> jax.Array:
    ones = jnp.ones((ct.shape[0], 1), ct.dtype)
    return _multiply_per_group(args, ones, ct, args[name].dtype).reshape(args[name].shape)


def _merge_gate(call: MlpCall, gate: jax.Array | None, up: jax.Array) -> jax.Array:
    """Returns the cotangent of the product with w_up: `up`, or `gate` and `up` merged if w_up contains both."""
    if gate is None:
        return up
    if call.merged == "HALVES":
        return jnp.concatenate([gate, up], axis=1)
    if call.merged == "INTERLEAVED":
        return jnp.stack([gate, up], axis=2).reshape(up.shape[0], 2 * up.shape[1])
    return up


def compute_cotangents(call: MlpCall, args: Args, ct: jax.Array, wanted: tuple[str, ...]) -> Args:
    """Returns the cotangents of the arguments in `wanted`, by name.

    wanted: names of x, row_weights, float weights and biases. ct: [T,H], the cotangent of the value.
    """
    x, on_input = args["x"], call.weight_on == "INPUT"
    token, weights, wrong = resolve_row_tokens(args)
    rows, down_type = gather_input_rows(call, args, token, weights).astype(x.dtype), _operand_type(args, "down")
    inputs = weights
    if on_input:
        weights = jnp.ones_like(weights) + wrong
    gate, up = split_gate_and_up(call, *compute_first_products(call, args, rows))
    a, pull = jax.vjp(functools.partial(apply_activation, call.activation), gate, up)
    a = a.astype(down_type)
    d_rows = gather_rows(ct.astype(down_type), token)
    d_a = multiply_weight(args, "down", d_rows, not call.down_is_trans, has_bias=False)  # not yet times row_weights
    d_gate, d_up = pull(weights[:, None] * d_a)
    d_up = _merge_gate(call, d_gate, d_up).astype(_operand_type(args, "up"))
    found: Args = {}
    if "row_weights" in wanted and not on_input:
        found["row_weights"] = (a.astype(jnp.float32) * d_a).sum(1) + wrong
        if "b_down" in args:
            with_bias = args | {"w_bias": args["b_down"][:, :, None]}
            found["row_weights"] += multiply_weight(with_bias, "bias", d_rows, False, has_bias=False)[:, 0]
    weighted = (weights[:, None] * d_rows.astype(jnp.float32)).astype(down_type)
    if "w_down" in wanted:
        found["w_down"] = _weight_cotangent(args, "w_down", a, weighted, call.down_is_trans)
    if "b_down" in wanted:
        found["b_down"] = _bias_cotangent(args, "b_down", weighted)
    product_cts = {"up": d_up}
    if "w_gate" in args:
        product_cts["gate"] = d_gate.astype(_operand_type(args, "gate"))
    for part, product_ct in product_cts.items():
        if f"w_{part}" in wanted:
            found[f"w_{part}"] = _weight_cotangent(args, f"w_{part}", rows, product_ct, call.up_is_trans)
        if f"b_{part}" in wanted:
            found[f"b_{part}"] = _bias_cotangent(args, f"b_{part}", product_ct)
    if "x" in wanted or ("row_weights" in wanted and on_input):
        x_cts = [
            multiply_weight(args, part, product_ct, not call.up_is_trans, has_bias=False)
            for part, product_ct in product_cts.items()
        ]
        dx_rows = sum(x_cts[1:], x_cts[0])
    if "x" in wanted:
        by = jnp.where(token < x.shape[0], inputs, 0) if on_input else jnp.ones(token.shape, jnp.float32)
        found["x"] = sum_token_rows(dx_rows, by, token, x.shape[0], x.dtype)
    if "row_weights" in wanted and on_input:
        found["row_weights"] = (gather_rows(x.astype(jnp.float32), token) * dx_rows).sum(1) + wrong
    return found
