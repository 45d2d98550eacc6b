"""A check for the tests of several front ends."""

import jax
import pytest


def check_errors(call, error, message):
    """Checks that the call raises an error when tracing, with and without jit."""
    for run in (call, lambda: jax.eval_shape(call)):
        with pytest.raises(error, match=message):
            run()
