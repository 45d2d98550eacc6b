"""A table of kinds of products, such as "packed" (weights) or "moe_mlp"."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import moe_mlps
import moe_oracle
import numpy as np
import pytest
from arrays import random
from oracle import membership
from quantized_operands import dense, tensor
from raggemm import (
    Activation,
    GroupedTensor,
    PackedWeights,
    QuantizedTensor,
    grouped_gemm,
    prepack,
    quantize,
    tgmm,
    unprepack,
)
from raggemm._src.call import WORD_BLOCKS, from_word_values

SIZES = np.array([3, 0, 2, 4], np.int32)
# ROWS and TOKENS differ from all other extents, so that tests can replace them by symbols. The last two rows belong to
# no group, so their row indices may be invalid.
ROWS, TOKENS, K, N, G = 11, 5, 32, 8, 4
INDEX = np.array([4, 0, 0, 1, 4, 2, 2, 2, 0, -7, 99], np.int32)


@dataclasses.dataclass(frozen=True, eq=False)
class Kind:
    name: str
    run: Callable[..., jax.Array]  # run(arrays, **options) calls raggemm
    dense: Callable[..., jax.Array]  # dense(arrays) computes the same in plain JAX
    arrays: dict[str, Any]  # operands by name
    other: dict[str, Any]  # operands of a second problem, with the same shapes and types
    # Extents that tests replace by symbols: {extent: name of the symbol}.
    rows: dict[int, str] = dataclasses.field(default_factory=lambda: {ROWS: "rows"})
    weights: str = "w"  # Key of the weights in `arrays`.
    exact: bool = True  # True if `run` is one custom call, and vmap keeps this and the bits.
    relative: float = 2e-5  # Largest permitted error, divided by the largest magnitude of the result.

    def __str__(self):
        return self.name

    @property
    def is_differentiable(self) -> bool:
        return any(is_float(x) for x in jax.tree.leaves(self.arrays))


def is_float(x) -> bool:
    return x.dtype in (np.float32, np.float64)


def is_quantized(x) -> bool:
    return isinstance(x, QuantizedTensor)


def values(x):
    """Dequantizes x with jax.numpy, so that scales have gradients. An x without scales becomes a float array."""
    if isinstance(x, PackedWeights):
        elements = unprepack(dataclasses.replace(x, scale=None, zero_point=None))
        params = x.scale, x.zero_point
        if x.layout == WORD_BLOCKS:
            params = (None if p is None else from_word_values(p, x.columns) for p in params)
        return values(QuantizedTensor(elements.data, *params) if x.quantized else elements)
    if not is_quantized(x):
        return jnp.asarray(x) if is_float(x) else jnp.asarray(x, jnp.float32).astype(jnp.float64)
    wide = values(x.data)
    wide = wide if x.zero_point is None else wide - _broadcast_scale(values(x.zero_point), wide)
    return wide if x.scale is None else wide * _broadcast_scale(values(x.scale), wide)


def _broadcast_scale(scale, like):
    if scale.ndim == 1:
        return scale[:, None, None]
    for axis in range(scale.ndim):
        scale = jnp.repeat(scale, like.shape[axis] // scale.shape[axis], axis)
    return scale


def _forward(arrays, **options):
    given = dict(arrays)
    rows = GroupedTensor(given.pop("x"), first_dims=given.pop("sizes"))
    return grouped_gemm(rows, given.pop("w"), contracting_dims=((1,), (1,)), **given, **options)


def _dense_forward(arrays, activation=None, row_index=None):
    x, w = values(arrays["x"]), values(arrays["w"])
    x = x if row_index is None else x[row_index.clip(0, len(x) - 1)]
    first = int(arrays.get("group_offset", 0))
    member = membership(arrays["sizes"], len(x), x.dtype)[first : first + len(w)]
    inside = member.sum(0)[:, None]

    def row_values(name, default):
        return member.T @ arrays[name] if name in arrays else default

    scale = [jnp.reshape(row_values(name, jnp.ones(len(x), x.dtype)), (-1, 1)) for name in ("alpha", "beta")]
    out = scale[0] * jnp.einsum("gm,mk,gkn->mn", member, x, w) + row_values("bias", 0)
    c = arrays.get("c", 0)
    out = inside * (out + scale[1] * c)
    if activation:
        out = inside * moe_oracle.activated(jnp, activation, arrays.get("gate"), out)
    return out + (1 - inside) * c


def _reversed(arrays, **given):
    """Returns the operands of a second problem.

    Reverses arrays along axis 0. An array in `given` replaces the array of the same name.
    """
    return jax.tree.map(lambda a: a[::-1] if np.ndim(a) else a, arrays) | given


BOTH = 2.0**-7  # value of Kind.relative if elements of both operands are rounded to bfloat16


def _ragged_rows(name, w, x=None, relative=2e-5, run=_forward, dense=_dense_forward, other=None, **more):
    arrays = {"x": random(ROWS, K) if x is None else x, "w": w, "sizes": SIZES, **more}
    return Kind(name, run, dense, arrays, _reversed(arrays, **other or {}), relative=relative)


def _weights(dtype, scale_shape, zero=False, scale_dtype=np.float32):
    q = tensor(dtype, (G, K, N), scale_shape, scale_dtype, zero=zero)
    return _small(q)


def _small(q):
    """Scales a quantized tensor so that its largest value is about 1 / 8, as in weights."""
    exponent = np.ceil(np.log2(np.abs(dense(q)).max())) + 3
    return QuantizedTensor(q.data, (np.float32(q.scale) * 2.0**-exponent).astype(q.scale.dtype), q.zero_point)


def _packed(w, **options):
    return jax.tree.map(np.asarray, prepack(w, **options))


def _transposed(arrays):
    x = GroupedTensor(arrays["x"], last_dims=arrays["sizes"])
    return grouped_gemm(x, arrays["w"], contracting_dims=((0,), (1,)))


def _dense_transposed(arrays):
    return _dense_forward(arrays | {"x": values(arrays["x"]).T})


def _columns(arrays):
    return tgmm(arrays["x"], arrays["w"], arrays["sizes"])


def _dense_columns(arrays):
    x, w = values(arrays["x"]), values(arrays["w"])
    return jnp.einsum("gm,km,mn->gkn", membership(arrays["sizes"], ROWS, x.dtype), x, w)


def _uniform(arrays, **options):
    return grouped_gemm(arrays["x"], arrays["w"], contracting_dims=((2,), (1,)), **options)


def _dense_uniform(arrays):
    return jnp.einsum("gmk,gkn->gmn", values(arrays["x"]), values(arrays["w"]))


def _other_modes():
    def kind(name, run, dense, x, w, exact=True, **sizes):
        arrays = {"x": x, "w": w, **sizes}
        relative = BOTH if is_quantized(x) and is_quantized(w) else 2e-5
        return Kind(name, run, dense, arrays, _reversed(arrays), exact=exact, relative=relative)

    def rows(shape, scale_shape, dtype=jnp.int8, zero=False):
        return _small(tensor(dtype, shape, scale_shape, zero=zero))

    sizes, group_scales = {"sizes": SIZES}, _weights(jnp.float8_e4m3fn, (G,))
    transposed, columns, uniform = (
        (_transposed, _dense_transposed),
        (_columns, _dense_columns),
        (_uniform, _dense_uniform),
    )
    k_shape, m_shape = (K, ROWS), (G, 4, K)
    return [
        kind("transposed", *transposed, rows(k_shape, (2, ROWS), zero=True), group_scales, **sizes),
        kind("transposed: one column", *transposed, rows(k_shape, (4, 1)), group_scales, **sizes),
        kind("columns", *columns, rows(k_shape, (K, 1)), random(ROWS, N), **sizes),
        kind("columns: blocks", *columns, rows(k_shape, (4, ROWS), jnp.uint8, True), random(ROWS, N), **sizes),
        # vmap joins the rows of all problems. Each row of rhs then has its own scales, so the bits change
        # (exact=False).
        kind("columns: one row", *columns, random(*k_shape), rows((ROWS, N), (1, N)), exact=False, **sizes),
        kind("uniform", *uniform, random(*m_shape), _weights(jnp.int8, (G, 2, N))),
        kind("uniform: groups", *uniform, rows(m_shape, (G,)), group_scales),
        kind("uniform: both", *uniform, rows(m_shape, (1, 2, 1)), _weights(jnp.uint4, (G, 1, N), True)),
        kind(
            "uniform: rounded rows",
            lambda arrays: _uniform(arrays, lhs_quantize=jnp.int8),
            _rounded(_dense_uniform),
            random(*m_shape),
            _weights(jnp.int8, (G, 2, N)),
        ),
        kind("uniform: blocks", *uniform, rows(m_shape, (G, 1, 2), jnp.uint8, True), _weights(jnp.int8, (G, 2, N))),
    ]


def _integers():
    numbers = np.random.default_rng(2)
    bytes_ = {"x": numbers.integers(-128, 128, (ROWS, K), np.int8), "w": numbers.integers(0, 256, (G, K, N), np.uint8)}
    added = {"c": numbers.integers(-99, 99, (ROWS, N), np.int32), "bias": numbers.integers(-99, 99, (G, N), np.int32)}
    options = {"preferred_element_type": np.int32}
    return _ragged_rows("integers", **bytes_, **added, run=lambda arrays, **more: _forward(arrays, **options, **more))


def _row_index():
    def run(arrays, **options):
        return _forward(arrays, **options)

    def dense(arrays):
        return _dense_forward(arrays, row_index=arrays["row_index"])

    arrays = {"x": random(TOKENS, K), "w": random(G, K, N, seed=1), "sizes": SIZES, "row_index": INDEX}
    other = _reversed(arrays, row_index=(INDEX + 1).clip(0, TOKENS - 1))
    return Kind("row_index", run, dense, arrays, other, {ROWS: "rows", TOKENS: "tokens"})


def _activation(activation, gate):
    def run(arrays, **options):
        return _forward(arrays, activation=activation, **options)

    def dense(arrays):
        return _dense_forward(arrays, activation=activation)

    name = getattr(activation, "name", activation)

    added = {"bias": random(G, N, seed=2)} | ({"gate": random(ROWS, N, seed=3)} if gate else {})
    return _ragged_rows(
        f"{name}{' and gate' if gate else ''}", 0.2 * random(G, K, N, seed=1), run=run, dense=dense, **added
    )


def _mlp(
    name,
    gate="separate",
    transposed=(False, False),
    to_weights=lambda name, w: w,
    slots=None,
    relative=2e-5,
    alphas=False,
    **options,
):
    case = moe_mlps.Case(gate, transposed)
    given = {name: to_weights(name, w) if name[:2] == "w_" else np.nan_to_num(w) for name, w in case.given.items()}
    matrices = [name for name in given if name[:2] == "w_"]
    alpha_of = {name: f"alpha{name[1:]}" for name in matrices} if alphas else {}
    given |= {alpha: random(moe_mlps.GROUPS, seed=i) for i, alpha in enumerate(alpha_of.values())}
    arrays = given | {"row_tokens": moe_mlps.ROW_TOKENS, "group_sizes": moe_mlps.SIZES}
    arrays |= {} if slots is None else {"row_slots": slots}

    def run(arrays):
        routing = {n: x for n, x in arrays.items() if n not in given}
        return case({n: x for n, x in arrays.items() if n in given}, **routing, **options)

    def dense(arrays):
        wide, more = {n: values(x) for n, x in arrays.items() if n in given}, {}
        wide |= {matrix: wide[matrix] * wide[alpha][:, None, None] for matrix, alpha in alpha_of.items()}
        if "weight_on" in options:
            more = {"on_input": True}
        if "lhs_quantize" in options:
            more = {"multiply": _multiply_rounded}
        return case.oracle(wide, xp=jnp, activation=options.get("activation", "silu"), **more)

    tokens = np.random.default_rng(9).integers(0, 8, moe_mlps.ROWS, np.int32)
    rows = {moe_mlps.ROWS: "rows", moe_mlps.TOKENS: "tokens"}
    other = _reversed(arrays, row_tokens=tokens)
    return Kind(name, run, dense, arrays, other, rows, "w_up", exact=False, relative=relative)


def _quantized(name, w):
    return jax.tree.map(np.asarray, quantize(w, "int8" if name == "w_down" else "int4", axes=1))


def round_rows(x):
    """Quantizes rows [...,K] to int8, one scale per block of 32, and dequantizes them."""
    blocks = x.reshape(*x.shape[:-1], x.shape[-1] // 32, 32)
    scale = jnp.abs(blocks).max(-1, keepdims=True) / 127
    return (jnp.rint(blocks / jnp.where(scale == 0, 1, scale)) * scale).reshape(x.shape)


def _multiply_rounded(rows, w):
    """Multiplies rounded rows by w. The derivatives are those of rows that are not rounded."""
    wide = rows @ w
    return wide + jax.lax.stop_gradient(round_rows(rows) @ w - wide)


def _rounded(dense):
    """Returns dense, with the value for rounded rows, and the derivatives for rows that are not rounded."""

    def run(arrays):
        wide, rounded = dense(arrays), dense(arrays | {"x": round_rows(values(arrays["x"]))})
        return wide + jax.lax.stop_gradient(rounded - wide)

    return run


def added(groups):
    c, beta = random(ROWS, N, seed=2), random(groups, seed=4)
    return {"c": c, "bias": random(groups, N, seed=3), "alpha": random(groups), "beta": beta}


KINDS = [
    _ragged_rows("arrays", random(G, K, N, seed=1)),
    _ragged_rows("all that is added", random(G, K, N, seed=1), **added(G)),
    _ragged_rows(
        "a shard of the groups",
        random(2, K, N, seed=1),
        **added(2),
        group_offset=np.array(1, np.int32),
        other={"group_offset": np.array(2, np.int32)},
    ),
    _ragged_rows("scales", _weights(jnp.int8, (G, 2, N))),
    _ragged_rows("zeros", _weights(jnp.uint4, (G, 1, N), zero=True)),
    _ragged_rows("groups", _weights(jnp.float8_e4m3fn, (G,))),
    _ragged_rows("one scale", _weights(jnp.float4_e2m1fn, ())),
    _ragged_rows("powers of two", _weights(jnp.float4_e2m1fn, (G, 1, N), scale_dtype=ml_dtypes.float8_e8m0fnu)),
    _ragged_rows("no scale", QuantizedTensor(_weights(jnp.uint4, ()).data, None)),
    _ragged_rows("rows", random(G, K, N), _small(tensor(jnp.uint8, (ROWS, K), (ROWS, 2), zero=True))),
    _ragged_rows(
        "both", _weights(jnp.int8, (G, 2, N)), _small(tensor(jnp.int8, (ROWS, K), (ROWS, 1), zero=True)), BOTH
    ),
    _ragged_rows(
        "both: one row", _weights(jnp.int8, (G,)), _small(tensor(jnp.int8, (ROWS, K), (1, 2), zero=True)), BOTH
    ),
    _ragged_rows(
        "rounded rows",
        _weights(jnp.uint4, (G, 2, N), zero=True),
        run=lambda arrays, **options: _forward(arrays, lhs_quantize=jnp.int8, **options),
        dense=_rounded(_dense_forward),
    ),
    _ragged_rows(
        "packed for rounded rows",
        _packed(_weights(jnp.uint4, (G, 2, N), zero=True), lhs_quantize=jnp.int8),
        run=lambda arrays, **options: _forward(arrays, lhs_quantize=jnp.int8, **options),
        dense=_rounded(_dense_forward),
    ),
    _ragged_rows("packed", _packed(random(G, K, N, seed=1))),
    _ragged_rows("packed scales", _packed(_weights(jnp.int8, (G, 2, N)))),
    *_other_modes(),
    _row_index(),
    _activation("silu", gate=True),
    _activation("gelu", gate=False),
    _activation("gelu_tanh", gate=True),
    _activation("relu", gate=True),
    _activation("quick_gelu", gate=False),
    _activation("swiglu_oai", gate=True),
    _activation("relu2", gate=False),
    _activation("relu2", gate=True),
    _activation(Activation("swiglu_clamped", limit=0.75), gate=True),
    _integers(),
    _mlp("moe_mlp", transposed=(False, True)),
    _mlp("moe_mlp: halves", "halves", (True, True), save="activations"),
    _mlp("moe_mlp: interleaved", "interleaved", (True, False), activation="swiglu_oai"),
    _mlp("moe_mlp: no gate", None, activation="gelu_tanh", save="activations"),
    _mlp("moe_mlp: numbers", activation=Activation("swiglu_oai", alpha=0.5, limit=1.5)),
    _mlp("moe_mlp: weights on the input", slots=np.arange(moe_mlps.ROWS)[::-1].copy(), weight_on="input"),
    _mlp("moe_mlp: quantized", to_weights=_quantized, alphas=True),
    _mlp("moe_mlp: rounded rows", to_weights=_quantized, relative=1e-5, lhs_quantize="int8"),
    _mlp(
        "moe_mlp: packed for rounded rows",
        to_weights=lambda name, w: _packed(_quantized(name, w), lhs_quantize=jnp.int8),
        relative=1e-5,
        lhs_quantize="int8",
    ),
    _mlp("moe_mlp: packed", to_weights=lambda name, w: _packed(w if name == "w_down" else _quantized(name, w))),
]

# Names of the kinds that `./dev test` runs. They cover each mode in KINDS, zero points and each optional operand of
# grouped_gemm.
CORE = (
    "arrays", "all that is added", "a shard of the groups", "scales", "both", "packed scales", "transposed",
    "columns: blocks", "uniform: both", "silu and gate", "row_index", "integers", "moe_mlp", "rounded rows",
)  # fmt: skip


def parameters(kinds, step=1, turn=0):
    """Returns the kinds as test parameters. `./dev test` runs only the kinds in CORE[turn::step]."""
    short = CORE[turn::step]
    return [kind if kind.name in short else pytest.param(kind, marks=pytest.mark.slow) for kind in kinds]
