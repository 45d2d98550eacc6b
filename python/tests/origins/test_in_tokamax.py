"""Tests raggemm inside tokamax against tokamax' implementation "xla"."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tokamax
from absl import flags
from program_text import custom_calls
from raggemm.compat import tokamax as compat

flags.FLAGS.mark_as_parsed()  # Keeps tokamax from parsing pytest's command line as its flags.

SIZES = np.array([5, 0, 17, 1, 8, 0, 2, 31], np.int32)
M, K, N, G = SIZES.sum() + 3, 16, 24, len(SIZES)
RNG = np.random.default_rng(0)
LHS, RHS = (RNG.normal(size=shape).astype(np.float32) for shape in ((M, K), (G, K, N)))


def run(implementation, x, w, sizes=SIZES, dtype=None):
    return tokamax.ragged_dot(x, w, sizes, preferred_element_type=dtype, implementation=implementation)


def assert_close(ours, theirs):
    np.testing.assert_allclose(ours, theirs, rtol=2e-5, atol=2e-5 * np.abs(theirs).max())


@pytest.mark.parametrize(
    "sizes", [SIZES, tokamax.RaggedDotGroupSizes(SIZES, int(SIZES.sum()))], ids=["array", "GroupSizes"]
)
def test_tokamax_calls_raggemm(sizes):
    call = jax.jit(lambda x, w: run([compat.ragged_dot, "xla"], x, w, sizes))
    assert custom_calls(call.lower(LHS, RHS)) == 1
    assert custom_calls(jax.jit(lambda x, w: run("xla", x, w, sizes)).lower(LHS, RHS)) == 0
    assert_close(call(LHS, RHS), run("xla", LHS, RHS, sizes))


def test_unsupported_calls_fall_through_to_xla():
    lhs, rhs = LHS.astype(np.int16), RHS.astype(np.int16)
    options = {"dtype": jnp.int32}
    with pytest.raises(NotImplementedError, match="int16"):
        run([compat.ragged_dot], lhs, rhs, **options)
    got = run([compat.ragged_dot, "xla"], lhs, rhs, **options)
    np.testing.assert_array_equal(got, run("xla", lhs, rhs, **options))


@pytest.mark.parametrize("axes", [{"channelwise_axes": [0, 2]}, {"tiled_axes": {1: 8}}], ids=["channels", "blocks"])
@pytest.mark.parametrize("lazy", [False, True], ids=["QArray", "AsQArray"])
def test_quantized_weights(axes, lazy):
    import qwix
    from tokamax._src.quantization import AsQArray

    quantize = AsQArray if lazy else qwix.quantize
    quantized = quantize(jnp.asarray(RHS), jnp.int8, **axes)
    got = run([compat.ragged_dot], jnp.asarray(LHS), quantized)
    assert_close(got, run("xla", jnp.asarray(LHS), quantized))
