"""tokamax' own tests of ragged_dot, which its package has, with raggemm as the implementation; and that all it passes
to an implementation is an argument of ours. `./dev test --origins` runs this."""

import functools
import inspect
from unittest import mock

import chex
import numpy as np
import tokamax
from absl import flags
from raggemm.compat.tokamax import ragged_dot
from tokamax._src.ops.ragged_dot import test_base

flags.FLAGS.mark_as_parsed()  # tokamax would parse pytest's command line


class TestRaggedDot(test_base.RaggedDotTestBase):
    """Through tokamax.ragged_dot, so that its arguments take the way that they take in a program."""

    def __init__(self, *args):
        super().__init__(*args, dot_fn=functools.partial(tokamax.ragged_dot, implementation=[ragged_dot]))

    def setUp(self):
        """Allows 1e-6 where a test allows no difference from jax.lax.ragged_dot, as for tokamax' own kernels."""
        super().setUp()
        close = functools.partial(chex.assert_trees_all_close, atol=1e-6)
        self.enter_context(mock.patch.object(chex, "assert_trees_all_close", close))


def test_arguments_of_an_implementation_are_ours():
    """All that tokamax passes on, where every argument is set: by default it leaves some out."""
    passed = set()

    def spy(lhs, rhs, **named):
        passed.update(named)

    theirs = inspect.signature(tokamax.ragged_dot).parameters
    own = {"lhs", "rhs", "group_sizes", "implementation", "bypass_device_check"}
    if "zero_initialize" not in theirs:  # as in tokamax 0.0.12, which refuses the other one
        own.add("group_offset")
    options = {name: object() for name in theirs if name not in own}
    tokamax.ragged_dot(np.ones((4, 2)), np.ones((2, 2, 3)), np.array([1, 3]), implementation=[spy], **options)
    ours = inspect.signature(ragged_dot).parameters.values()
    assert passed - {p.name for p in ours if p.kind is inspect.Parameter.KEYWORD_ONLY} == set()
    assert {"group_sizes", "activation"} <= passed
