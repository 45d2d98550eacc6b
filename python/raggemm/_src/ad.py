"""JVP and transpose rules of grouped_gemm.

The product is linear in each operand, and its derivatives are grouped GEMMs, too:

    d out = d lhs x rhs + lhs x d rhs,    ct lhs = ct out x rhs^T,    ct rhs = lhs^T x ct out

d lhs is the tangent of lhs, and ct lhs its cotangent. Both rules bind grouped_gemm again, so derivatives of every order
exist.

If the call quantizes the rows of lhs (Call.lhs_block), the result is rounded, but the derivatives are those of the
product of the unrounded rows.
"""

import dataclasses
import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
from jax.interpreters import ad

from raggemm._src.activations import Activation, apply_activation
from raggemm._src.call import (
    BLOCKED,
    PACKED,
    WORD_BLOCKS,
    Arguments,
    Call,
    Mode,
    OperandRole,
    Storage,
    from_blocks,
    from_word_values,
    to_column_blocks,
    to_word_values,
)
from raggemm._src.dtypes import FLOATS, compute_dtype
from raggemm._src.primitive import bind, grouped_gemm_p, needs_one_group, replicas_to_problems


def _find_groups(sizes: jax.Array, extent: int) -> jax.Array:
    """Returns the group of each row or column, [P,R,extent]. G means after the last group."""
    ends = jnp.cumsum(sizes, -1)
    rows = jnp.arange(extent, dtype=ends.dtype)
    return jax.vmap(jax.vmap(lambda x: jnp.searchsorted(x, rows, side="right")))(ends)


def _ragged_axis(call: Call, args: Arguments, side: str) -> tuple[int, jax.Array] | None:
    """Returns (ragged axis of lhs or rhs, group of each index along this axis), or None if no axis is ragged.

    Group 0 is the first processed group. Earlier groups are negative.
    """
    storage, x = call.storages[side], getattr(args, side)
    if storage.per_group or storage.shared:
        return None
    axis = 2 if storage.first is not None else 3
    groups = _find_groups(args.sizes(storage.first if axis == 2 else storage.last), x.shape[axis])
    offset = args.optional.get("group_offset")
    return axis, groups if offset is None else groups - offset[..., None].astype(groups.dtype)


def broadcast_scale(call: Call, args: Arguments, side: str, values: jax.Array) -> jax.Array:
    """Returns scales or zero points in a shape that broadcasts against their operand, lhs or rhs.

    With one value per group, rows or columns of no processed group get 0.
    """
    if values.ndim == 4:
        shape = getattr(args, side).shape
        for axis in (2, 3):
            if values.shape[axis] != 1:
                values = jnp.repeat(values, shape[axis] // values.shape[axis], axis)
        return values
    ragged = _ragged_axis(call, args, side)
    if ragged is None:
        return values.reshape(*values.shape[:1], values.shape[2], 1, 1)
    axis, groups = ragged
    known = (groups >= 0) & (groups < values.shape[2])
    values = jnp.take_along_axis(
        jnp.broadcast_to(values, (*groups.shape[:2], values.shape[2])), jnp.where(known, groups, 0), -1
    )
    return jnp.expand_dims(jnp.where(known, values, 0), 3 if axis == 2 else 2)


def reduce_to_scale(call: Call, args: Arguments, side: str, x: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    if len(shape) == 4:
        for axis in (2, 3):
            x = x.reshape(*x.shape[:axis], shape[axis], x.shape[axis] // shape[axis], *x.shape[axis + 1 :]).sum(
                axis + 1
            )
        return x if x.shape[1] == shape[1] else x.sum(1, keepdims=True)
    ragged = _ragged_axis(call, args, side)
    if ragged is None:
        return x.sum((2, 3))[:, None]
    axis, groups = ragged
    rows = x.sum(3 if axis == 2 else 2)
    sums = (jax.nn.one_hot(groups, shape[2], dtype=x.dtype) * rows[..., None]).sum(2)
    return sums if sums.shape[1] == shape[1] else sums.sum(1, keepdims=True)


def _compute_dtype(call: Call, args: Arguments):
    return compute_dtype(args.lhs.dtype, args.rhs.dtype, call.dtype)


def _multiply_sizes(rows: jax.Array, cols: jax.Array) -> jax.Array:
    """Returns rows * cols. A negative size or an overflow gives -1, which the library rejects."""
    elements = rows * cols
    is_wrong = (rows < 0) | (cols < 0) | ((cols > 0) & (elements // jnp.maximum(cols, 1) != rows))
    return jnp.where(is_wrong, jnp.int32(-1).astype(elements.dtype), elements)


def _broadcast_to_out(call: Call, args: Arguments, values: jax.Array, dtype) -> jax.Array:
    """Returns the value of each element's group, in a shape that broadcasts against out.

    values: [P,1|R,G,w]. w is 1 or the number of columns of out. Elements of no processed group get zero. If groups
    divide out, a grouped GEMM multiplies a column of ones by the values. The transpose of this GEMM sums in a fixed
    order.
    """
    shape = call.out_shape(args)
    match call.mode:
        case Mode.UNIFORM | Mode.RAGGED_K:
            return values.reshape(*shape[:2], 1, values.shape[3]).astype(dtype)
        case Mode.RAGGED_M:
            sizes, length, shape = args.sizes(call.out.first), shape[2], (*shape[:3], values.shape[3])
        case Mode.RAGGED_N if call.out.layout == PACKED:
            sizes, length = args.sizes(call.out.last), shape[2] * shape[3]
            sizes = _multiply_sizes(sizes, jnp.ones_like(sizes) * shape[2])
        case Mode.RAGGED_N:
            sizes, length, shape = args.sizes(call.out.last), shape[3], (*shape[:2], 1, shape[3])
        case Mode.ALL_RAGGED:
            sizes, length = _multiply_sizes(args.sizes(call.out.first), args.sizes(call.out.last)), shape[2]
    # Error messages about this product name this dims array.
    index = call.out.last if call.mode is Mode.RAGGED_N else call.out.first
    assert index is not None
    optional = args.select(OperandRole.GROUP_OFFSET).optional
    p, r, groups, width = values.shape
    if r != 1:  # replicas have values of their own, so each replica becomes a problem
        sizes = replicas_to_problems(sizes, r)
        optional = {name: replicas_to_problems(x, r) for name, x in optional.items()}
    values = values.reshape(p * r, groups, 1, width)
    ones = jnp.ones((*sizes.shape[:2], length, 1), _compute_dtype(call, args))
    rows, names = Storage(first=0), call.dims_names[index : index + 1]
    product = Call(lhs=rows, rhs=Storage(), out=rows, dtype=dtype, dims_names=names)
    return bind(product, Arguments(ones, values, (sizes,), optional)).reshape(shape)


def _scale(call: Call, args: Arguments, values: jax.Array, x: jax.Array) -> jax.Array:
    """Multiplies each element of x by the value of its group.

    x: shape of out. values: [P,1|R,G]. Elements of no processed group become zero. The result has the type of sums.
    """
    dtype = _compute_dtype(call, args)
    return _broadcast_to_out(call, args, values[..., None], dtype) * x.astype(dtype)


def _mask_processed(call: Call, args: Arguments) -> jax.Array:
    """Masks elements of out: 1 in processed groups, else 0. The shape of the mask broadcasts against out.

    With on_error="nan", wrong group sizes make the result NaN, except for ragged K.
    """
    if call.mode in (Mode.UNIFORM, Mode.RAGGED_K):
        return jnp.ones(())
    groups = args.rhs.shape[1] if call.mode is Mode.RAGGED_M else args.dims[0].shape[2]
    dtype = _compute_dtype(call, args)
    return _broadcast_to_out(call, args, jnp.ones((args.rhs.shape[0], 1, groups, 1), dtype), dtype)


def _c_tangent(call: Call, args: Arguments, dc: jax.Array) -> jax.Array:
    processed = _mask_processed(call, args)
    if call.overwrites_c:
        return jnp.where(processed == 1, 0, dc * jnp.where(jnp.isnan(processed), jnp.nan, 1).astype(dc.dtype))
    if "beta" not in args.optional:
        return dc
    scaled = _scale(call, args, args.optional["beta"], dc).astype(call.dtype)
    return jnp.where(processed != 0, scaled, dc)


def _alpha_tangent(call: Call, args: Arguments, dalpha: jax.Array) -> jax.Array:
    product = args.select(OperandRole.GROUP_OFFSET, OperandRole.QUANT_PARAM, OperandRole.ROW_INDEX)
    unscaled = bind(dataclasses.replace(call, dtype=_compute_dtype(call, args)), product)
    return _scale(call, args, dalpha, unscaled).astype(call.dtype)


def _beta_tangent(call: Call, args: Arguments, dbeta: jax.Array) -> jax.Array:
    # Elements of c outside of the processed groups may be NaN, and 0 * NaN is NaN.
    c = jnp.where(_mask_processed(call, args) != 0, args.optional["c"], 0)
    return _scale(call, args, dbeta, c).astype(call.dtype)


def _bias_tangent(call: Call, args: Arguments, dbias: jax.Array) -> jax.Array:
    tangent = _broadcast_to_out(call, args, dbias, call.dtype)
    return jnp.broadcast_to(tangent, call.out_shape(args))


_TANGENTS = {"c": _c_tangent, "bias": _bias_tangent, "alpha": _alpha_tangent, "beta": _beta_tangent}


def _bind_activation(call: Call, result: jax.Array, gate: jax.Array | None = None) -> jax.Array:
    """Applies the activation to the float32 `result` of a product, with the bits of a fused call.

    Binds a product with K = 0. `result` is c, or the gate if `gate` is None. So a derivative computes the product only
    once.
    """
    rows, columns = math.prod(result.shape[:-1]), result.shape[-1]
    shape = (1, 1, rows, columns)
    c = jnp.ones(shape, jnp.float32) if gate is None else result.reshape(shape)
    gate = (result if gate is None else gate).reshape(shape)
    matrix = Storage()
    empty = Call(lhs=matrix, rhs=matrix, out=matrix, dtype=jnp.dtype(jnp.float32), activation=call.activation)
    lhs, rhs = jnp.zeros((1, 1, rows, 0), jnp.float32), jnp.zeros((1, 1, 0, columns), jnp.float32)
    return bind(empty, Arguments(lhs, rhs, (), {"c": c, "gate": gate})).reshape(result.shape)


def _activated_jvp(primals, tangents, call: Call, activation: Activation):
    argnums = [i for i, dot in enumerate(tangents) if not isinstance(dot, ad.Zero)]
    if not argnums:
        out = grouped_gemm_p.bind(*primals, call=call)
        return out, ad.Zero(jax.typeof(out).to_tangent_aval())

    def pre_activation(*values: jax.Array) -> tuple[jax.Array, jax.Array | None]:
        flat = list(primals)
        for i, value in zip(argnums, values, strict=True):
            flat[i] = value
        args = call.unflatten(flat)
        optional = {name: x.astype(jnp.float32) if name == "c" else x for name, x in args.optional.items()}
        gate = optional.pop("gate", None)
        before = dataclasses.replace(call, activation=None, dtype=jnp.dtype(jnp.float32))
        return bind(before, args._replace(optional=optional)), None if gate is None else gate.astype(jnp.float32)

    dots = [tangents[i] for i in argnums]
    (result, gate), (result_dot, gate_dot) = jax.jvp(pre_activation, [primals[i] for i in argnums], dots)
    args = call.unflatten(primals)
    processed = True if gate is None and "c" not in args.optional else _mask_processed(call, args) != 0
    # Sets elements outside of the processed groups to 0: they are not activated, and may be NaN.
    inside = [x if processed is True else jnp.where(processed, x, 0) for x in (result, gate) if x is not None]
    out = jnp.where(processed, _bind_activation(call, *inside), result)

    def activate(result: jax.Array, gate: jax.Array | None = None) -> jax.Array:
        return apply_activation(activation, gate, result)

    given = [x for x in (result_dot, gate_dot) if x is not None]
    tangent = jnp.where(processed, jax.jvp(activate, inside, given)[1], result_dot)
    return out.astype(call.dtype), tangent.astype(call.dtype)


def _jvp(primals, tangents, *, call: Call):
    if call.activation:
        return _activated_jvp(primals, tangents, call, call.activation)
    args, dots = call.unflatten(primals), call.unflatten(tangents)
    out = grouped_gemm_p.bind(*primals, call=call)
    call = call.without_rounded_rows()
    product = args.select(OperandRole.ALPHA, OperandRole.GROUP_OFFSET, OperandRole.QUANT_PARAM, OperandRole.ROW_INDEX)
    terms = []
    if not isinstance(dots.lhs, ad.Zero):
        terms.append(bind(call, product._replace(lhs=dots.lhs)))
    if not isinstance(dots.rhs, ad.Zero):
        terms.append(bind(call, product._replace(rhs=dots.rhs)))
    for operand in args.given:
        dot = dots.optional[operand.name]
        if operand.role in (OperandRole.GROUP_OFFSET, OperandRole.ROW_INDEX) or isinstance(dot, ad.Zero):
            continue
        if operand.role is OperandRole.QUANT_PARAM:  # a scale: the product is linear in each scale
            terms.append(bind(call, product._replace(optional={**product.optional, operand.name: dot})))
        else:
            terms.append(_TANGENTS[operand.name](call, args, dot))
    if not terms:
        return out, ad.Zero(jax.typeof(out).to_tangent_aval())
    return out, functools.reduce(ad.add_tangents, terms)


def _gradient_call(call: Call, to_lhs: bool, aval) -> tuple[Call, bool]:
    """Returns (Call that computes the cotangent of lhs or rhs, True if ct out is the lhs of this Call).

    aval: shape and dtype of the cotangent.
    """
    wanted, kept = (call.lhs, call.rhs) if to_lhs else (call.rhs, call.lhs)
    # If the operand is stored transposed, so is the cotangent.
    ct = call.out._replace(trans=wanted.trans)
    kept = kept if wanted.trans else kept.transposed()
    ct_is_lhs = to_lhs != wanted.trans
    gradient = Call(
        lhs=ct if ct_is_lhs else kept,
        rhs=kept if ct_is_lhs else ct,
        out=wanted._replace(trans=False),
        dtype=aval.dtype,
        precision=call.precision,
        out_extent=aval.shape[2] if aval.ndim == 3 else aval.shape[1],
        dims_names=call.dims_names,
    )
    return gradient, ct_is_lhs


def _check_row_index(call: Call, args: Arguments, tokens: int, groups: int) -> jax.Array:
    """Checks row_index. Returns error terms [P,R,M,1]: 0, or NaN if an index is wrong and on_error is "nan".

    The forward product checks row_index, too, but XLA may drop this product from a gradient.
    """
    p, r = args.optional["row_index"].shape[0], call.out_shape(args)[1]
    lhs, rhs = (jnp.zeros(shape, jnp.float32) for shape in ((p, r, tokens, 0), (p, groups, 0, 1)))
    check = dataclasses.replace(call, rhs=Storage(), dtype=lhs.dtype, precision="", overwrites_c=False, lhs_block=None)
    return bind(check, args.select(OperandRole.GROUP_OFFSET, OperandRole.ROW_INDEX)._replace(lhs=lhs, rhs=rhs))


def _sum_rows_by_index(rows: jax.Array, index: jax.Array, weights: jax.Array, count: int) -> jax.Array:
    """Sums the weighted rows of each index: [P,R,count,K].

    rows: [P,R,M,K]. index: [P,R,M], `count` for ignored rows. weights: [P,R,M,1]. The sums are a ragged-K product. It
    is up to seven times as fast as XLA's scatter-add.
    """
    p, r, m, k = rows.shape
    index = index.reshape(p * r, m)
    sizes = jax.vmap(lambda i: jnp.zeros(count, jnp.int32).at[i].add(1, mode="drop"))(index)
    order = jnp.argsort(index, -1, stable=True)[:, :, None]
    rows, weights = (jnp.take_along_axis(x.reshape(p * r, m, -1), order, 1)[:, None] for x in (rows, weights))
    row_slices = Storage(first=0)
    call = Call(row_slices._replace(trans=True), row_slices, Storage(), rows.dtype, out_extent=count)
    return bind(call, Arguments(weights, rows, (sizes[:, None],), {})).reshape(p, r, count, k)


def _row_index_cotangent(ct: jax.Array, call: Call, args: Arguments, to_lhs: bool, aval) -> jax.Array:
    """Returns the cotangent of lhs or rhs if the call has row_index.

    The cotangent of a row of lhs is a sum over all rows of out that were computed from this row.
    """
    p, r, tokens, k = (aval if to_lhs else args.lhs).shape
    both = args._replace(**{"lhs" if to_lhs else "rhs": aval})
    wrong = _check_row_index(call, both, tokens, both.rhs.shape[1])
    optional = dict(args.optional)
    index = optional.pop("row_index")
    args = args._replace(optional=optional)
    # An index out of range becomes `tokens`, which selects no row. Rows of no processed group may have such indices.
    index = jnp.broadcast_to(jnp.where((index >= 0) & (index < tokens), index, tokens), (p, r, index.shape[2]))
    if not to_lhs:
        index = jnp.where(jnp.isnan(wrong[..., 0]), tokens, index)
        if tokens == 0:  # JAX cannot gather from an array without rows
            rows = jnp.zeros((p, r, index.shape[2], k), args.lhs.dtype)
        else:
            rows = jax.vmap(jax.vmap(lambda x, i: x.at[i].get(mode="fill", fill_value=jnp.nan)))(args.lhs, index)
        return _operand_cotangent(ct, call, args._replace(lhs=rows), to_lhs, aval)
    dtype = compute_dtype(ct.dtype, args.rhs.dtype, aval.dtype)
    rows_aval = jax.ShapeDtypeStruct((p, r, index.shape[2], k), dtype)
    rows = _operand_cotangent(ct, call, args, to_lhs, rows_aval)
    return _sum_rows_by_index(rows, index, 1 + wrong.astype(dtype), tokens).astype(aval.dtype)


def _operand_cotangent(ct: jax.Array, call: Call, args: Arguments, to_lhs: bool, aval) -> jax.Array:
    if "row_index" in args.optional:
        return _row_index_cotangent(ct, call, args, to_lhs, aval)
    kept = args.rhs if to_lhs else args.lhs
    gradient, ct_is_lhs = _gradient_call(call, to_lhs, aval)
    optional = dict(args.select(OperandRole.ALPHA, OperandRole.GROUP_OFFSET).optional)
    alpha = optional.get("alpha")
    if alpha is not None and (needs_one_group(gradient) or (gradient.mode is Mode.RAGGED_K and alpha.shape[1] != 1)):
        # The gradient sums over elements of ct with different alphas, so ct is multiplied by alpha first.
        both = args._replace(**{"lhs" if to_lhs else "rhs": aval})
        ct = _scale(call, both, optional.pop("alpha"), ct)
    for operand in args.select(OperandRole.QUANT_PARAM).given:
        if operand.side == ("rhs" if to_lhs else "lhs"):
            values = args.optional[operand.name]
            if gradient.mode is Mode.RAGGED_K and not operand.is_per_block(values) and values.shape[1] != 1:
                # Ragged K sums over replicas with different scales, so each row or column gets its own scale.
                values = broadcast_scale(call, args, operand.side, values)
            optional[operand.name.replace(operand.side, "rhs" if ct_is_lhs else "lhs")] = values
    if call.precision:
        ct = ct.astype(kept.dtype)  # exact: widens to float32
    lhs, rhs = (ct, kept) if ct_is_lhs else (kept, ct)
    return bind(gradient, Arguments(lhs, rhs, args.dims, optional))


def _scale_cotangent(ct: jax.Array, call: Call, args: Arguments, name: str) -> jax.Array:
    side, aval = name[:3], args.optional[name].aval
    data = args.lhs if side == "lhs" else args.rhs
    dtype = _compute_dtype(call, args)
    dense = jax.ShapeDtypeStruct(data.shape, dtype)
    elements = data.astype(dtype)
    if (zero := args.optional.get(f"{side}_zero")) is not None:
        elements = elements - broadcast_scale(call, args, side, zero.astype(dtype))
    terms = _operand_cotangent(ct, call, args, side == "lhs", dense) * elements
    return reduce_to_scale(call, args, side, terms, aval.shape).astype(aval.dtype)


def _transpose_blocks(ct, lhs, rhs, *others, call: Call):
    columns, layout, strided = call.rhs.columns, call.rhs.layout, dataclasses.replace(call, rhs=Storage())
    if layout == WORD_BLOCKS:
        return _transpose_word_blocks(ct, lhs, rhs, *others, call=call, strided=strided)
    if not ad.is_undefined_primal(rhs):
        return _transpose(ct, lhs, from_blocks(rhs, columns, layout), *others, call=strided)
    p, g, _, k, width = rhs.aval.shape
    plain = ad.UndefinedPrimal(jax.ShapeDtypeStruct((p, g, k, columns), rhs.aval.dtype))
    cotangents = _transpose(ct, lhs, plain, *others, call=strided)
    return [to_column_blocks(x, width) if i == 1 else x for i, x in enumerate(cotangents)]


def _transpose_word_blocks(ct, *flat, call: Call, strided: Call):
    """Transposes the product of the same weights as matrices. Elements in WORD_BLOCKS have no derivatives."""
    columns, args = call.rhs.columns, call.unflatten(flat)
    plain: dict[str, Any] = {}
    for operand in args.given:
        name, values = operand.name, args.optional[operand.name]
        aval = values.aval if ad.is_undefined_primal(values) else values
        if operand.side != "rhs" or not operand.is_per_block(aval):
            continue
        if ad.is_undefined_primal(values):
            shape = jax.eval_shape(functools.partial(from_word_values, columns=columns), values.aval)
            plain[name] = ad.UndefinedPrimal(shape)
        else:
            plain[name] = from_word_values(values, columns)
    matrices = args._replace(rhs=from_blocks(args.rhs, columns, WORD_BLOCKS), optional=args.optional | plain)
    cotangents = _transpose(ct, *matrices.flatten(), call=strided)
    names = [operand.name for operand in args.given]
    for i, name in enumerate(names, start=len(flat) - len(names)):
        if name in plain and cotangents[i] is not None:
            cotangents[i] = to_word_values(cotangents[i], columns)
    return cotangents


def _transpose(ct, *flat, call: Call):
    args = call.unflatten(flat)
    cotangents: list[jax.Array | None] = [None] * len(flat)
    if isinstance(ct, ad.Zero):
        return cotangents
    if call.rhs.layout in BLOCKED:
        return _transpose_blocks(ct, *flat, call=call)
    for index, operand in enumerate(args.given, start=len(flat) - len(args.optional)):
        if ad.is_undefined_primal(args.optional[operand.name]):
            cotangents[index] = _scale_cotangent(ct, call, args, operand.name)
            return cotangents
    to_lhs = ad.is_undefined_primal(args.lhs)
    wanted, kept = (args.lhs.aval, args.rhs) if to_lhs else (args.rhs.aval, args.lhs)
    # No product has a float8 or float4 result, so the cotangent gets a wider type first.
    dtype = wanted.dtype if wanted.dtype in FLOATS else compute_dtype(kept.dtype, call.dtype)
    aval = jax.ShapeDtypeStruct(wanted.shape, dtype)
    cotangents[0 if to_lhs else 1] = _operand_cotangent(ct, call, args, to_lhs, aval).astype(wanted.dtype)
    return cotangents


ad.primitive_jvps[grouped_gemm_p] = _jvp
ad.primitive_transposes[grouped_gemm_p] = _transpose


def grouped_gemm_saveable(prim, *_, **__) -> bool:
    """Returns True if prim is a grouped GEMM.

    Pass this function as the policy of jax.checkpoint to save only the results of grouped GEMMs.
    jax.checkpoint_policies.dots_saveable does not save these results. jax.checkpoint_policies.save_from_both_policies
    combines the two policies.
    """
    return prim is grouped_gemm_p
