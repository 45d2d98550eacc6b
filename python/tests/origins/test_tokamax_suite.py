"""Runs tokamax' own tests of ragged_dot with raggemm as the implementation."""

import functools
import inspect
from unittest import mock

import chex
import numpy as np
import tokamax
from absl import flags
from raggemm.compat.tokamax import ragged_dot
from tokamax._src.ops.ragged_dot import test_base

flags.FLAGS.mark_as_parsed()  # Keeps tokamax from parsing pytest's command line as its flags.


class TestRaggedDot(test_base.RaggedDotTestBase):
    def __init__(self, *args):
        super().__init__(*args, dot_fn=functools.partial(tokamax.ragged_dot, implementation=[ragged_dot]))

    def setUp(self):
        """Allows errors of 1e-6 in tests that need the bits of jax.lax, as tokamax does for its kernels."""
        super().setUp()
        close = functools.partial(chex.assert_trees_all_close, atol=1e-6)
        self.enter_context(mock.patch.object(chex, "assert_trees_all_close", close))


def test_raggemm_takes_the_arguments_of_an_implementation():
    """tokamax passes an implementation only the arguments that a call sets, so the test sets all of them."""
    passed = set()

    def spy(lhs, rhs, **named):
        passed.update(named)

    theirs = inspect.signature(tokamax.ragged_dot).parameters
    not_passed_on = {"lhs", "rhs", "group_sizes", "implementation", "bypass_device_check"}
    if "zero_initialize" not in theirs:  # tokamax 0.0.12 refuses group_offset
        not_passed_on.add("group_offset")
    options = {name: object() for name in theirs if name not in not_passed_on}
    tokamax.ragged_dot(np.ones((4, 2)), np.ones((2, 2, 3)), np.array([1, 3]), implementation=[spy], **options)
    ours = inspect.signature(ragged_dot).parameters.values()
    assert passed - {p.name for p in ours if p.kind is inspect.Parameter.KEYWORD_ONLY} == set()
    assert {"group_sizes", "activation"} <= passed
