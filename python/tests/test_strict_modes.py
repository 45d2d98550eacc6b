"""Tests that JAX's strict modes do not change the bits of any public function and its gradients."""

import contextlib
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from public_calls import CALLS, NO_CALLS, PUBLIC, Call

DIFFERENTIABLE = (np.float16, jnp.bfloat16, np.float32, np.float64)


@contextlib.contextmanager
def enter_all(*contexts):
    with contextlib.ExitStack() as stack:
        for context in contexts:
            stack.enter_context(context())
        yield


PROMOTION = (
    functools.partial(jax.numpy_dtype_promotion, "strict"),
    functools.partial(jax.numpy_rank_promotion, "raise"),
)
# {mode: (context managers that enable it, True if calls in it are compiled by jit)}
# - x64: with jax_enable_x64, strict promotion also finds operations that mix int32 and int64.
# - tracers: compiled, because outside of jit x[0] and x + 1 move numbers to the device. transfer_guard refuses this.
# - debug_nans: not compiled, because inside of jit JAX checks only the results for NaN.
MODES = {
    "promotion": (PROMOTION, True),
    "x64": ((functools.partial(jax.enable_x64, True), *PROMOTION), True),
    "tracers": ((jax.checking_leaks, functools.partial(jax.transfer_guard, "disallow")), True),
    "debug_nans": ((functools.partial(jax.debug_nans, True),), False),
}
# Prefixes of functions with 64-bit integer results under jax_enable_x64. The replaced functions also have them.
WIDER = tuple(f"raggemm.compat.{x}" for x in ("megablox.make_group", "ejkernel.make_group", "maxtext.permute"))


def is_array(x) -> bool:
    return isinstance(x, np.ndarray | jax.Array)


class Program:
    """A call of public_calls.py as a function of two dicts of arrays. Tests differentiate only by `primals`."""

    def __init__(self, call: Call):
        self.call = call
        leaves, self.tree = jax.tree.flatten(call.arguments)
        self.fixed = {i: x for i, x in enumerate(leaves) if not is_array(x)}
        arrays = {i: jnp.asarray(x) for i, x in enumerate(leaves) if is_array(x)}
        self.primals = {i: x for i, x in arrays.items() if call.has_gradient and x.dtype in DIFFERENTIABLE}
        self.others = {i: x for i, x in arrays.items() if i not in self.primals}

    def results(self, primals, others):
        """Returns the results that are differentiated, and the other results."""
        given = self.fixed | others | primals
        out = self.call.function(**jax.tree.unflatten(self.tree, [given[i] for i in range(len(given))]))
        leaves = dict(enumerate(jax.tree.leaves(out)))
        differentiable = {i: x for i, x in leaves.items() if is_array(x) and primals and x.dtype in DIFFERENTIABLE}
        return differentiable, {i: x for i, x in leaves.items() if i not in differentiable}

    def run(self, primals, others):
        """Returns the results, and the gradients of primals unless primals is empty."""
        if not primals:
            return self.results(primals, others)
        out, pull, other_results = jax.vjp(lambda primals: self.results(primals, others), primals, has_aux=True)
        cotangents = {i: np.cos(np.arange(x.size)).reshape(x.shape).astype(x.dtype) for i, x in out.items()}
        return out, other_results, pull(jax.tree.map(jnp.asarray, cotangents))

    def __call__(self, is_compiled):
        function = jax.jit(lambda *args: self.run(*args)) if is_compiled and self.call.is_compiled else self.run
        with self.call.around():
            return jax.tree.leaves(jax.block_until_ready(function(self.primals, self.others)))


@functools.cache
def program_of(name):
    return Program(CALLS[name])


@functools.cache
def expected_results(name, is_compiled):
    return program_of(name)(is_compiled)


def same_bits(got, want):
    if not is_array(want) or jnp.issubdtype(want.dtype, jax.dtypes.extended):
        assert got == want
        return
    assert (got.dtype, got.shape) == (want.dtype, want.shape)
    np.testing.assert_array_equal(*(np.asarray(x).reshape(-1).view(np.uint8) for x in (got, want)))


def call_and_mode_pairs():
    """Returns pairs of a call and a mode. A function's first call gets every mode. All other calls get one mode.

    `./dev test` runs only the first call of each function of the module raggemm, in one compiled mode. debug_nans is
    slow, so it gets one call of gmm.
    """
    first = [name for name in CALLS if name.endswith("-0")]
    others = [name for name in CALLS if name not in first]
    compiled = [mode for mode, (_, is_compiled) in MODES.items() if is_compiled]
    own_functions = [name for name in first if name.count(".") == 1]
    short_run = {(name, compiled[i % len(compiled)]) for i, name in enumerate(own_functions)} | {
        ("raggemm.gmm-0", "debug_nans")
    }
    all_pairs = [(name, mode) for name in first for mode in MODES]
    all_pairs += [(name, list(MODES)[i % len(MODES)]) for i, name in enumerate(others)]
    return [pair if pair in short_run else pytest.param(*pair, marks=pytest.mark.slow) for pair in all_pairs]


@pytest.mark.parametrize(("name", "mode"), call_and_mode_pairs())
def test_every_call_in_every_mode(name, mode):
    contexts, is_compiled = MODES[mode]
    want = expected_results(name, is_compiled)
    with enter_all(*contexts):
        got = program_of(name)(is_compiled)
    for x, y in zip(got, want, strict=True):
        same_bits(x.astype(y.dtype) if mode == "x64" and name.startswith(WIDER) else x, y)


def test_every_public_function_has_a_call():
    assert set(PUBLIC) - NO_CALLS <= {name.rpartition("-")[0] for name in CALLS}
