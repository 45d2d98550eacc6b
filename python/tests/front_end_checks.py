import jax
import pytest


def check_errors(call, error, message):
    """Checks that call() raises `error` with a matching message, both when run eagerly and when traced."""
    for run in (call, lambda: jax.eval_shape(call)):
        with pytest.raises(error, match=message):
            run()
