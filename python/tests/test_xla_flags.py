"""The tests set flags that the installed jaxlib knows, and no other."""

import os
import subprocess
import sys

import pytest
import xla_flags


def test_knows_what_jaxlib_knows():
    assert xla_flags.knows("xla_cpu_enable_fast_math")
    assert not xla_flags.knows("xla_no_such_flag")


def test_a_jaxlib_that_does_not_start_is_an_error(monkeypatch):
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(RuntimeError, match="does not start"):
        xla_flags.knows.__wrapped__("xla_cpu_enable_fast_math")


def test_jax_starts_with_the_flags_of_these_tests():
    """In a process of its own: this one would not be here to say so."""
    code = "import jax; print(jax.device_count('cpu'))"
    done = subprocess.run([sys.executable, "-c", code], env=os.environ.copy(), capture_output=True, text=True)
    assert done.stdout.strip() == "4", done.stderr
