import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from moe_mlps import HIDDEN, INNER, ROW_TOKENS, ROWS, TOKENS, Case
from program_text import primitives
from raggemm import QuantizedTensor, moe_mlp


def close(got, want, relative=2e-5):
    want = np.asarray(want, np.float64)
    assert np.shape(got) == want.shape
    np.testing.assert_allclose(np.float64(got), want, rtol=0, atol=relative * np.abs(want).max(initial=1e-30))


def loss_of(case, oracle=False, curve=jnp.sin, **options):
    weights = np.linspace(-1, 1, TOKENS * HIDDEN).reshape(TOKENS, HIDDEN)

    def loss(values):
        out = case.oracle(values, xp=jnp, **options) if oracle else case(values, **options)
        return jnp.sum(curve(out) * weights.astype(out.dtype))

    return loss


def in_float64(f, *args):
    with jax.enable_x64(True):
        return jax.jit(f)(*jax.tree.map(lambda x: jnp.asarray(x, jnp.float64), args))


def test_gradients_have_the_dtypes_of_the_arrays():
    case = Case().cast(x=jnp.bfloat16, w=jnp.bfloat16, row_weights=jnp.float16)
    gradient = jax.jit(jax.grad(loss_of(case, curve=jnp.negative)))(case.given)
    assert {name: x.dtype for name, x in gradient.items()} == {name: x.dtype for name, x in case.given.items()}
    want = in_float64(jax.grad(loss_of(case, True, curve=jnp.negative)), case.values)
    jax.tree.map(functools.partial(close, relative=2e-2), gradient, want)


@pytest.mark.parametrize("gated", [False, True])
def test_the_gradient_of_x_is_summed_in_float32(gated):
    """The gradient of x sums eight rows: 256 and seven ones.

    With a gate, it sums five rows, and each adds 256 and 1.
    """
    up = np.array([256, 1, 1, 1, 1, 1, 1, 1] if not gated else [1] * 5, jnp.bfloat16)[:, None, None]
    ones = np.ones_like(up)
    gate = {"w_gate": ones, "b_gate": np.full(up.shape[:2], 255, np.float32)} if gated else {}

    def loss(x):
        rows = np.zeros(len(up), np.int32)
        return moe_mlp(x, rows, None, np.ones_like(rows), up, ones, activation="relu", **gate).sum()

    want = np.array([[5 * (256 + 1) if gated else 256 + 7]], np.float32).astype(jnp.bfloat16)
    np.testing.assert_array_equal(jax.grad(loss)(ones[0]), want)


def test_residuals_of_a_gradient():
    case = Case()

    def residual_sizes(save):
        back = jax.vjp(lambda values: case(values, save=save), case.given)[1]
        return sorted(x.size for x in jax.tree.leaves(back) if x.size in (ROWS * INNER, ROWS * HIDDEN))

    assert residual_sizes("inputs") == []
    assert residual_sizes("activations")[:2] == [ROWS * INNER] * 2
    for save in ("inputs", "activations"):
        found = primitives(jax.grad(loss_of(case, save=save)), case.given)
        assert [found[name] for name in ("moe_mlp", "moe_mlp_backward", "grouped_gemm")] == [1, 1, 0]


@pytest.mark.parametrize("gate", ["separate", "interleaved"])
def test_gradients_have_the_same_bits_with_every_save(gate):
    case = Case(gate).cast(x=jnp.bfloat16, w=jnp.bfloat16)
    saved, recomputed = (jax.jit(jax.grad(loss_of(case, save=save)))(case.given) for save in ("activations", "inputs"))
    jax.tree.map(np.testing.assert_array_equal, saved, recomputed)


# Sequences of grouped GEMMs.


@pytest.mark.parametrize(
    ("x", "w", "down"),
    [("float32", "bfloat16", None), ("bfloat16", "float32", None), ("bfloat16", "float32", "int8")],
    ids=lambda dtype: dtype or "same dtype",
)
@pytest.mark.parametrize("offset", [None, 1])
def test_grouped_gemms_round_like_one_call(x, w, down, offset):
    """A vmap over w_up alone runs as grouped GEMMs, but rounds like moe_mlp.

    Sums of integers are exact, so results show each rounding.
    """
    random = np.random.default_rng(0)
    sizes, groups = np.array([5, 0, 4, 6], np.int32), 4 if offset is None else 2
    shapes = {"w_up": (groups, 8, 6), "w_gate": (groups, 8, 6), "w_down": (groups, 8, 6), "b_down": (groups, 8)}
    values = {name: random.integers(-2, 3, shape).astype(w) for name, shape in shapes.items()}
    values["x"] = random.integers(-7, 8, (5, 8)).astype(x)
    values["row_weights"] = random.choice([1, 257 / 256, -5], 17).astype(np.float32)
    fixed = {"row_tokens": random.integers(0, 5, 17, np.int32), "group_sizes": sizes, "group_offset": offset}
    if down:
        fixed["w_down"] = QuantizedTensor(values.pop("w_down").astype(down), None)

    def result_and_gradients(values, ct):
        call = functools.partial(
            moe_mlp, **fixed, transpose_down=True, activation="relu", preferred_element_type=jnp.float32
        )
        out, back = jax.vjp(lambda values: call(**values), values)
        return out, back(ct)[0]

    ct = random.integers(-511, 512, (5, 8)).astype(np.float32)
    batched = jax.vmap(result_and_gradients, ({name: 0 if name == "w_up" else None for name in values}, None))
    batch = values | {"w_up": np.stack([values["w_up"]] * 2)}
    assert primitives(batched, batch, ct)["moe_mlp"] == 0
    got, want = jax.jit(batched)(batch, ct), jax.jit(result_and_gradients)(values, ct)
    jax.tree.map(lambda g, w: np.testing.assert_array_equal(g, np.stack([w, w])), got, want)


@pytest.mark.parametrize("derivative", ["jvp", "second"])
def test_a_wrong_token_in_a_derivative_is_an_error(derivative):
    case = Case()
    wrong = np.where(np.arange(ROWS) == 4, TOKENS, ROW_TOKENS)
    loss = lambda x: case({"x": x}, row_tokens=wrong).sum()  # noqa: E731
    differentiated = loss if derivative == "jvp" else jax.grad(loss)
    with pytest.raises((ValueError, jax.errors.JaxRuntimeError), match="row_tokens: value 9 at index 4, must be in"):
        jax.block_until_ready(jax.jvp(differentiated, (case.given["x"],), (case.given["x"],)))
