"""Set-up that must come before jax is imported, caches of programs, and a seed for every run's random tests."""

import ctypes
import functools
import gc
import os
import pathlib
import random

import xla_flags

os.environ["XLA_FLAGS"] = " ".join([os.environ.get("XLA_FLAGS", ""), *xla_flags.of_tests()])

import hypothesis
import jax
import numpy as np
import pytest
import raggemm
from jax._src import compiler, core
from jax._src.interpreters import mlir

hypothesis.settings.register_profile("raggemm", deadline=None, print_blob=True, database=None)
hypothesis.settings.load_profile("raggemm")


# JAX makes an MLIR context for each program that it lowers, and loads all dialects into it. That took 4 of the 12 ms of
# CPU of a small program (Zen 5), so all programs of a module share one.
mlir.make_ir_context = functools.lru_cache(maxsize=1)(mlir.make_ir_context)

# JAX looks for its own frames in each exception, which takes 2 ms (Zen 5). Tests of errors raise thousands.
jax.config.update("jax_traceback_filtering", "off")


def take_arrays_without_a_program():
    """Makes jax.numpy copy a NumPy array without a program for each shape. jax 0.10.2 compiles one: 10 ms (Zen 5)."""
    if (stage := getattr(core, "stage_p", None)) is None:
        return
    own = stage.impl

    def copied(x):
        has_mesh = not jax.sharding.get_abstract_mesh().empty
        return own(x) if has_mesh or not isinstance(x, np.ndarray) else jax.device_put(x, may_alias=False)

    stage.def_impl(copied)


take_arrays_without_a_program()


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config):
    if config.getoption("hypothesis_seed", None) is None:
        config.option.hypothesis_seed = str(random.randrange(2**32))
    # Programs outlive a run: a second run compiles little. XLA's flags and jaxlib's version are part of the key.
    jax.config.update("jax_compilation_cache_dir", str(config.rootpath / "build" / "jax_cache"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


def pytest_report_header(config):
    return f"random tests: --hypothesis-seed={config.option.hypothesis_seed}"


def clear_caches():
    """Drops all traces and programs, and gives free memory back to the system."""
    jax.clear_caches()
    mlir.make_ir_context.cache_clear()
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)


@pytest.fixture(scope="module", autouse=True)
def no_caches_of_other_modules():
    yield
    clear_caches()


@pytest.fixture(autouse=True)
def bounded_memory():
    """Drops programs if a worker is larger than 1 GB: workers grew to 4 GB."""
    yield
    pages = int(pathlib.Path("/proc/self/statm").read_text().split()[1])
    if pages * os.sysconf("SC_PAGESIZE") > 1 << 30:
        clear_caches()


@pytest.fixture(scope="module")
def emitters():
    """XLA with its emitters, without which jaxlib 0.10.2 rounds to float4_e2m1fn wrongly, in one file only."""
    if not xla_flags.knows(xla_flags.EMITTERS):  # always used by that jaxlib
        yield
        return
    own = compiler.get_compile_options
    jax.clear_caches()
    with pytest.MonkeyPatch.context() as patch:
        options = {"env_options_overrides": {xla_flags.EMITTERS: True}}
        patch.setattr(compiler, "get_compile_options", lambda *args, **named: own(*args, **(named | options)))
        yield


@pytest.fixture
def x64():
    """float64 and int64 arrays, in one test only."""
    with jax.enable_x64(True):
        yield


@pytest.fixture
def partitioning():
    """Calls that jax.jit may divide over devices, in one test only."""
    raggemm.enable_partitioning()
    yield
    raggemm.enable_partitioning(False)
