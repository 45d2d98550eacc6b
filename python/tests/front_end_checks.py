import jax
import pytest


def check_errors(call, error, message):
    """Checks that call() raises `error` with a matching message, both when it runs eagerly and when JAX traces it."""
    for run in (call, lambda: jax.eval_shape(call)):
        with pytest.raises(error, match=message):
            run()
