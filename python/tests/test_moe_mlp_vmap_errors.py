"""What is wrong in one problem of a batch of moe_mlp is an error, and harms no other one silently."""

import jax
import numpy as np
import pytest
import raggemm
from arrays import sampled
from moe_batches import BATCH, TOKENS, WEIGHTS, case, gradient

MOST = 2**31 - 1
# Sizes of the batch, then what is said of those, by weights that all share and by own ones.
WRONG_SIZES = [
    ([[9, 0, 1, 0, 0], [0, 5, -1, 2, 0], [0, 0, 3, 0, 0]], "group 2 has size -1", "group 7 has size -1"),
    ([[-40, 0, 0, 0, 0], [40, 0, 0, 0, 0], [0] * 5], "group 0 has size -40", "group 0 has size -40"),
    ([[-9, 0, 0, 0, 0], [41, 0, 0, 0, 0], [0] * 5], "group 0 has size -9", "group 0 has size -9"),
    ([[0] * 5, [0] * 5, [0, 0, 0, 0, -3]], "group 4 has size -3", "group 14 has size -3"),
    ([[0] * 5, [0, 20, 0, 21, 0], [0] * 5], "group 3 has size 21 and starts at 100", "group 8 has size 21 and starts"),
    ([[41, 0, 0, 0, 0], [0] * 5, [0] * 5], "group 0 has size 121 and starts at 0", "group 0 has size 121"),
    ([[0] * 5, [MOST, MOST, 2, 0, 0], [0] * 5], f"group 0 has size {MOST}", f"group 5 has size {MOST}"),
    ([[0] * 5, [3, MOST, MOST, 0, 0], [0] * 5], f"group 1 has size {MOST}", f"group 6 has size {MOST}"),
]


def fails(values, axes, run, message):
    """Value and gradient do; with on_error="nan" all of the batch is."""
    functions = jax.vmap(run, (axes,)), jax.vmap(gradient(run, ("x", "row_weights")), (axes, 0))
    for args, f in zip(((values,), (values, values["x"])), functions, strict=True):
        with pytest.raises((ValueError, jax.errors.JaxRuntimeError), match=message):
            jax.block_until_ready(f(*args))
        with raggemm.options(on_error="nan"):
            assert all(np.isnan(x).all() for x in jax.tree.leaves(jax.jit(f)(*args)))


@pytest.mark.parametrize("own", [False, True], ids=["shared", "own"])
@pytest.mark.parametrize("offset", [False, True])
@pytest.mark.parametrize(
    ("sizes", "shared_words", "own_words"), sampled(WRONG_SIZES, 4, unpack=True), ids=range(len(WRONG_SIZES))
)
def test_wrong_sizes(sizes, shared_words, own_words, offset, own):
    """Also those that others make up for, and of groups that are not processed."""
    batched = ("x", "group_sizes", *WEIGHTS * own)
    values, axes, run = case(batched, offset=offset)
    values["group_sizes"] = np.array(sizes, np.int32)
    fails(values, axes, run, f"group_sizes: {own_words if own else shared_words}")


@pytest.mark.parametrize("own", [False, True], ids=["shared", "own"])
@pytest.mark.parametrize(
    ("where", "value", "shown"), [(0, TOKENS, 18), (2, TOKENS, 18), (1, 17, 29), (1, -1, -1), (0, MOST, MOST)]
)
def test_wrong_tokens(where, value, shown, own):
    """Which are no tokens of the others."""
    values, axes, run = case(("x", "row_tokens", *WEIGHTS * own))
    values["group_sizes"] = np.array([0, 0, 30, 0, 0], np.int32)
    values["row_tokens"] = values["row_tokens"].at[where, 7].set(value)
    message = rf"row_tokens: value {shown} at index {30 * where + 7}, must be in \[0, {BATCH * TOKENS}\)"
    fails(values, axes, run, message)


WRONG_OFFSETS = [([0, 3, 0], (3, 7)), ([1, -1, 4], (-1, -1)), ([0, 0, MOST], (MOST, MOST))]


@pytest.mark.parametrize("own", [False, True], ids=["shared", "own"])
@pytest.mark.parametrize(("wrong", "shown"), WRONG_OFFSETS)
@pytest.mark.parametrize("each", [False, True], ids=["one", "each"])
def test_wrong_offsets(wrong, shown, own, each):
    values, axes, run = case(("x", *WEIGHTS * own, *("group_offset",) * each), offset=True)
    values["group_sizes"] = np.array([0, 0, 0, 0, 40], np.int32)
    values["group_offset"] = np.array(wrong if each else next(x for x in wrong if not 0 <= x <= 2), np.int32)
    fails(values, axes, run, f"group_offset: value {shown[own]} at index 0, must be in")
