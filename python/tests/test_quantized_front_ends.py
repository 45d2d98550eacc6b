"""Tests each cell of the front end table in docs/quantized.md against float64."""

import functools
import pathlib
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import quantized_modes as q
import raggemm
from arrays import sampled
from quantized_modes import SIZES
from raggemm import GroupedTensor, QuantizedTensor, nn
from raggemm._src.dtypes import INTEGER_ELEMENTS
from raggemm.compat import ejkernel, lax, maxtext, megablox, sglang, tokamax, tops

# docs/ is in a folder above the tests, also if `./dev test --wheel` copies them elsewhere.
PAGE = next(page for folder in pathlib.Path(__file__).parents if (page := folder / "docs/quantized.md").exists())
CONTRACTED = jax.lax.RaggedDotDimensionNumbers((((0,), (0,)), ((), ())), [0], [])
BATCHED = jax.lax.RaggedDotDimensionNumbers((((2,), (1,)), ((0,), (0,))), [0], [])
NUMBERS = {"M": jax.lax.RaggedDotDimensionNumbers((((1,), (1,)), ((), ())), [0], [0]), "K": CONTRACTED, "U": BATCHED}
F32 = {"preferred_element_type": jnp.float32}


def table_rows():
    """Yields each row of the table in docs/quantized.md: (front end, kinds, operands, {format: modes}, gradients)."""
    text = PAGE.read_text().splitlines()
    lines = [[cell.strip() for cell in line.strip("|\n").split("|")] for line in text if line[:1] == "|"]
    start = next(i for i, cells in enumerate(lines) if cells[:3] == ["front end", "given as", "operands"])
    formats = lines[start][3:-1]
    assert formats == list(q.FORMATS)
    for cells in lines[start + 2 :]:
        if len(cells) != len(lines[start]):
            return
        name, kinds, operands, *modes, gradients = cells
        modes = {f: [] if cell == "-" else cell.split() for f, cell in zip(formats, modes, strict=True)}
        yield name.strip("`"), kinds.split(", "), operands.split(", "), modes, gradients.split(", ")


ROWS = [row for row in table_rows() if not row[0].endswith("¹")]
CELLS = [(name, kinds, operands, f, modes[f]) for name, kinds, operands, modes, _ in ROWS for f in modes]


def transpose(x):
    return jax.tree.map(lambda leaf: leaf.T, x)


def gmm_and_tgmm(gmm, tgmm):
    return lambda mode, lhs, rhs: gmm(lhs, rhs, SIZES) if mode == "M" else tgmm(transpose(lhs), rhs, SIZES)


def call_grouped_gemm(mode, lhs, rhs):
    if mode == "U":
        return raggemm.grouped_gemm(lhs, rhs, contracting_dims=((2,), (1,)), **F32)
    lhs, rhs = GroupedTensor(lhs, SIZES), GroupedTensor(rhs, SIZES) if mode == "K" else rhs
    return raggemm.grouped_gemm(lhs, rhs, contracting_dims=((0,), (0,)) if mode == "K" else ((1,), (1,)), **F32)


def result_dtype(lhs, rhs):
    is_integers = all(getattr(x, "dtype", None) in INTEGER_ELEMENTS for x in (lhs, rhs))
    return jnp.int32 if is_integers and not hasattr(lhs, "scale") else jnp.float32


def call_lax(mode, lhs, rhs, function=lax.ragged_dot_general):
    sizes = np.array([1, 2], np.int32) if mode == "U" else SIZES
    return function(lhs, rhs, sizes, NUMBERS[mode], preferred_element_type=result_dtype(lhs, rhs))


def call_override(mode, lhs, rhs):
    call = functools.partial(call_lax, mode, function=jax.lax.ragged_dot_general)
    return jax.jit(call)(lhs, rhs)


def call_tokamax(mode, lhs, rhs):
    sizes = np.array([1, 2], np.int32) if mode == "U" else SIZES
    numbers, dtype = NUMBERS[mode], result_dtype(lhs, rhs)
    return tokamax.ragged_dot(
        lhs, rhs, group_sizes=sizes, ragged_dot_dimension_numbers=numbers, preferred_element_type=dtype
    )


def with_rhs_scale(function, **options):
    def call(_, lhs, rhs):
        lhs_dtype = {}
        if isinstance(lhs, tuple):
            lhs, dtype = lhs
            lhs_dtype = {"activation_quantized_dtype": dtype}
        return function(lhs, rhs.data, SIZES, rhs_scale=rhs.scale[:, :, None], **lhs_dtype, **options)

    return call


def with_dtype_or_rule(kind):
    def call(_, lhs, rhs):
        (lhs, lhs_dtype), (rhs, rhs_dtype) = (x if isinstance(x, tuple) else (x, None) for x in (lhs, rhs))
        if kind == "dtype":
            return maxtext.gmm(lhs, rhs, SIZES, lhs_quantize_dtype=lhs_dtype, rhs_quantize_dtype=rhs_dtype)
        rule = types.SimpleNamespace(act_qtype=lhs_dtype, weight_qtype=rhs_dtype)
        return maxtext.gmm(lhs, rhs, SIZES, use_qwix_quantization=True, qwix_rule=rule)

    return call


def run_moe_mlp(x, **weights):
    return raggemm.moe_mlp(x, np.arange(q.M), None, SIZES, activation="relu", **weights)


def run_nn(x, **weights):
    """Calls nn.apply with a router that sends each row to the expert of its group. Zeroes rows of no group."""
    to_groups = 8 * jnp.linalg.pinv(jax.lax.stop_gradient(x)) @ jax.nn.one_hot(q.GROUP_OF_ROW, q.G)
    out = nn.apply({"router": to_groups, **weights}, x, 1, activation="relu").out
    return out * (q.GROUP_OF_ROW < q.G)[:, None]


def product_by_mlps(run, is_gated):
    """Returns a function of (mode, lhs, rhs) that computes lhs @ rhs by MLPs.

    An MLP gives relu(y), and y is relu(y) - relu(-y). rhs is w_up in one MLP, w_down in another, and w_gate in a third
    if is_gated. The result is their mean.
    """

    def call(_, lhs, rhs):
        def matrices(x, k, n):
            return jnp.broadcast_to(jnp.pad(x, ((0, k - len(x)), (0, 0))), (q.G, k, n))

        identity_down = {"w_down": matrices(np.eye(q.N, q.K), q.N, q.K)}
        products = [lambda x: run(x, w_up=rhs, **identity_down)[:, : q.N]]
        products += [lambda x: run(np.eye(q.M, q.N, dtype=np.float32), w_up=matrices(x, q.N, q.K), w_down=rhs)]
        if is_gated:
            zeros = QuantizedTensor(np.zeros_like(rhs.qvalue if hasattr(rhs, "qvalue") else rhs.data))
            up_of_ones = {"w_up": zeros, "b_up": np.ones((q.G, q.N), np.float32)}
            products += [lambda x: run(x, w_gate=rhs, **up_of_ones, **identity_down)[:, : q.N]]
        return sum(product(lhs) - product(-lhs) for product in products) / len(products)

    return call


def front_end(name, kind):
    if (name, kind) == ("compat.ejkernel", "rhs_scale"):
        return with_rhs_scale(
            lambda lhs, rhs, sizes, **options: ejkernel.grouped_matmul(lhs, rhs, sizes, **options), use_v3=True
        )
    if (name, kind) == ("compat.sglang", "rhs_scale"):
        return with_rhs_scale(sglang.gmm)
    if kind in ("dtype", "rule"):
        return with_dtype_or_rule(kind)
    return {
        "raggemm.gmm": lambda _, *x: raggemm.gmm(*x, SIZES),
        "raggemm.tgmm": lambda _, lhs, rhs: raggemm.tgmm(transpose(lhs), rhs, SIZES),
        "raggemm.ragged_dot": lambda _, *x: raggemm.ragged_dot(*x, SIZES),
        "raggemm.grouped_gemm": call_grouped_gemm,
        "raggemm.moe_mlp": product_by_mlps(run_moe_mlp, is_gated=True),
        "raggemm.nn": product_by_mlps(run_nn, is_gated=False),  # moe_mlp tests the gate
        "compat.megablox": gmm_and_tgmm(megablox.gmm, megablox.tgmm),
        "compat.lax": call_lax,
        "the override": call_override,
        "compat.tokamax": call_tokamax,
        "compat.maxtext": gmm_and_tgmm(maxtext.gmm, maxtext.tgmm),
        "compat.ejkernel": gmm_and_tgmm(ejkernel.grouped_matmul, ejkernel.transposed_grouped_matmul),
        "compat.sglang": lambda _, *x: sglang.gmm(*x, SIZES),
        "compat.tops": lambda _, *x: tops.gmm(*x, SIZES),
    }[name]


def operands(kind, quantized_sides, dtype, mode):
    """Returns both operands for a front end, and their float64 values. quantized_sides: "lhs", "rhs" or "both"."""
    e5m2, e4m3 = q.FORMATS["e5m2"], q.FORMATS["e4m3"]
    dtypes = (e5m2, e4m3) if quantized_sides == "both" and dtype == e5m2 else (dtype, dtype)
    given, values = [], []
    for side, name in enumerate(("lhs", "rhs")):
        if quantized_sides not in (name, "both"):
            given.append(q.floats(mode, side))
            values.append(given[-1].astype(np.float64))
            continue
        # If a front end quantizes by a dtype or a rule, a column of rhs has one scale for all experts.
        shared = (0, 1) if kind in ("dtype", "rule") and side == 1 else None
        data, scale, value = q.operand(dtypes[side], mode, side, seed=3 + side, shared=shared)
        if kind in ("dtype", "rule") or (kind == "rhs_scale" and side == 0):
            given.append((value.astype(np.float32), dtypes[side]))
        else:
            given.append(q.given_as("QuantizedTensor" if kind == "rhs_scale" else kind, data, scale, value))
        values.append(data.astype(np.float64) if kind == "array" else value)
    return given, values


def configurations(kinds, names, f, modes):
    """Yields (kind, operands, mode) for every kind and mode.

    `operands` cycles through `names`. The format `f` chooses the start.
    """
    turn = list(q.FORMATS).index(f)
    for mode in modes:
        for kind in kinds:
            yield kind, names[turn % len(names)], mode
            turn += 1


@pytest.mark.parametrize(
    ("name", "kinds", "names", "f", "modes"),
    sampled(CELLS, 9, unpack=True),
    ids=[f"{c[0]}-{c[1][0]}-{c[3]}" for c in CELLS],
)
def test_table_cell(name, kinds, names, f, modes):
    for kind, quantized_sides, mode in configurations(kinds, names, f, modes):
        given, values = operands(kind, quantized_sides, q.FORMATS[f], mode)
        with raggemm.override_ragged_dot() as lowerings:
            out = front_end(name, kind)(mode, *given)
        if name == "the override":
            assert [x.by for x in lowerings] == ["raggemm"]
        want, magnitude = q.product(mode, *values)
        assert out.dtype in (np.float32, np.int32) and out.shape == want.shape
        np.testing.assert_array_less(
            np.abs(np.asarray(out, np.float64) - want), 1e-5 * magnitude + 1e-30, f"{kind} {mode}"
        )
    if not modes:
        given, _ = operands(kinds[0], names[0], q.FORMATS[f], "M")
        with pytest.raises(TypeError, match=r"[lr]hs: "):
            front_end(name, kinds[0])("M", *given)


def test_nf4_and_wrong_fields_are_refused_by_name():
    data, scale, _ = q.operand(q.FORMATS["uint4"], "M", 1, 0)
    lhs = q.floats("M", 0)
    with pytest.raises(TypeError, match=r"^rhs: qtype is nf4, whose elements are codebook indices"):
        raggemm.gmm(lhs, q.QArray(data, scale, None, "nf4"), SIZES)
    with pytest.raises(TypeError, match=r"^rhs\.qvalue: dtype is int16, must be int8"):
        raggemm.gmm(lhs, q.QArray(data.astype(np.int16), scale), SIZES)
    with pytest.raises(ValueError, match=r"^rhs\.scale: axis 2 of shape .* must divide 32"):
        raggemm.gmm(lhs, q.QArray(data, np.ones((3, 1, 5), np.float32)), SIZES)
    with pytest.raises(TypeError, match=r"^rhs\.zero_point: dtype is int8, must be uint4"):
        lax.ragged_dot(lhs, q.QArray(data, scale, np.zeros(scale.shape, np.int8)), SIZES)
    assert raggemm.dequantize(q.QArray(data, scale)).shape == data.shape
    assert raggemm.gmm(lhs, QuantizedTensor(data), SIZES).shape == (q.M, q.N)
