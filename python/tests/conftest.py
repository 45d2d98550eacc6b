"""Set-up that must come before jax is imported, and a seed for every run's random tests."""

import os
import random

# XLA's own kernels are compiled without optimization: all tests take 239 s instead of 285.
os.environ["XLA_FLAGS"] = " ".join(
    [os.environ.get("XLA_FLAGS", ""), "--xla_force_host_platform_device_count=4", "--xla_backend_optimization_level=0"]
)

import hypothesis
import jax
import pytest

hypothesis.settings.register_profile("raggemm", deadline=None, print_blob=True, database=None)
hypothesis.settings.load_profile("raggemm")


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config):
    if config.getoption("hypothesis_seed", None) is None:
        config.option.hypothesis_seed = str(random.randrange(2**32))


def pytest_report_header(config):
    return f"random tests: --hypothesis-seed={config.option.hypothesis_seed}"


@pytest.fixture
def x64():
    """float64 and int64 arrays, in one test only."""
    with jax.enable_x64(True):
        yield
