import jax
import pytest


def check_errors(call, error, message):
    """Checks that a call without arguments raises this error, both eagerly and when it is only traced."""
    for run in (call, lambda: jax.eval_shape(call)):
        with pytest.raises(error, match=message):
            run()
