"""The override of ragged_dot with a jax that it was not tested with: simulated, with parts of jax changed."""

import re
import subprocess
import sys

import jax
import pytest
from raggemm._primitive import jax_versions

pytestmark = pytest.mark.slow

NEWER = """
import sys, jax, numpy as np
jax.__version__, jax.__version_info__ = "0.99.0", (0, 99, 0)
from jax._src.lax import lax as private
from jax.interpreters import mlir
import raggemm
{change}
def run():
    return np.asarray(jax.jit(lambda *x: jax.lax.ragged_dot(*x))(*operands))

operands = np.ones((8, 4), "f4"), np.ones((2, 4, 3), "f4"), np.array([3, 4], "i4")
try:
    with raggemm.override_ragged_dot() as lowerings:
        run()
    print([lowering.by for lowering in lowerings])
except RuntimeError as error:
    print(error)
print(run()[:, 0].tolist())
"""
OWN = "private._ragged_dot_general_impl"
CHANGES = {
    "nothing": ("", r"\['raggemm'\]"),
    "precision": ("jax.config.update('jax_default_matmul_precision', 'BF16_BF16_F32')", r"\['jax'\]"),
    "gone": (f"del {OWN}", "raggemm's override of ragged_dot needs private parts of jax that jax 0.99.0 has not: .*"),
    "meaning": (
        f"own = {OWN}; {OWN} = lambda *x, **y: 2 * own(*x, **y)",
        "raggemm's override of ragged_dot was not tested with jax 0.99.0, and a trial failed: the lowering of "
        r"jax.lax.ragged_dot: the result is \[\[58.0, .*, must be \[\[29.0, .*",
    ),
    "registry": ("mlir.register_lowering = lambda *x, **y: None",
        ".* a trial failed: ragged_dot: lowered by jax, past the override, must be by raggemm"),
    "parameters": ("raggemm._jax_lax.override._PARAMETERS.remove('precision')",
        ".* a trial failed: ragged_dot: lowered by jax, must be by raggemm"),
    "products": (
        "take = raggemm._jax_lax.dimension_numbers.ragged_dot_general\n"
        "raggemm._jax_lax.dimension_numbers.ragged_dot_general = lambda *x, **y: take(*x, **y) + 1",
        r".* a trial failed: ragged_dot: the result is \[\[30.0, .*",
    ),
}  # fmt: skip


@pytest.mark.parametrize("change", CHANGES)
def test_a_jax_that_it_was_not_tested_with_is_tried(change):
    """It is on with a warning, or says what has changed; either way jax.lax' own products stay right."""
    code, said = CHANGES[change]
    done = subprocess.run([sys.executable, "-c", NEWER.format(change=code)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    first, own = done.stdout.splitlines()
    assert re.fullmatch(said, first)
    assert own == str([4.0] * 7 + [0.0])
    warned = "the override of ragged_dot was not tested with jax 0.99.0; a trial passed\n"
    assert (done.stderr == warned) == (change in ("nothing", "precision")), done.stderr


def test_versions_of_jax_that_it_was_tested_with(monkeypatch):
    for version, tested in {(0, 8, 0): 0, (0, 8, 1): 1, (0, 11, 2): 1, (0, 12, 0, 1): 1, (0, 13, 0): 0}.items():
        monkeypatch.setattr(jax, "__version_info__", version)
        assert jax_versions.override_was_tested() == bool(tested)
