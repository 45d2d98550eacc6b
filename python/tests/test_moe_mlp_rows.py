import fractions
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import raggemm
from arrays import sampled
from moe_mlps import ROW_TOKENS, ROWS, TOKENS, Case
from raggemm import moe_mlp


@pytest.mark.parametrize("gate", ["separate", "halves", None])
def test_weights_on_the_input(gate):
    case = Case(gate)
    values = {name: np.float64(x) for name, x in case.values.items()}
    want = case.oracle(values, on_input=True)
    for run in (case, jax.jit(case, static_argnames=("weight_on",))):
        got = run(weight_on="input")
        np.testing.assert_allclose(got, want, rtol=0, atol=3e-6 * np.abs(want).max())
        assert not np.asarray(got[8]).view(np.uint8).any()
    if gate == "separate":
        assert not np.allclose(got, case(), atol=1e-2)
        np.testing.assert_array_equal(case({"row_weights": None}, weight_on="input"), case({"row_weights": None}))


@pytest.mark.parametrize("out", [np.float32, jnp.bfloat16])
def test_weighted_inputs_and_sums_are_rounded_once(out):
    """255 * 3.007 is 768 in bfloat16. If the weight were rounded to 3 first, the product would be 764."""
    x = np.array([[255], [131], [3]], jnp.bfloat16)
    weights, tokens = np.float32([3.007, 3, 3, 5, 1.5]), np.array([0, 1, 2, 0, 2], np.int32)
    ones = np.ones((2, 1, 1), np.float32)
    options = {"activation": "relu", "weight_on": "input", "preferred_element_type": out}
    got = moe_mlp(x, tokens, weights, np.array([3, 2]), ones, 257 * ones, **options)
    rows = (np.float64(x)[tokens, 0] * weights).astype(np.float32).astype(jnp.bfloat16).astype(np.float32)
    want = np.array([rows[0] + rows[3], rows[1], rows[2] + rows[4]]) * np.float32(257)
    assert got[:, 0].tolist() == want.astype(out).tolist() and rows[0] == 768


def sum_in_order(weights, values):
    total = np.float32(0)
    for weight, value in zip(weights, values, strict=True):
        total = np.float32(
            float(
                fractions.Fraction(float(weight)) * fractions.Fraction(float(value)) + fractions.Fraction(float(total))
            )
        )
    return total


@pytest.mark.parametrize("rows", [80, 600])
def test_order_of_a_tokens_rows(rows):
    random = np.random.default_rng(0)
    down, weights = (np.float32(random.normal(size=n) * 4.0 ** random.integers(-6, 7, n)) for n in (rows // 2, rows))
    sizes, ones, tokens = np.full(rows // 2, 2, np.int32), np.ones((rows // 2, 1, 1), np.float32), np.zeros(rows, int)
    operands = np.ones((1, 1), np.float32), tokens, weights, sizes, ones, down[:, None, None]
    values, slots = np.repeat(down, 2), random.integers(0, rows // 4, rows)
    assert moe_mlp(*operands, activation="relu")[0, 0] == sum_in_order(weights, values)
    order = np.argsort(slots, kind="stable")
    want = sum_in_order(weights[order], values[order])
    assert moe_mlp(*operands, activation="relu", row_slots=slots)[0, 0] == want


@pytest.mark.parametrize("options", [{"weight_on": "input"}, {"row_slots": np.arange(ROWS)}], ids=["input", "slots"])
def test_wrong_tokens_and_sizes_are_errors(options):
    case = Case()
    wrong = {"row_tokens": np.where(np.arange(ROWS) == 4, TOKENS, ROW_TOKENS)}
    for changes, message in (
        (wrong, r"row_tokens: value 9 at index 4, must be in \[0, 9\)"),
        ({"group_sizes": np.array([-1, 2, 0, 0])}, "group_sizes: group 0 has size -1"),
    ):
        with pytest.raises((ValueError, jax.errors.JaxRuntimeError), match=message):
            jax.block_until_ready(case(**changes, **options))
    with raggemm.options(on_error="nan"):
        assert np.isnan(np.asarray(case(**wrong, **options))[:7]).all()


@pytest.mark.parametrize(
    "options", [{}, {"weight_on": "input"}, {"row_slots": np.arange(ROWS)}], ids=["", "input", "slots"]
)
def test_without_tokens_every_row_token_is_wrong(options):
    case = Case()
    case.given["x"] = case.given["x"][:0]
    run = lambda w: case({"w_up": w}, **options)  # noqa: E731
    w = case.given["w_up"]
    results = [run, jax.grad(lambda w: run(w).sum())]
    if jax.__version_info__ >= (0, 10):  # Before jax 0.10, XLA drops a batched call without result elements.
        results.append(lambda w: jax.vmap(run)(w[None]))
    for result in results:
        with pytest.raises(
            (ValueError, jax.errors.JaxRuntimeError), match=r"row_tokens: value .*, must be in \[0, 0\)"
        ):
            jax.block_until_ready(jax.jit(result)(w))


def temporary_bytes(function, *operands):
    return jax.jit(function).lower(*operands).compile().memory_analysis().temp_size_in_bytes


# Limit for all temporaries except sums of tokens, result rows and cotangents. It includes 24 bytes for each row.
FIXED_BYTES = 25 << 20


OPTIONS = {}, {"row_slots": True}, {"weight_on": "input"}


@pytest.mark.parametrize(
    ("tokens", "options", "dtype"),
    sampled([*itertools.product((2048, 16384), OPTIONS, (np.float32, jnp.bfloat16))], 5, unpack=True),
    ids=str,
)
def test_temporaries_do_not_grow_with_the_rows(tokens, options, dtype):
    """Forward calls have few large temporaries. Gradients have at most these, or float32 sums and two cotangents.

    bfloat16 tokens need float32 sums. row_slots needs 8192 result rows.
    """
    hidden, inner, experts, rows = 1024, 64, 8, 2 * tokens
    shapes = (tokens, hidden), (rows,), (rows,), (experts,), (experts, hidden, inner), (experts, inner, hidden)
    dtypes = dtype, np.int32, np.float32, np.int32, dtype, dtype
    operands = [jax.ShapeDtypeStruct(shape, dt) for shape, dt in zip(shapes, dtypes, strict=True)]

    def mlp(x, row_tokens, row_weights, sizes, up, down):
        given = {"row_slots": row_tokens} if "row_slots" in options else options
        return moe_mlp(x, row_tokens, row_weights, sizes, up, down, **given)

    sum_bytes = 4 * tokens * hidden
    row_bytes = 4 * 8192 * hidden if "row_slots" in options else 0
    value_bytes = row_bytes + (sum_bytes if dtype != np.float32 else 0) + FIXED_BYTES
    assert temporary_bytes(mlp, *operands) <= value_bytes
    for argnums in (0, (0, 2, 4, 5), (4, 5)):
        gradient = jax.grad(lambda *x: (mlp(*x).astype(np.float32) ** 2).sum(), argnums)
        cotangent = tokens * hidden * np.dtype(dtype).itemsize
        cotangent_bytes = 2 * cotangent + (sum_bytes if dtype != np.float32 else 0)  # the loss squares the result
        assert temporary_bytes(gradient, *operands) <= max(value_bytes, cotangent_bytes + FIXED_BYTES)
