"""moe_mlp, the experts' whole MLP: checks its arguments and binds the call."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from raggemm._src import arguments, checks, library, versions
from raggemm._src.activations import Activation, as_activation
from raggemm._src.call import STRIDED
from raggemm._src.dtypes import FLOATS
from raggemm._src.mlp_primitive import mlp_p
from raggemm._src.mlp_reference import MlpCall, widen_partial_bytes
from raggemm._src.operands import EQUAL_COUNTS

MLP_FLOATS = tuple(dtype for dtype, sums in FLOATS.items() if sums == np.float32)
# Names of the optional operands of moe_mlp, in the order of the custom call.
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


def _check_matrices(w_up: Any, w_gate: Any, w_down: Any) -> tuple[dict[str, Any], dict[str, Any], dict[str, str]]:
    """Checks the given weights.

    Returns:
      (weights, scales and zero points by name; each weight's dtype and unpacked shape [G,K,N]; each weight's layout).
    """
    args: dict[str, jax.Array | None] = {}
    matrices: dict[str, jax.ShapeDtypeStruct] = {}
    layouts: dict[str, str] = {}
    for part, w in (("up", w_up), ("gate", w_gate), ("down", w_down)):
        if w is None and part == "gate":
            continue
        name = f"w_{part}"
        data, params, columns, layouts[name] = checks.split_weights(name, w, MLP_FLOATS)
        if params is not None:
            args |= {f"{part}_scale": params.scale, f"{part}_zero": params.zero}
        args[name] = data
        matrices[name] = jax.ShapeDtypeStruct(data.shape if columns is None else w.shape, data.dtype)
        checks.check_rank(name, matrices[name], "G,K,N")
    return {name: x for name, x in args.items() if x is not None}, matrices, layouts


def _check_matrix(
    part: str, w: jax.ShapeDtypeStruct, hidden: int, transpose: bool, layout: str, groups: int | None = None
) -> None:
    """Checks that w has `hidden` elements along its axis H and, if `groups` is not None, `groups` groups.

    part: "up" for w_up, "down" for w_down. layout: that of PackedWeights, else "".
    """
    last = transpose == (part == "up")  # True if H is the last axis of w
    if w.shape[2 if last else 1] == hidden and groups in (None, w.shape[0]):
        return
    axes = f"[{'G' if groups is None else groups},{f'I,{hidden}' if last else f'{hidden},I'}]"
    other_fits = w.shape[1 if last else 2] == hidden and groups in (None, w.shape[0])
    stored = "as PackedWeights" if layout else f"with transpose_{part}={transpose}"
    other = f"prepack(w_{part}, transpose=True)" if layout else f"transpose_{part}={not transpose}"
    half = checks.packed_int4_hint(w.dtype, w.shape[2 if last else 1], hidden)
    hint = half or (f"; {other} may be meant" if other_fits else "")
    raise ValueError(f"w_{part}: shape is {w.shape}, must be {axes} {stored}{hint}")


def _check_extents(
    matrices: dict[str, Any], hidden: int, merged: bool, transposes: dict[str, bool], layouts: dict[str, str]
) -> int:
    up = matrices["w_up"].shape
    groups, columns = up[0], up[1 if transposes["w_up"] else 2]
    _check_matrix("up", matrices["w_up"], hidden, transposes["w_up"], layouts["up_layout"])
    if "w_gate" in matrices:
        checks.check_shape("w_gate", matrices["w_gate"], up)
        if (gate := matrices["w_gate"].dtype) != (wanted_dtype := matrices["w_up"].dtype):
            raise TypeError(f"w_gate: dtype is {gate}, must be {wanted_dtype}, the dtype of w_up")
    inner = matrices["w_down"].shape[2 if transposes["w_down"] else 1]
    _check_matrix("down", matrices["w_down"], hidden, transposes["w_down"], layouts["down_layout"], groups)
    if columns != (wanted := 2 * inner if merged else inner):
        rows = f"each of w_down's {inner} rows"
        rule = f"with merged, two for {rows}" if merged else f"one for {rows}, or two with merged"
        raise ValueError(f"w_up: has {columns} columns, must have {wanted}: {rule}")
    return columns


def _check_biases(args: dict[str, Any], columns: int, **biases: Any) -> dict[str, Any]:
    groups, hidden = args["w_up"].shape[0], args["x"].shape[1]
    given = {name: checks.as_float_array(name, bias, MLP_FLOATS) for name, bias in biases.items() if bias is not None}
    for name, bias in given.items():
        checks.check_shape(name, bias, (groups, hidden if name == "b_down" else columns))
    return given


def _check_alphas(matrices: dict[str, Any], **alphas: Any) -> dict[str, Any]:
    """Checks the factors of the products, and returns those that are given in float32, [G]."""
    found = {}
    for name, alpha in alphas.items():
        if alpha is None:
            continue
        weight = f"w_{name.removeprefix('alpha_')}"
        if weight not in matrices:
            raise ValueError(f"{name}: is given without {weight}")
        if (dtype := matrices[weight].dtype) in FLOATS:
            raise TypeError(f"{name}: {weight} has dtype {dtype}, must be quantized; multiply the weights by alpha")
        groups = matrices[weight].shape[:1]
        alpha = checks.check_shape(name, checks.as_float_array(name, alpha, MLP_FLOATS), (), groups)
        found[name] = jnp.broadcast_to(alpha.astype(jnp.float32), groups)
    return found


def _check_group_offset(args: dict[str, Any], group_offset: Any) -> dict[str, Any]:
    groups, total = args["w_up"].shape[0], args["group_sizes"].shape[0]
    if groups > total:
        raise ValueError(f"w_up has {groups} groups, more than the {total} of group_sizes")
    if group_offset is None:
        if groups < total:
            raise ValueError(f"w_up has {groups} groups, but group_sizes has {total}: {EQUAL_COUNTS}")
        return {}
    return {"group_offset": checks.as_group_offset(group_offset)}


def _check_layouts(layouts: dict[str, str], transposes: dict[str, bool], rounds_rows: bool) -> dict[str, str]:
    """Returns up_layout and down_layout of the call. layouts: layout of each weight."""
    up, gate = layouts["w_up"], layouts.get("w_gate", layouts["w_up"])
    if (up == STRIDED) != (gate == STRIDED):
        raise TypeError("w_gate: must be PackedWeights if and only if w_up is")
    if up != gate:
        raise ValueError(f"w_gate: layout is {gate}, must be {up}, the layout of w_up; prepack both in the same way")
    for name, layout in layouts.items():
        checks.check_takes_layout(name, layout, rounds_rows)
    for name, transpose in transposes.items():
        if layouts[name] != STRIDED and transpose:
            raise ValueError(
                f"{name}: is PackedWeights, which are [G,K,N] whatever was packed; transpose_{name[2:]} must be False"
            )
    return {f"{name[2:]}_layout": "" if layouts[name] == STRIDED else layouts[name] for name in transposes}


def _check_codes(args: dict[str, Any], matrices: dict[str, Any], transposes: dict[str, bool], lhs_block: int) -> None:
    """Checks that all weights are codes that rows of int8 codes can be multiplied by."""
    for name, w in matrices.items():
        part = name[2:]
        arguments.check_code_dtype(name, w.dtype, w.dtype not in FLOATS, "lhs_quantize")
        arguments.check_code_columns(name, w.shape, w.dtype)
        axis = 2 if transposes["w_down" if part == "down" else "w_up"] else 1
        params = checks.QuantParams(args.get(f"{part}_scale"), args.get(f"{part}_zero"))
        arguments.check_code_blocks(name, params, axis, w.shape[axis], lhs_block)


@functools.partial(jax.jit, static_argnames="call", inline=versions.INLINE)
def _moe_mlp(args: dict[str, jax.Array], *, call: MlpCall) -> jax.Array:
    args = {name: versions.replicate_explicit_axes(x) for name, x in args.items()}
    if "group_offset" in args:
        args["group_offset"] = args["group_offset"].reshape(1)
    args = widen_partial_bytes(args)
    for part in ("up", "gate", "down"):
        for name in (f"{part}_scale", f"{part}_zero"):
            if name in args and args[name].ndim == 0:
                args[name] = jnp.broadcast_to(args[name], args[f"w_{part}"].shape[:1])
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
    alpha_up: Any = None,
    alpha_gate: Any = None,
    alpha_down: Any = None,
    activation: str | Activation = "silu",
    merged: str | None = None,
    transpose_up: bool = False,
    transpose_down: bool = False,
    group_offset: Any = None,
    preferred_element_type: Any = None,
    save: str = "inputs",
    weight_on: str = "output",
    row_slots: Any = None,
    lhs_quantize: Any = None,
    lhs_block: int | None = arguments.DEFAULT_LHS_BLOCK,
) -> jax.Array:
    """Computes the MLP of a mixture-of-experts layer in one call, from the gather to the weighted sum of experts.

    The M rows are pairs of a token and an expert, sorted by expert. Row r has the token row_tokens[r] and the weight
    row_weights[r]. For the rows of expert e

        up = x[row_tokens] @ w_up[e] + b_up[e]      gate = x[row_tokens] @ w_gate[e] + b_gate[e]
        a = activation(gate) * up                   (without a gate: a = activation(up))
        d = a @ w_down[e] + b_down[e]
        out[t] = sum of row_weights[r] * d[r] over the rows r of token t

    up, gate and d are float32. a is computed in float32 and rounded once, to the type of w_down, or of x if w_down is
    quantized. A token's rows are summed in ascending order of r, unless row_slots is given. The sum is one float32 fma
    chain from +0, rounded once to out's type. Forward-mode derivatives and raggemm.combine begin a new chain after 256
    rows, so the last bits of their sums may differ.

    A token may have any number of rows. Without rows its result is +0. Rows of no processed group, such as rows behind
    the sum of the sizes, are ignored, and their tokens are not checked.

    Args:
      x: [T,H]. All float arguments are float16, bfloat16 or float32 (else TypeError), in any mix.
      row_tokens: [M], int32, int64 or uint32. Tokens of processed groups must be in [0,T), else the call or its
        derivative fails at run time, as for a wrong size.
      row_weights: [M], or None for 1.
      group_sizes: [total groups], int32, int64 or uint32: rows of each group. The sum may be less than M.
      w_up: [G,H,I], or [G,I,H] with transpose_up. w_up, w_gate and w_down may be QuantizedTensors or PackedWeights.
        w_gate must be PackedWeights if and only if w_up is, and of the same layout.
      w_down: [G,I,H], or [G,H,I] with transpose_down.
      w_gate: same shape and dtype as w_up, or None for no gate.
      b_up, b_gate: [G,I], or None.
      b_down: [G,H], or None.
      alpha_up, alpha_gate, alpha_down: [G] or (), or None for 1: factors of the sums of x @ w_up[e], x @ w_gate[e] and
        a @ w_down[e], before the bias. They are the second scales of quantized weights, as in NVFP4. The weights must
        be quantized (else TypeError). With `merged`, alpha_up also multiplies the gate.
      activation: a name or an Activation, which lists the names. "swiglu_oai" (gpt-oss) and "swiglu_clamped"
        (DeepSeek-V4) need a gate.
      merged: w_up [G,H,2I] and b_up [G,2I] hold gate and up, and w_gate and b_gate are None. "halves": the gate's
        columns come first. "interleaved": the gate has the even columns.
      group_offset: integer, () or (1,): index in group_sizes of the weights' first group. Required if the weights have
        fewer groups than group_sizes (else ValueError).
      preferred_element_type: dtype of the result. The default is that of x.
      save: values that a gradient keeps from the forward pass. "inputs": only the arguments; the gradient recomputes up
        and gate. "activations": also up and gate, float32 [M,I]. The gradient has the same bits either way.
      weight_on: "output", or "input" as in Llama 4. With "input", x[row_tokens[r]] is multiplied by row_weights[r] in
        float32 and rounded once to x's type, and d[r] is added without a weight.
      row_slots: [M], int32, int64 or uint32, for example from sort_by_expert. A token's rows are added in the order of
        these numbers, and rows with equal numbers in ascending order.
      lhs_quantize: None, or int8: the call quantizes each row of x, and each row of a, to int8 before it multiplies
        them by weights, as raggemm.gmm describes. All weights must be QuantizedTensors or PackedWeights of integers or
        float4_e2m1fn (else TypeError). Derivatives ignore the rounding (straight-through).
      lhs_block: see raggemm.gmm.

    Returns:
      [T,H].

    Memory: these temporaries of the forward pass grow with rows or tokens: 8 bytes per row; 4 * T * H bytes, unless the
    result is float32; with row_slots, 16 more bytes per row, and 4 * H bytes for each of at most 8192 rows. See
    docs/concepts/memory.md.

    Derivatives: every order, forward and reverse, with respect to x, float weights, biases, row_weights, alphas, and
    scales that are not float8_e8m0fnu. A gradient is one call, too. Cotangents of rows are rounded to the type of the
    weights that they multiply, or to the type of x if these weights are quantized. All sums are in float32, with a
    token's rows in ascending order; include/raggemm/moe_mlp.h lists the steps. Forward mode, second order and gradients
    of scales and alphas run as grouped GEMMs.

    vmap: the batch and its gradient are one call each, with the same bits. This requires static extents, and that
    either no weight or every matrix is batched. If every matrix is batched, biases, scales, zero points and alphas may
    be batched or not. Other batches run as grouped GEMMs, and so do gradients of shared weights for each batch element.
    An error in one element fails the whole call. Indices in the error message count rows of the call. With
    on_error="nan" all results are NaN.
    """
    if merged is not None and (w_gate is not None or b_gate is not None):
        name = "b_gate" if w_gate is None else "w_gate"
        raise ValueError(f"{name}: must not be given with merged, because w_up and b_up contain the gate")
    if b_gate is not None and w_gate is None:
        raise ValueError("b_gate: is given without w_gate")
    activation = as_activation(activation)
    checks.check_choice("merged", merged, (None, "halves", "interleaved"))
    checks.check_choice("save", save, ("inputs", "activations"))
    checks.check_choice("weight_on", weight_on, ("output", "input"))
    transpose_up, transpose_down = (
        checks.check_bool("transpose_up", transpose_up),
        checks.check_bool("transpose_down", transpose_down),
    )
    if activation.needs_gate and merged is None and w_gate is None:
        raise ValueError(f"activation: {activation.name!r} needs a gate, w_gate or merged")
    args = _check_rows(x, row_tokens, row_weights, group_sizes)
    weights, matrices, layout_of = _check_matrices(w_up, w_gate, w_down)
    args |= weights
    transposes = {"w_up": transpose_up, "w_down": transpose_down}
    _, lhs_block = arguments.check_lhs_quantize(lhs_quantize, lhs_block, (np.dtype(np.int8),))
    layouts = _check_layouts(layout_of, transposes, lhs_block is not None)
    columns = _check_extents(matrices, args["x"].shape[1], merged is not None, transposes, layouts)
    if lhs_block is not None:
        _check_codes(weights, matrices, transposes, lhs_block)
    args |= _check_biases(args, columns, b_up=b_up, b_gate=b_gate, b_down=b_down)
    args |= _check_alphas(matrices, alpha_up=alpha_up, alpha_gate=alpha_gate, alpha_down=alpha_down)
    args |= _check_group_offset(args, group_offset)
    dtype = checks.result_dtype(preferred_element_type, args["x"].dtype, MLP_FLOATS)
    if row_slots is not None:
        args["row_slots"] = checks.as_integer_array("row_slots", row_slots)
        checks.check_shape("row_slots", args["row_slots"], args["row_tokens"].shape)
    call = MlpCall(
        activation=activation,
        merged=(merged or "").upper(),
        up_is_trans=transpose_up,
        down_is_trans=transpose_down,
        up_layout=layouts["up_layout"],
        down_layout=layouts["down_layout"],
        dtype=dtype,
        saves_products=save == "activations",
        weight_on="INPUT" if weight_on == "input" and row_weights is not None else "",
        operands=tuple(name for name in _OPTIONAL if name in args),
        lhs_block=lhs_block,
    )
    return _moe_mlp(args, call=call)
