"""A check that the tests of front ends share."""

import jax
import pytest


def check_errors(call, error, message):
    """The error comes when tracing, with or without jit."""
    for run in (call, lambda: jax.eval_shape(call)):
        with pytest.raises(error, match=message):
            run()
