import ctypes
import functools
import gc
import os
import pathlib
import random

import xla_flags

os.environ["XLA_FLAGS"] = " ".join([os.environ.get("XLA_FLAGS", ""), *xla_flags.flags_for_tests()])

import hypothesis
import jax
import numpy as np
import pytest
import raggemm
from jax._src import compiler, core
from jax._src.interpreters import mlir

hypothesis.settings.register_profile("raggemm", deadline=None, print_blob=True, database=None)
hypothesis.settings.load_profile("raggemm")


# Shares one MLIR context among the programs of a test module. A context for each program took 4 of the 12 ms of CPU
# time of a small program (Zen 5).
mlir.make_ir_context = functools.lru_cache(maxsize=1)(mlir.make_ir_context)

# Keeps JAX's frames in tracebacks. Removing them takes 2 ms for each of thousands of errors (Zen 5).
jax.config.update("jax_traceback_filtering", "off")


def stage_arrays_without_compiling():
    """Makes jax.numpy copy NumPy arrays by device_put.

    Otherwise, jax 0.10.2 compiles a program for each shape. This takes 10 ms (Zen 5).
    """
    if (stage := getattr(core, "stage_p", None)) is None:
        return
    original = stage.impl

    def copy(x):
        has_mesh = not jax.sharding.get_abstract_mesh().empty
        return original(x) if has_mesh or not isinstance(x, np.ndarray) else jax.device_put(x, may_alias=False)

    stage.def_impl(copy)


stage_arrays_without_compiling()


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config):
    if config.getoption("hypothesis_seed", None) is None:
        config.option.hypothesis_seed = str(random.randrange(2**32))
    # Keeps compiled programs on disk for later runs. Their keys include XLA's flags and jaxlib's version.
    jax.config.update("jax_compilation_cache_dir", str(config.rootpath / "build" / "jax_cache"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


def pytest_report_header(config):
    return f"random tests: --hypothesis-seed={config.option.hypothesis_seed}"


def clear_caches():
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
    """Clears caches of programs if the process uses more than 1 GiB. Otherwise, processes grew to 4 GB."""
    yield
    pages = int(pathlib.Path("/proc/self/statm").read_text().split()[1])
    if pages * os.sysconf("SC_PAGESIZE") > 1 << 30:
        clear_caches()


@pytest.fixture(scope="module")
def emitters():
    """Enables XLA's fusion emitters for a test module. Without them jaxlib 0.10.2 rounds float4_e2m1fn incorrectly."""
    if not xla_flags.knows(xla_flags.EMITTERS):  # jaxlib always uses emitters if it does not know this flag.
        yield
        return
    original = compiler.get_compile_options
    jax.clear_caches()
    with pytest.MonkeyPatch.context() as patch:
        options = {"env_options_overrides": {xla_flags.EMITTERS: True}}
        patch.setattr(compiler, "get_compile_options", lambda *args, **named: original(*args, **(named | options)))
        yield


@pytest.fixture
def x64():
    with jax.enable_x64(True):
        yield


@pytest.fixture
def partitioning():
    raggemm.enable_partitioning()
    yield
    raggemm.enable_partitioning(False)
