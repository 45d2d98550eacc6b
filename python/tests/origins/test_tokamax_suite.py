"""tokamax' own tests of ragged_dot, which its package has, with raggemm as the implementation; and that all it passes
to an implementation is an argument of ours. `./dev test --origins` runs this."""

import functools
import inspect
from unittest import mock

import chex
import jax.numpy as jnp
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
    passed = {}

    def spy(lhs, rhs, **named):
        passed.update(named)
        return jnp.zeros((4, 3))

    tokamax.ragged_dot(np.ones((4, 2)), np.ones((2, 2, 3)), np.array([1, 3]), implementation=[spy])
    ours = inspect.signature(ragged_dot).parameters
    named = {name for name, p in ours.items() if p.kind is inspect.Parameter.KEYWORD_ONLY}
    assert passed.keys() - named == set() and {"group_sizes", "activation"} <= passed.keys()
    assert {name for name, value in passed.items() if value is not None and value is not False} <= {
        "group_sizes",
        "ragged_dot_dimension_numbers",
    }
