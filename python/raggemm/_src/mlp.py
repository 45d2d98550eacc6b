"""moe_mlp, the whole MLP of the experts: its arguments and their checks."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from raggemm._src import checks, library, versions
from raggemm._src.activations import ACTIVATIONS, GATED_ONLY
from raggemm._src.call import COLUMN_BLOCKS
from raggemm._src.dtypes import FLOATS
from raggemm._src.mlp_primitive import mlp_p
from raggemm._src.mlp_reference import MlpCall, widen_partial_bytes
from raggemm._src.operands import EQUAL_COUNTS

MLP_FLOATS = tuple(dtype for dtype, sums in FLOATS.items() if sums == np.float32)
# In the order in which the custom call gets them.
_OPTIONAL = next(call["optional_operands"] for call in library.tables()["calls"] if call["name"] == "moe_mlp")


def _check_rows(x: Any, row_tokens: Any, row_weights: Any, group_sizes: Any) -> dict[str, Any]:
    args = {
        "x": checks.as_float_array("x", x, MLP_FLOATS),
        "row_tokens": checks.as_integer_array("row_tokens", row_tokens),
        "group_sizes": checks.as_integer_array("group_sizes", group_sizes),
    }
    for name, axes in (("x", "T,H"), ("row_tokens", "M"), ("group_sizes", "G")):
        checks.check_rank(name, args[name], axes)
    if row_weights is not None:
        row_weights = checks.as_float_array("row_weights", row_weights, MLP_FLOATS)
        checks.check_shape("row_weights", row_weights, args["row_tokens"].shape)
        args["row_weights"] = row_weights.astype(jnp.float32)
    return args


def _check_matrices(w_up: Any, w_gate: Any, w_down: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """The weights that are there, with their scales and zero points, and of each its shape [G,.,.] and dtype."""
    args: dict[str, jax.Array | None] = {}
    matrices: dict[str, jax.ShapeDtypeStruct] = {}
    for word, w in (("up", w_up), ("gate", w_gate), ("down", w_down)):
        if w is None and word == "gate":
            continue
        name = f"w_{word}"
        data, factors, columns = checks.split_weights(name, w, MLP_FLOATS)
        if factors is not None:
            args |= {f"{word}_scale": factors.scale, f"{word}_zero": factors.zero}
        args[name] = data
        matrices[name] = jax.ShapeDtypeStruct(data.shape if columns is None else w.shape, data.dtype)
        checks.check_rank(name, matrices[name], "G,K,N")
    return {name: x for name, x in args.items() if x is not None}, matrices


def _check_matrix(
    word: str, w: jax.ShapeDtypeStruct, hidden: int, transpose: bool, layout: str, groups: int | None = None
) -> None:
    """w_up, or w_down, which must have as many groups: the one axis of H elements is where it must be."""
    last = transpose == (word == "up")  # the last one of the two axes
    if w.shape[2 if last else 1] == hidden and groups in (None, w.shape[0]):
        return
    axes = f"[{'G' if groups is None else groups},{f'I,{hidden}' if last else f'{hidden},I'}]"
    meant = w.shape[1 if last else 2] == hidden and groups in (None, w.shape[0])
    stored = "packed as it is" if layout else f"with transpose_{word}={transpose}"
    other = f"prepack(w_{word}, transpose=True)" if layout else f"transpose_{word}={not transpose}"
    half = checks.packed_int4_hint(w.dtype, w.shape[2 if last else 1], hidden)
    hint = half or (f"; {other} may be meant" if meant else "")
    raise ValueError(f"w_{word}: shape is {w.shape}, must be {axes} {stored}{hint}")


def _check_extents(
    matrices: dict[str, Any], hidden: int, merged: bool, transposes: dict[str, bool], layouts: dict[str, str]
) -> int:
    """The columns of w_up."""
    up = matrices["w_up"].shape
    groups, columns = up[0], up[1 if transposes["w_up"] else 2]
    _check_matrix("up", matrices["w_up"], hidden, transposes["w_up"], layouts["up_layout"])
    if "w_gate" in matrices:
        checks.check_shape("w_gate", matrices["w_gate"], up)
        checks.check_dtype("w_gate: beside w_up", matrices["w_gate"].dtype, (matrices["w_up"].dtype,))
    inner = matrices["w_down"].shape[2 if transposes["w_down"] else 1]
    _check_matrix("down", matrices["w_down"], hidden, transposes["w_down"], layouts["down_layout"], groups)
    if columns != (wanted := 2 * inner if merged else inner):
        each = "two where it is merged, as it is" if merged else "one, or two where it is merged, as it is not"
        raise ValueError(f"w_up: has {columns} columns, must have {wanted}: for each of w_down's {inner} rows {each}")
    return columns


def _check_biases(args: dict[str, Any], columns: int, **biases: Any) -> dict[str, Any]:
    groups, hidden = args["w_up"].shape[0], args["x"].shape[1]
    given = {name: checks.as_float_array(name, bias, MLP_FLOATS) for name, bias in biases.items() if bias is not None}
    for name, bias in given.items():
        checks.check_shape(name, bias, (groups, hidden if name == "b_down" else columns))
    return given


def _check_group_offset(args: dict[str, Any], group_offset: Any) -> dict[str, Any]:
    groups, total = args["w_up"].shape[0], args["group_sizes"].shape[0]
    if groups > total:
        raise ValueError(f"w_up has {groups} groups, more than the {total} of group_sizes")
    if group_offset is None:
        if groups < total:
            raise ValueError(f"w_up has {groups} groups, but group_sizes has {total}: {EQUAL_COUNTS}")
        return {}
    return {"group_offset": checks.as_group_offset(group_offset)}


def _check_layouts(args: dict[str, Any], transposes: dict[str, bool]) -> dict[str, str]:
    """How w_up, w_gate with it, and w_down are stored, as the attributes say it."""
    in_blocks = {name: x.ndim == 4 for name, x in args.items() if name.startswith("w_")}
    if in_blocks.get("w_gate", in_blocks["w_up"]) != in_blocks["w_up"]:
        raise TypeError("w_gate: must be PackedWeights where w_up is, and only there")
    for name, transpose in transposes.items():
        if in_blocks[name] and transpose:
            raise ValueError(
                f"{name}: is PackedWeights, which are [G,K,N] whatever they were packed from; it takes no "
                f"transpose_{name[2:]}"
            )
    return {f"{name[2:]}_layout": COLUMN_BLOCKS if in_blocks[name] else "" for name in transposes}


@functools.partial(jax.jit, static_argnames="call", inline=True)
def _moe_mlp(args: dict[str, jax.Array], *, call: MlpCall) -> jax.Array:
    """Computes the call on arrays as the caller has them."""
    args = {name: versions.replicate_explicit_axes(x) for name, x in args.items()}
    if "group_offset" in args:
        args["group_offset"] = args["group_offset"].reshape(1)
    args = widen_partial_bytes(args)
    for word in ("up", "gate", "down"):
        for name in (f"{word}_scale", f"{word}_zero"):
            if name in args and args[name].ndim == 0:
                args[name] = jnp.broadcast_to(args[name], args[f"w_{word}"].shape[:1])
    return mlp_p.bind(*versions.promote_vma(call.flatten(args)), call=call)[0]


def moe_mlp(
    x: Any,
    row_tokens: Any,
    row_weights: Any,
    group_sizes: Any,
    w_up: Any,
    w_down: Any,
    *,
    w_gate: Any = None,
    b_up: Any = None,
    b_gate: Any = None,
    b_down: Any = None,
    activation: str = "silu",
    merged: str | None = None,
    transpose_up: bool = False,
    transpose_down: bool = False,
    group_offset: Any = None,
    preferred_element_type: Any = None,
    save: str = "inputs",
    weight_on: str = "output",
    row_slots: Any = None,
) -> jax.Array:
    """The MLP of the experts of a mixture-of-experts layer, as one call: gather, up and gate, activation, down, and the
    weighted sum of each token's experts.

    The M rows are pairs of a token and an expert, sorted by expert: row r is token row_tokens[r] with row_weights[r],
    and the first group_sizes[0] rows are expert 0's. For the rows of expert e

        up = x[row_tokens] @ w_up[e] + b_up[e]      gate = x[row_tokens] @ w_gate[e] + b_gate[e]
        a = activation(gate) * up                   without a gate activation(up)
        d = a @ w_down[e] + b_down[e]
        out[t] = sum of row_weights[r] * d[r] over the rows r of token t

    up, gate and d are float32, as results of grouped_gemm. a is computed in float32 and rounded once, to the type of
    w_down, or to that of x where w_down is quantized. The sum is a chain of fma in float32, from +0, in ascending order
    of the rows, rounded once to out's type.

    A token may have any number of rows, of one expert too; one without any is +0. Rows of no processed group, behind
    the sum of the sizes say, take no part: neither their tokens nor their weights are looked at.

    Args:
      x: [T,H], float16, bfloat16 or float32, as are all floats here, in any mix.
      row_tokens: [M], int32, int64 or uint32. One of a processed group must be in [0,T): a wrong one is found as a
        wrong size is, when the call or its derivative has run.
      row_weights: [M], or None, which is 1.
      group_sizes: [total groups], int32, int64 or uint32, the rows of each group. Their sum may be less than M.
      w_up: [G,H,I], with transpose_up [G,I,H]. It, w_gate and w_down may be QuantizedTensors, and PackedWeights, w_gate
        as w_up.
      w_down: [G,I,H], with transpose_down [G,H,I].
      w_gate: as w_up, of the same dtype, or None: no gate.
      b_up, b_gate: [G,I], or None.
      b_down: [G,H], or None.
      activation: "silu", "gelu" (by erf), "gelu_tanh", "relu", "quick_gelu" (gate * sigmoid(1.702 * gate)), or
        "swiglu_oai", gpt-oss', which needs a gate: gate * sigmoid(1.702 * gate) * (up + 1), where gate is at most 7 and
        up in [-7,7].
      merged: w_up is gate and up in one, [G,H,2I], and b_up [G,2I]: "halves", the gate's columns first, or
        "interleaved", the gate's the even ones. There is no w_gate or b_gate then.
      group_offset: integer, () or (1,): the group in group_sizes that the weights' first one is for. ValueError where
        they have fewer groups than group_sizes and there is none.
      preferred_element_type: dtype of the result, by default x's.
      save: what a gradient keeps of the forward pass: "inputs", nothing but the arguments, so that it computes up and
        gate again; or "activations", up and gate, [M,I] in float32. The gradient has the same bits.
      weight_on: "output", or "input" as Llama 4 has it: row_weights[r] multiplies x[row_tokens[r]] in float32, which is
        rounded once to x's type, and d[r] is added as it is.
      row_slots: [M], int32, int64 or uint32, as of sort_by_expert: a token's rows are added in the order of these
        numbers, rows of one number in ascending order.

    Returns:
      [T,H].

    The sum of a token is one chain of fma for any number of rows, in the value and in gradients. Forward mode and
    combine begin a new chain after 256 rows of a token, so that their last bits differ beyond 256 rows.

    Temporaries do not grow with the rows, but for eight bytes a row: see docs/concepts/memory.md.

    It has derivatives of every order, forward and reverse, of x, floats among the weights, biases, row_weights, and
    scales of quantized weights that are not float8_e8m0fnu. float64 is a TypeError. A gradient is one call, too:
    cotangents of rows are rounded where a product takes them, to the type of its weights or, where those are quantized,
    of x; everything is summed in float32, a token's rows in ascending order (include/raggemm/moe_mlp.h has it step by
    step). Forward mode, second order and gradients of scales are grouped GEMMs, one after the other.

    Under vmap it is one call, too, with the tokens, rows and groups of all and the same bits, and so is its gradient:
    where no weight is batched, or all are (biases, scales and zero points may be either then), and extents are numbers.
    Grouped GEMMs are batches of only some matrices, of biases or scales alone, and gradients, for each of the batch, of
    weights that it shares; their gradient of the whole batch is one call. What is wrong in one of a batch of B is an
    error, of the one call: indices are of rows in it, and a wrong token, where it is not negative, is greater by
    (B-1) T. With on_error="nan" all of the batch is NaN.
    """
    if merged is not None and (w_gate is not None or b_gate is not None):
        name = "b_gate" if w_gate is None else "w_gate"
        raise ValueError(f"{name}: is given with merged, where w_up and b_up have the gate")
    if b_gate is not None and w_gate is None:
        raise ValueError("b_gate: is given without w_gate")
    checks.check_choice("activation", activation, map(str.lower, ACTIVATIONS))
    checks.check_choice("merged", merged, (None, "halves", "interleaved"))
    checks.check_choice("save", save, ("inputs", "activations"))
    checks.check_choice("weight_on", weight_on, ("output", "input"))
    transpose_up, transpose_down = (
        checks.check_bool("transpose_up", transpose_up),
        checks.check_bool("transpose_down", transpose_down),
    )
    if activation.upper() in GATED_ONLY and merged is None and w_gate is None:
        raise ValueError(f"activation: {activation!r} needs a gate, w_gate or merged")
    args = _check_rows(x, row_tokens, row_weights, group_sizes)
    weights, matrices = _check_matrices(w_up, w_gate, w_down)
    args |= weights
    transposes = {"w_up": transpose_up, "w_down": transpose_down}
    layouts = _check_layouts(weights, transposes)
    columns = _check_extents(matrices, args["x"].shape[1], merged is not None, transposes, layouts)
    args |= _check_biases(args, columns, b_up=b_up, b_gate=b_gate, b_down=b_down)
    args |= _check_group_offset(args, group_offset)
    dtype = checks.result_dtype(preferred_element_type, args["x"].dtype, MLP_FLOATS)
    if row_slots is not None:
        args["row_slots"] = checks.as_integer_array("row_slots", row_slots)
        checks.check_shape("row_slots", args["row_slots"], args["row_tokens"].shape)
    call = MlpCall(
        activation=activation.upper(),
        merged=(merged or "").upper(),
        up_is_trans=transpose_up,
        down_is_trans=transpose_down,
        up_layout=layouts["up_layout"],
        down_layout=layouts["down_layout"],
        dtype=dtype,
        saves_products=save == "activations",
        weight_on="INPUT" if weight_on == "input" and row_weights is not None else "",
        operands=tuple(name for name in _OPTIONAL if name in args),
    )
    return _moe_mlp(args, call=call)
