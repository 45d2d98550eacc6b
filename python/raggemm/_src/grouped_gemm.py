"""grouped_gemm: checks the arguments, and builds and binds the call."""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from raggemm._src import arguments, checks, versions
from raggemm._src.activations import Activation, as_activation
from raggemm._src.call import STRIDED, Arguments, Call, Mode, OptionalOperand, Storage
from raggemm._src.dtypes import compute_dtype
from raggemm._src.operands import ArgNames, Operand, check_contraction, parse_operands
from raggemm._src.primitive import bind
from raggemm._src.tensors import GroupedTensor

_MODES = {
    ("free", None): Mode.RAGGED_M,
    ("contracted", "contracted"): Mode.RAGGED_K,
    (None, "free"): Mode.RAGGED_N,
    (None, None): Mode.UNIFORM,
    ("both", "both"): Mode.ALL_RAGGED,
}


def _find_mode(lhs: Operand, rhs: Operand) -> Mode:
    mode = _MODES.get((lhs.ragged_axis, rhs.ragged_axis))
    if mode is None:
        named = ", ".join((*lhs.dims, *rhs.dims))
        raise ValueError(
            f"no mode has the dims arrays {named} with contracting_dims {lhs.axes} and {rhs.axes}. The modes and their "
            "ragged axes are: ragged M, the free axis of lhs; ragged K, the contracted axis of both; ragged N, the "
            "free axis of rhs; uniform, none; all ragged, both axes of both"
        )
    return mode


def _mark_group_axes(mode: Mode, lhs: Operand, rhs: Operand) -> tuple[Operand, Operand]:
    # With ragged N, an lhs with a single free axis has no group axis: all groups share it.
    lhs_is_grouped = mode is Mode.UNIFORM or (mode is Mode.RAGGED_N and lhs.rank - len(lhs.axes) > 1)
    lhs = lhs.mark_group_axis() if lhs_is_grouped else lhs
    rhs = rhs.mark_group_axis() if mode in (Mode.RAGGED_M, Mode.UNIFORM) else rhs
    lhs.check_contracted_axes()
    rhs.check_contracted_axes()
    return lhs, rhs


def _make_storages(
    lhs: Operand, rhs: Operand, out_layout: str
) -> tuple[Storage, Storage, Storage, tuple[jax.Array, ...]]:
    dims = []

    def index(sizes: jax.Array | None) -> int | None:
        if sizes is None:
            return None
        dims.append(sizes)
        return len(dims) - 1

    def storage(x: Operand, trans: bool) -> Storage:
        if x.columns is not None:
            return Storage(layout=x.layout, columns=x.columns)
        layout = STRIDED if x.last_dims is None else x.layout
        return Storage(index(x.first_dims), index(x.last_dims), trans, layout, not (x.dims or x.has_group_axis))

    left, right = storage(lhs, lhs.contracts_first), storage(rhs, not rhs.contracts_first)
    first, last = left.last if left.trans else left.first, right.first if right.trans else right.last
    out = Storage(first, last, layout=STRIDED if last is None else out_layout)
    return left, right, out, tuple(dims)


class _Shapes(NamedTuple):
    """Canonical shapes of lhs, rhs and out, and the number of processed groups."""

    lhs: tuple[int, ...]
    rhs: tuple[int, ...]
    groups: int
    out: tuple[int, ...]


@functools.partial(jax.jit, static_argnames=("call", "shapes"), inline=versions.INLINE)
def _bind_canonical(args: Arguments, *, call: Call, shapes: _Shapes) -> jax.Array:
    """Reshapes the caller's arrays to canonical shape and binds the call. Runs in jit, because eager reshapes copy."""
    # JAX cannot always reshape an array if an explicit mesh divides one of its axes.
    args = args.map(versions.replicate_explicit_axes)
    lhs, rhs = args.lhs.reshape(shapes.lhs), args.rhs.reshape(shapes.rhs)

    rows = {name: x[None, None] for name, x in args.optional.items() if name == "row_index"}
    dims = tuple(sizes[None, None] for sizes in args.dims)
    out = call.out_shape(Arguments(lhs, rhs, dims, rows))

    def canonical(operand: OptionalOperand, x: jax.Array) -> jax.Array:
        if operand.is_per_block(x):
            return x
        if not operand.axes:
            return x.reshape(out)
        return jnp.broadcast_to(x, (1, 1, shapes.groups, *x.shape[1:]) if operand.is_per_group else (1, 1))

    others = (operand for operand in args.given if operand.name not in rows)
    optional = rows | {operand.name: canonical(operand, args.optional[operand.name]) for operand in others}
    return bind(call, Arguments(lhs, rhs, dims, optional)).reshape(shapes.out)


def compute_product(arg_names: ArgNames, lhs: Operand, rhs: Operand, **options: Any) -> jax.Array:
    """Computes grouped_gemm for a front end. options: fields of arguments.Options."""
    given = arguments.Options(**options)
    mode = _find_mode(lhs, rhs)
    for x in (lhs, rhs):
        if x.columns is not None and (x is lhs or mode is not Mode.RAGGED_M):
            raise ValueError(f"{x.name}: PackedWeights are for the rhs of ragged M; unprepack them for other products")
    checks.check_takes_layout(rhs.name, rhs.layout, given.lhs_block is not None, arg_names.lhs_quantize)
    lhs, rhs = _mark_group_axes(mode, lhs, rhs)
    index = None if given.row_index is None else arguments.check_row_index(given.row_index, mode, lhs)
    local = arguments.count_processed_groups(mode, lhs, rhs, given)
    out_extent = arguments.check_out_extent(mode, local, given.out_size, given.out_layout)
    shape: tuple[int, ...]
    if out_extent is not None and mode is Mode.ALL_RAGGED:
        shape = (out_extent,)
    else:
        check_contraction(lhs, rhs)
        group_axis = (local,) if mode in (Mode.RAGGED_K, Mode.UNIFORM) else ()
        shape = (*group_axis, *(lhs.free_shape if index is None else index.shape), *rhs.free_shape)

    left, right, out, dims = _make_storages(lhs, rhs, given.out_layout)
    dtype = arguments.check_out_dtype(arg_names, given.preferred_element_type, lhs, rhs)
    compute = compute_dtype(lhs.data.dtype, rhs.data.dtype, dtype)
    precision = arguments.precision_attribute(given.precision, lhs.data.dtype, rhs.data.dtype, dtype)
    activation = None if given.activation is None else as_activation(given.activation)
    optional: dict[str, jax.Array | None] = {
        "gate": arguments.check_activation(activation, given.gate, shape, compute),
        "row_index": index,
    }
    if given.lhs_block is not None:
        arguments.check_rounded_rows(arg_names, mode, lhs, rhs, dtype, given.lhs_block)
    call = Call(
        *(left, right, out, dtype, precision, activation, out_extent),
        lhs_block=given.lhs_block,
        dims_names=(*lhs.dims, *rhs.dims),
        c_name=arg_names.c,
        row_index_name=arg_names.row_index,
        lhs_name=arg_names.lhs,
    )
    if given.c is not None:
        optional["c"] = arguments.check_c(arg_names.c, given.c, shape, dtype)
    if given.bias is not None:
        optional["bias"] = arguments.check_bias(arg_names.bias, given.bias, mode, local, rhs.free_shape, compute)
    if given.alpha is not None:
        optional["alpha"] = arguments.check_alpha_or_beta("alpha", given.alpha, local, compute)
    if (beta := given.beta) is not None:
        if given.c is None:
            raise ValueError("beta is given without c")
        values = arguments.check_alpha_or_beta("beta", beta, local, compute)
        call = dataclasses.replace(call, overwrites_c=isinstance(beta, int | float) and beta == 0)
        optional["beta"] = None if call.overwrites_c else values
    if given.group_offset is not None:
        optional["group_offset"] = arguments.check_group_offset(given.group_offset, mode)
    for side, x in (("lhs", lhs), ("rhs", rhs)):
        optional |= arguments.canonical_quant_params(mode, side, x, local)
    args = Arguments(lhs.data, rhs.data, dims, {name: x for name, x in optional.items() if x is not None})
    shapes = _Shapes(lhs.canonical_shape, rhs.canonical_shape, local, shape)
    return _bind_canonical(args, call=call, shapes=shapes)


def grouped_gemm(
    lhs: Any,
    rhs: Any,
    *,
    contracting_dims: tuple[Sequence[int], Sequence[int]],
    c: Any = None,
    bias: Any = None,
    alpha: Any = None,
    beta: Any = None,
    group_offset: Any = None,
    num_actual_groups: int | None = None,
    out_size: int | None = None,
    out_layout: str = STRIDED,
    preferred_element_type: Any = None,
    precision: Any = None,
    activation: str | Activation | None = None,
    gate: Any = None,
    row_index: Any = None,
    lhs_quantize: Any = None,
    lhs_block: int | None = arguments.DEFAULT_LHS_BLOCK,
) -> jax.Array:
    """Computes a grouped GEMM. The axes with group sizes determine its mode.

    | mode       | lhs                               | rhs                               | out              |
    |------------|-----------------------------------|-----------------------------------|------------------|
    | ragged M   | [M,K] first_dims, [K,M] last_dims | [G,K,N], [G,N,K]                  | [M,N]            |
    | ragged K   | [K,M] first_dims, [M,K] last_dims | [K,N] first_dims, [N,K] last_dims | [G,M,N]          |
    | ragged N   | [M,K], [K,M], [G,M,K], [G,K,M]    | [K,N] last_dims, [N,K] first_dims | [M,N]            |
    | uniform    | [G,M,K], [G,K,M]                  | [G,K,N], [G,N,K]                  | [G,M,N]          |
    | all ragged | 1-D, first_dims and last_dims     | 1-D, first_dims and last_dims     | 1-D, of out_size |

    M, K and N may each be several axes. An empty contraction (K = 0 in a group) gives zero.

    Args:
      lhs, rhs: arrays or GroupedTensors of float16, bfloat16, float32 or float64, in any mix, or both of int8 or uint8
        with a preferred_element_type of int32. For ragged M, ragged K and uniform, either may be a QuantizedTensor. out
        is then of floats. A scale or zero_point [G] has one value per processed group. The rhs of ragged M may be
        PackedWeights.
      contracting_dims: (lhs_axes, rhs_axes), the contracted axes of the operands' data. The group axis counts as an
        axis. Contracted axes are the first or the last axes after the group axis, adjacent and in order. For all
        ragged, 0 and 1 are the axes of each group's matrix. For ragged N, all groups share an lhs with one free axis.
        If lhs has more free axes, axis 0 is the group axis.
      c: same shape and dtype as out. beta * c is added to elements of processed groups. Other elements of out are those
        of c, or 0 without c.
      bias: [G,N], float16, bfloat16, float32 or float64, one row per processed group. Not for ragged N and all ragged.
        With arrays of int8 or uint8 as operands, bias, alpha, beta and c are int32.
      alpha, beta: factors of the product and of c, scalars or [G], 1 by default. beta requires c. If beta is 0, c is
        not read in processed groups.
      group_offset: integer, () or (1,): index of the first processed group, for ragged M and ragged K. Required if
        fewer groups are processed than there are sizes (else ValueError). rhs (ragged M), out (ragged K), alpha, beta
        and bias have only the processed groups. In the other modes group_offset must be 0.
      num_actual_groups: ragged K: number of processed groups. The default is all.
      out_size: all ragged: length of out, a Python int.
      out_layout: "STRIDED" or "PACKED" (see GroupedTensor), for a ragged-N out. All ragged requires "PACKED".
      preferred_element_type: dtype of out. The default is jnp.result_type(lhs, rhs). A QuantizedTensor does not count,
        and the default for two QuantizedTensors is float32. Sums are rounded once. They are in float64 if lhs, rhs or
        out is float64, else in float32. Sums of int8 and uint8 are in int32, exact modulo 2^32.
      precision: None, or any jax.lax.Precision: products are exact. The jax.lax.DotAlgorithmPresets BF16_BF16_F32_X3
        and _X6 compute a float32 product as three or six bfloat16 products, for CPUs with bfloat16 units. A product's
        relative error is at most 1.01 * 2**-15 or 1.01 * 2**-24, and subnormal numbers are zero. Derivatives use the
        same precision. Unsupported presets raise NotImplementedError.
      activation: a name or an Activation. out is activation(r), or with a gate activation(gate) * r. r is the product
        with bias and c. out is computed in float32 and rounded once. Elements of no processed group are not activated.
        TypeError if sums are in float64 or int32.
      gate: shape of out, float32, bfloat16 or float16. Requires an activation.
      row_index: int32, int64 or uint32 [M], for ragged M and an lhs of floats with first_dims. Row m of out uses row
        row_index[m] of lhs. lhs may have any number of rows. first_dims count the M rows of out. An index out of range
        is an error at run time. Indices of rows in no processed group are ignored.
      lhs_quantize: None, or int8: the call quantizes the rows of lhs, as gmm describes. For ragged M and uniform, if
        lhs is float16, bfloat16 or float32 and contracts its last axes, and rhs is a QuantizedTensor or PackedWeights
        of integers or float4_e2m1fn.
      lhs_block: see gmm.

    Returns:
      out, with the group axis if there is one, then the free axes of lhs, then the free axes of rhs.

    The gradient of c is beta times the cotangent of out in processed groups, and the cotangent of out elsewhere.
    """
    arg_names = ArgNames()
    _, block = arguments.check_lhs_quantize(lhs_quantize, lhs_block, (np.dtype(np.int8),))
    return compute_product(
        arg_names,
        *parse_operands(arg_names, lhs, rhs, contracting_dims),
        c=c,
        bias=bias,
        alpha=alpha,
        beta=beta,
        group_offset=group_offset,
        num_actual_groups=num_actual_groups,
        out_size=out_size,
        out_layout=out_layout,
        preferred_element_type=preferred_element_type,
        precision=precision,
        activation=activation,
        gate=gate,
        row_index=row_index,
        lhs_block=block,
    )


def mask_grouped_rows(count: int, group_sizes: Any) -> jax.Array:
    """Returns float32 [count]: 1 for rows that belong to a group, 0 for rows behind the last group.

    A grouped GEMM with K = 0 and a bias of 1 computes this mask, and checks the sizes.
    """
    arg_names, sizes = ArgNames(sizes="group_sizes"), checks.as_group_sizes(group_sizes)
    groups = sizes.shape[0]
    lhs, rhs = (jnp.zeros(shape, jnp.float32) for shape in ((count, 0), (groups, 0, 1)))
    operands = parse_operands(arg_names, GroupedTensor(lhs, first_dims=sizes), rhs, ((1,), (1,)))
    return compute_product(arg_names, *operands, bias=jnp.ones((groups, 1), jnp.float32))[:, 0]
