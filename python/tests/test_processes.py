import json
import re
import subprocess
import sys
import threading

import jax
import pytest
from raggemm._src import versions

pytestmark = pytest.mark.slow

PROGRAM = """
import contextlib, os, sys
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=4"
import jax, numpy as np, raggemm
from jax.sharding import AxisType, PartitionSpec

def shard(x, w, sizes):
    out = raggemm.gmm(x, w, sizes[0])
    return out, jax.lax.psum(out.sum(), "d")

mesh, spec = jax.make_mesh((4,), ("d",), axis_types=(AxisType.Auto,)), PartitionSpec("d")
specs = {"in_specs": (spec, PartitionSpec(), spec), "out_specs": (spec, PartitionSpec())}
sizes = np.array([[3, 5], [4, 4], [1, 9], [8, 0]], np.int32)  # each device has 8 rows
with raggemm.options(on_error="nan") if "nan" in sys.argv else contextlib.nullcontext():
    call = jax.jit(jax.shard_map(shard, mesh=mesh, **specs))
    out, total = call(np.ones((32, 16), np.float32), np.ones((2, 16, 4), np.float32), sizes)
print([bool(np.isnan(part).all()) for part in np.split(np.asarray(out), 4)], bool(np.isnan(total)))
print([float(part.max()) for part in np.split(np.asarray(out), 4)])
"""
MESSAGE = re.compile(r"^raggemm: .*group 1 has size 9", re.MULTILINE)


def test_with_nan_the_program_continues():
    done = subprocess.run([sys.executable, "-c", PROGRAM, "nan"], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["[False, False, True, False] True", "[16.0, 16.0, nan, 16.0]"]
    assert len(MESSAGE.findall(done.stderr)) == 1


@pytest.mark.parametrize("seconds", [60])
def test_by_default_the_message_precedes_xlas_timeout(seconds):
    """raggemm prints its message at once. XLA (jaxlib 0.10.2) warns after 20 s and exits after 60 s."""
    with subprocess.Popen([sys.executable, "-c", PROGRAM], stderr=subprocess.PIPE, text=True) as process:
        watchdog = threading.Timer(seconds, process.kill)
        watchdog.start()
        try:
            other_lines = []
            for line in process.stderr:
                if MESSAGE.match(line):
                    break
                other_lines.append(line)
            else:
                pytest.fail("no message of raggemm:\n" + "".join(other_lines))
            assert process.poll() is None
            assert not re.search("rendezvous|stuck|waiting", "".join(other_lines), re.IGNORECASE)
        finally:
            watchdog.cancel()
            process.kill()


LAUNCHER_PROGRAM = """
import json, os, sys
os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=3"
import jax
import jax.numpy as jnp
import sibling

args = jnp.ones((8, 64)), jnp.ones((4, 64, 32)), jnp.array([3, 0, 4, 1])
text = jax.jit(jax.lax.ragged_dot).lower(*args).as_text()
print(json.dumps([__name__, sys.argv[1:], os.path.basename(sys.argv[0]), jax.device_count(), "raggemm" in text]))
if __name__ == "__main__":
    sys.exit(sibling.STATUS)
"""


@pytest.fixture
def program(tmp_path):
    (tmp_path / "program.py").write_text(LAUNCHER_PROGRAM)
    (tmp_path / "sibling.py").write_text("STATUS = 7\n")
    (tmp_path / "elsewhere").mkdir()
    return tmp_path


def run(*arguments, cwd):
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, cwd=cwd, timeout=120)


@pytest.mark.parametrize(
    ("arguments", "folder"), [(["../program.py"], "elsewhere"), (["-m", "program"], ".")], ids=["file", "module"]
)
def test_the_program_runs_with_the_override(program, arguments, folder):
    for launcher, is_overridden in (([], False), (["-m", "raggemm.override"], True)):
        done = run(*launcher, *arguments, "--steps", "-m", cwd=program / folder)
        assert done.returncode == 7, done.stderr
        assert json.loads(done.stdout) == ["__main__", ["--steps", "-m"], "program.py", 3, is_overridden]


def test_an_error_of_the_program_is_raised_unchanged(program):
    (program / "program.py").write_text("raise KeyError('of the program')\n")
    done = run("-m", "raggemm.override", "program.py", cwd=program)
    assert done.returncode == 1 and done.stderr.endswith("KeyError: 'of the program'\n")


UNTESTED_JAX = """
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
    "gone": (f"del {OWN}", "raggemm's override of ragged_dot needs private parts of jax that jax 0.99.0 lacks: .*"),
    "meaning": (
        f"own = {OWN}; {OWN} = lambda *x, **y: 2 * own(*x, **y)",
        "raggemm's override of ragged_dot was not tested with jax 0.99.0, and a trial failed: the lowering of "
        r"jax.lax.ragged_dot: the result is \[\[58.0, .*, must be \[\[29.0, .*",
    ),
    "registry": ("mlir.register_lowering = lambda *x, **y: None",
        ".* a trial failed: ragged_dot: lowered by jax, past the override, must be by raggemm"),
    "parameters": ("raggemm._src.override._PARAMETERS.remove('precision')",
        ".* a trial failed: ragged_dot: lowered by jax, must be by raggemm"),
    "products": (
        "take = raggemm._src.dimension_numbers.ragged_dot_general\n"
        "raggemm._src.dimension_numbers.ragged_dot_general = lambda *x, **y: take(*x, **y) + 1",
        r".* a trial failed: ragged_dot: the result is \[\[30.0, .*",
    ),
}  # fmt: skip


@pytest.mark.parametrize("change", CHANGES)
def test_the_override_is_tried_with_an_untested_jax(change):
    """Enabling the override runs trial products. A failed trial is an error. If all pass, a warning is printed."""
    code, message = CHANGES[change]
    done = subprocess.run([sys.executable, "-c", UNTESTED_JAX.format(change=code)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    first, own = done.stdout.splitlines()
    assert re.fullmatch(message, first)
    assert own == str([4.0] * 7 + [0.0])
    warning = "the override of ragged_dot was not tested with jax 0.99.0; a trial passed\n"
    assert (done.stderr == warning) == (change in ("nothing", "precision")), done.stderr


def test_tested_versions_of_jax(monkeypatch):
    for version, tested in {(0, 8, 0): 0, (0, 8, 1): 1, (0, 11, 2): 1, (0, 12, 0, 1): 1, (0, 13, 0): 0}.items():
        monkeypatch.setattr(jax, "__version_info__", version)
        assert versions.override_was_tested() == bool(tested)
