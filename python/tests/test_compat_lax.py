"""Tests raggemm.compat.lax against float64, and its signatures and errors against jax.lax."""

import functools
import inspect
import re

import jax
import ml_dtypes
import numpy as np
import oracle
import pytest
from arrays import sampled
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P
from program_text import custom_calls
from ragged_dots import FORMS, Form
from raggemm import GroupedTensor, ragged_dot
from raggemm.compat import lax

SIZES = np.array([3, 0, 2], np.int32)
LHS, RHS, _ = Form("mk,gkn->mn, m").operands()


@pytest.mark.parametrize(
    "function", [lax.ragged_all_to_all, lax.ragged_dot, lax.ragged_dot_general, ragged_dot], ids=lambda f: f.__module__
)
def test_signatures_match_lax(function):
    ours, theirs = (
        [(p.name, p.default, p.kind) for p in inspect.signature(f).parameters.values()]
        for f in (function, getattr(jax.lax, function.__name__))
    )
    assert ours[: len(theirs)] == theirs
    only_ours = ("lhs_quantize", "lhs_block")
    extra = [name for name, *_ in ours[len(theirs) :] if name not in only_ours]
    assert extra in ([], ["out_sharding"])  # Older versions of jax.lax have no out_sharding.


@pytest.mark.parametrize("form", sampled(FORMS, 3), ids=str)
@pytest.mark.parametrize("sizes_per_batch", [True, False], ids=["sizes per batch", "shared sizes"])
def test_every_form(form, sizes_per_batch):
    operands = form.operands(sizes_per_batch=sizes_per_batch)
    call = jax.jit(functools.partial(lax.ragged_dot_general, ragged_dot_dimension_numbers=form.numbers))
    got = call(*operands)
    form.expected(*operands).check(got)
    if sizes_per_batch:
        assert custom_calls(call.lower(*operands)) == 1
        theirs = jax.eval_shape(
            functools.partial(jax.lax.ragged_dot_general, ragged_dot_dimension_numbers=form.numbers), *operands
        )
        assert (got.shape, got.dtype) == (theirs.shape, theirs.dtype)


def test_ragged_dot_with_group_offset():
    want = lax.ragged_dot(LHS, RHS, SIZES)
    oracle.grouped_gemm(GroupedTensor(LHS, first_dims=SIZES), GroupedTensor(RHS), contracting_dims=((1,), (1,))).check(
        want
    )
    assert (want[5:] == 0).all()
    for offset in (2, np.array([2], np.uint32)):
        got = lax.ragged_dot(LHS, RHS[2:], SIZES, group_offset=offset)
        np.testing.assert_array_equal(got[3:], want[3:])
        assert (got[:3] == 0).all()
    gradient = jax.jit(jax.grad(lambda w: lax.ragged_dot(LHS, w, SIZES, group_offset=2).sum()))(RHS[2:])
    np.testing.assert_allclose(gradient[0], np.tile(LHS[3:5].sum(0)[:, None], (1, 5)), rtol=1e-5)
    with pytest.raises((jax.errors.JaxRuntimeError, ValueError), match=r"INVALID_ARGUMENT.*group_offset"):
        lax.ragged_dot(LHS, RHS[1:], SIZES, group_offset=2).block_until_ready()


SUPPORTED_PRECISIONS = [
    None,
    "highest",
    jax.lax.Precision.DEFAULT,
    ("high", "default"),
    "F32_F32_F32",
    jax.lax.DotAlgorithmPreset.DEFAULT,
]
UNSUPPORTED_PRECISIONS = ["BF16_BF16_F32", "F16_F16_F16", "TF32_TF32_F32", jax.lax.DotAlgorithmPreset.F64_F64_F64]


def test_unsupported_precisions_are_refused_by_name():
    want = lax.ragged_dot(LHS, RHS, SIZES)
    for precision in SUPPORTED_PRECISIONS:
        np.testing.assert_array_equal(lax.ragged_dot(LHS, RHS, SIZES, precision), want)
    for precision in UNSUPPORTED_PRECISIONS:
        with pytest.raises(NotImplementedError, match=getattr(precision, "name", precision)):
            lax.ragged_dot(LHS, RHS, SIZES, precision)
    bf16_operands = LHS.astype(ml_dtypes.bfloat16), RHS.astype(ml_dtypes.bfloat16)
    assert lax.ragged_dot(*bf16_operands, SIZES, "BF16_BF16_F32").dtype == ml_dtypes.bfloat16
    with pytest.raises(ValueError, match="sharp"):
        lax.ragged_dot(LHS, RHS, SIZES, "sharp")
    with jax.default_matmul_precision("BF16_BF16_F32"), pytest.raises(NotImplementedError, match="BF16_BF16_F32"):
        lax.ragged_dot(LHS, RHS, SIZES)
    for precisions in (("highest",), ("highest",) * 3):
        with pytest.raises(ValueError, match="must have one for lhs and one for rhs"):
            lax.ragged_dot(LHS, RHS, SIZES, precisions)
    algorithm = jax.lax.DotAlgorithm(np.float32, np.float32, np.float32)
    with pytest.raises(NotImplementedError, match="DotAlgorithm"):
        lax.ragged_dot(LHS, RHS, SIZES, algorithm)


def numbers(contract=((1,), (1,)), batch=((), ()), ragged=(0,), group=(0,)):
    return jax.lax.RaggedDotDimensionNumbers((contract, batch), ragged, group)


SHAPE_ERRORS = {
    "two ragged": (LHS, RHS, SIZES, numbers(ragged=(0, 1))),
    "ragged out of range": (LHS, RHS, SIZES, numbers(ragged=(2,))),
    "sizes without axis": (LHS, RHS, np.int32(3), numbers()),
    "sizes of a wrong batch": (LHS, RHS, np.stack([SIZES, SIZES]), numbers()),
    "wrong number of groups": (LHS, RHS[:2], SIZES, numbers()),
    "no group axis": (LHS, RHS, SIZES, numbers(group=())),
    "group axis is contracted": (LHS, RHS, SIZES, numbers(group=(1,))),
    "group axis with ragged k": (LHS.T, RHS, SIZES, numbers(contract=((0,), (1,)))),
    "contracted extents": (LHS[:, 1:], RHS, SIZES, numbers()),
    "float sizes": (LHS, RHS, SIZES.astype(np.float32), numbers()),
}


@pytest.mark.parametrize("case", SHAPE_ERRORS)
def test_shape_errors_have_the_message_of_lax(case):
    with pytest.raises(TypeError) as theirs:
        jax.eval_shape(lambda *args: jax.lax.ragged_dot_general(*args, SHAPE_ERRORS[case][3]), *SHAPE_ERRORS[case][:3])
    with pytest.raises(TypeError, match=re.escape(str(theirs.value))):
        lax.ragged_dot_general(*SHAPE_ERRORS[case])


REFUSED = [
    ({"rhs": RHS.astype(ml_dtypes.float8_e4m3b11fnuz)}, TypeError, "rhs: dtype is float8_e4m3b11fnuz"),
    ({"lhs": LHS.astype(np.int8), "rhs": RHS.astype(np.int16)}, TypeError, "rhs: dtype is int16, must be float16"),
    ({"lhs": LHS.astype(ml_dtypes.int4), "rhs": RHS.astype(ml_dtypes.int4)}, TypeError,
     "preferred_element_type: dtype is int4"),
    ({"group_offset": 1.0}, TypeError, "group_offset: dtype is float64"),
    ({"group_sizes": SIZES[:2], "group_offset": 0}, TypeError, "rhs group dimension size to be 2, got 3"),
]  # fmt: skip


@pytest.mark.parametrize("change, error, message", REFUSED, ids=[message[:20] for *_, message in REFUSED])
def test_unsupported_arguments_are_refused(change, error, message):
    with pytest.raises(error, match=message):
        lax.ragged_dot(**({"lhs": LHS, "rhs": RHS, "group_sizes": SIZES} | change))


class Exchange:
    """A random exchange of rows among four devices, and its result in NumPy.

    Some devices send the same rows twice, some slices are empty, and some rows of the results are not received.
    """

    def __init__(self, groups=None, dtype=np.float32, seed=0):
        rng = np.random.default_rng(seed)
        self.groups = groups or [[0, 1, 2, 3]]
        slices, k = 3, 3 * len(self.groups[0])  # slices from each device to each device
        self.operand, self.output = (rng.integers(-9, 9, size=(4, n, 2)).astype(dtype) for n in (9, 7 * k // 2))
        self.sent = np.zeros((3, 4, k), np.int32)  # input_offsets, send_sizes, output_offsets
        self.recv_sizes = np.zeros((4, k), np.int32)
        self.rows = []  # (sender, its row, receiver, its row)
        for group in self.groups:
            for at, receiver in enumerate(group):
                self.recv_sizes[receiver] = rng.integers(0, 4, k)
                row = 0
                for i in rng.permutation(k):
                    sender, size = group[i // slices], self.recv_sizes[receiver, i]
                    first = rng.integers(0, 9 - size)
                    self.sent[:, sender, at * slices + i % slices] = first, size, row
                    self.rows += [(sender, first + j, receiver, row + j) for j in range(size)]
                    row += size + (i == 1)
        assert len({row[2:] for row in self.rows}) == len(self.rows) > len({row[:2] for row in self.rows})

    def arguments(self):
        return self.operand, self.output, *self.sent, self.recv_sizes

    def call(self, *args):
        """Exchanges operands [4,n,2] of four devices."""
        mesh = jax.make_mesh((4,), ("x",), axis_types=(AxisType.Auto,))
        groups = self.groups if len(self.groups) > 1 else None
        exchange = functools.partial(lax.ragged_all_to_all, axis_name="x", axis_index_groups=groups)
        one = jax.shard_map(
            lambda *args: exchange(*(x[0] for x in args))[None], mesh=mesh, in_specs=P("x"), out_specs=P("x")
        )
        return jax.jit(one)(*args)

    def expected(self):
        out = self.output.copy()
        for sender, i, receiver, j in self.rows:
            out[receiver, j] = self.operand[sender, i]
        return out

    def expected_gradients(self, cotangents):
        operand, output = np.zeros(self.operand.shape), cotangents.astype(np.float64)
        for sender, i, receiver, j in self.rows:
            operand[sender, i] += cotangents[receiver, j]
            output[receiver, j] = 0
        return operand, output


GROUPS = [[3, 0], [1, 2]]


@pytest.mark.parametrize(("groups", "dtype"), [(None, np.float32), (GROUPS, np.float32), (None, np.int8)])
def test_ragged_all_to_all(groups, dtype):
    exchange = Exchange(groups, dtype)
    np.testing.assert_array_equal(exchange.call(*exchange.arguments()), exchange.expected())


@pytest.mark.parametrize("groups", [None, GROUPS])
def test_gradients_of_ragged_all_to_all(groups):
    exchange = Exchange(groups, seed=1)
    cotangents = np.random.default_rng(2).integers(-9, 9, exchange.output.shape).astype(np.float32)
    operand, output, *slices = exchange.arguments()
    got = jax.vjp(lambda *floats: exchange.call(*floats, *slices), operand, output)[1](cotangents)
    for x, want in zip(got, exchange.expected_gradients(cotangents), strict=True):
        np.testing.assert_array_equal(x, want)


def test_vmap_of_ragged_all_to_all():
    exchanges = [Exchange(seed=seed) for seed in (3, 4)]
    arguments = [np.stack(x) for x in zip(*(e.arguments() for e in exchanges), strict=True)]
    for got, exchange in zip(jax.vmap(exchanges[0].call)(*arguments), exchanges, strict=True):
        np.testing.assert_array_equal(got, exchange.expected())
    over_devices = jax.vmap(functools.partial(lax.ragged_all_to_all, axis_name="x"), axis_name="x")
    np.testing.assert_array_equal(over_devices(*exchanges[0].arguments()), exchanges[0].expected())


def test_ragged_all_to_all_without_rows_returns_output():
    operand, output, *slices = Exchange().arguments()
    got = Exchange().call(operand[:, :0], output, *(np.zeros_like(x) for x in slices))
    np.testing.assert_array_equal(got, output)


WRONG_EXCHANGES = [
    (0, np.zeros((4, 9, 3), np.float32), ValueError, r"operand: shape is \(9, 3\), must be output's \(42, 2\) exc"),
    (0, np.zeros((4, 9, 2), np.int8), TypeError, "operand: dtype is int8, must be float32"),
    (1, np.zeros(4, np.float32), ValueError, r"output: shape is \(\), must have at least 1 axis"),
    (2, np.zeros((4, 3), np.int32), ValueError, r"input_offsets: shape is \(3,\), must be a multiple of the 4 devices"),
    (3, np.zeros((4, 12), np.float32), TypeError, "send_sizes: dtype is float32"),
    (4, np.zeros((4, 8), np.int32), ValueError, r"output_offsets: shape is \(8,\), must be \(12,\), that of input"),
    (5, np.zeros((4, 12, 1), np.int32), ValueError, r"recv_sizes: shape is \(12, 1\), must be \[K\]"),
]


@pytest.mark.parametrize("index, value, error, message", WRONG_EXCHANGES, ids=[m[:20] for *_, m in WRONG_EXCHANGES])
def test_wrong_arguments_of_ragged_all_to_all(index, value, error, message):
    arguments = list(Exchange().arguments())
    arguments[index] = value
    with pytest.raises(error, match=message):
        jax.eval_shape(Exchange().call, *arguments)
