"""Every public function, forward and gradient, in the modes in which JAX refuses what it takes otherwise.

Results must have the bits that they have outside of the mode.
"""

import contextlib
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from public_calls import CALLS, NO_CALLS, PUBLIC, Call

DIFFERENTIABLE = (np.float16, jnp.bfloat16, np.float32, np.float64)


@contextlib.contextmanager
def all_of(*contexts):
    with contextlib.ExitStack() as stack:
        for context in contexts:
            stack.enter_context(context())
        yield


PROMOTION = (
    functools.partial(jax.numpy_dtype_promotion, "strict"),
    functools.partial(jax.numpy_rank_promotion, "raise"),
)
# The modes, several at a time if they are of one kind, and whether calls are compiled in them. With 64-bit types arrays
# that are all int32 without may be int32 and int64, which strict promotion finds. debug_nans looks at each operation
# outside of jit, and at the results alone inside. transfer_guard refuses x[0] and x + 1 outside of jit: jax.numpy moves
# the numbers to the device there.
MODES = {
    "promotion": (PROMOTION, True),
    "x64": ((functools.partial(jax.enable_x64, True), *PROMOTION), True),
    "tracers": ((jax.checking_leaks, functools.partial(jax.transfer_guard, "disallow")), True),
    "debug_nans": ((functools.partial(jax.debug_nans, True),), False),
}
# Functions with 64-bit results in x64, as their origins have them: sums of integers, and products with Python numbers.
WIDER = tuple(f"raggemm.compat.{x}" for x in ("megablox.make_group", "ejkernel.make_group", "maxtext.permute"))


def is_array(x) -> bool:
    return isinstance(x, np.ndarray | jax.Array)


class Program:
    """A call as a function of arrays on the device, in two dicts: those that it differentiates, and the others."""

    def __init__(self, call: Call):
        self.call = call
        leaves, self.tree = jax.tree.flatten(call.arguments)
        self.fixed = {i: x for i, x in enumerate(leaves) if not is_array(x)}
        arrays = {i: jnp.asarray(x) for i, x in enumerate(leaves) if is_array(x)}
        self.dotted = {i: x for i, x in arrays.items() if call.has_gradient and x.dtype in DIFFERENTIABLE}
        self.others = {i: x for i, x in arrays.items() if i not in self.dotted}

    def results(self, dotted, others):
        """Returns the results that have gradients, and all others."""
        given = self.fixed | others | dotted
        out = self.call.function(**jax.tree.unflatten(self.tree, [given[i] for i in range(len(given))]))
        leaves = dict(enumerate(jax.tree.leaves(out)))
        smooth = {i: x for i, x in leaves.items() if is_array(x) and dotted and x.dtype in DIFFERENTIABLE}
        return smooth, {i: x for i, x in leaves.items() if i not in smooth}

    def run(self, dotted, others):
        """Returns all results, and the gradients for cotangents without a pattern."""
        if not dotted:
            return self.results(dotted, others)
        out, pull, more = jax.vjp(lambda dotted: self.results(dotted, others), dotted, has_aux=True)
        cotangents = {i: np.cos(np.arange(x.size)).reshape(x.shape).astype(x.dtype) for i, x in out.items()}
        return out, more, pull(jax.tree.map(jnp.asarray, cotangents))

    def __call__(self, is_compiled):
        function = jax.jit(lambda *args: self.run(*args)) if is_compiled and self.call.is_compiled else self.run
        with self.call.around():
            return jax.tree.leaves(jax.block_until_ready(function(self.dotted, self.others)))


@functools.cache
def program_of(name):
    return Program(CALLS[name])


@functools.cache
def wanted(name, is_compiled):
    return program_of(name)(is_compiled)


def same_bits(got, want):
    if not is_array(want) or jnp.issubdtype(want.dtype, jax.dtypes.extended):
        assert got == want
        return
    assert (got.dtype, got.shape) == (want.dtype, want.shape)
    np.testing.assert_array_equal(*(np.asarray(x).reshape(-1).view(np.uint8) for x in (got, want)))


def pairs():
    """Returns the first call of each function with each mode, and its other calls with the modes in turn.

    The short run has the first calls of raggemm's own functions, in turn in each mode that compiles: debug_nans
    compiles every operation by itself."""
    first = [name for name in CALLS if name.endswith("-0")]
    others = [name for name in CALLS if name not in first]
    compiled = [mode for mode, (_, is_compiled) in MODES.items() if is_compiled]
    own = [name for name in first if name.count(".") == 1]
    short = {(name, compiled[i % len(compiled)]) for i, name in enumerate(own)} | {("raggemm.gmm-0", "debug_nans")}
    every = [(name, mode) for name in first for mode in MODES]
    every += [(name, list(MODES)[i % len(MODES)]) for i, name in enumerate(others)]
    return [pair if pair in short else pytest.param(*pair, marks=pytest.mark.slow) for pair in every]


@pytest.mark.parametrize(("name", "mode"), pairs())
def test_every_call_in_every_mode(name, mode):
    contexts, is_compiled = MODES[mode]
    want = wanted(name, is_compiled)
    with all_of(*contexts):
        got = program_of(name)(is_compiled)
    for x, y in zip(got, want, strict=True):
        same_bits(x.astype(y.dtype) if mode == "x64" and name.startswith(WIDER) else x, y)


def test_no_function_is_forgotten():
    assert set(PUBLIC) - NO_CALLS <= {name.rpartition("-")[0] for name in CALLS}
