"""python -m raggemm.override: a program that is not changed, as a file and as a module."""

import json
import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow

PROGRAM = """
import json, os, sys
os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=3"
import jax
import jax.numpy as jnp
import beside

args = jnp.ones((8, 64)), jnp.ones((4, 64, 32)), jnp.array([3, 0, 4, 1])
text = jax.jit(jax.lax.ragged_dot).lower(*args).as_text()
print(json.dumps([__name__, sys.argv[1:], os.path.basename(sys.argv[0]), jax.device_count(), "raggemm" in text]))
if __name__ == "__main__":
    sys.exit(beside.STATUS)
"""


@pytest.fixture
def program(tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "beside.py").write_text("STATUS = 7\n")
    (tmp_path / "elsewhere").mkdir()
    return tmp_path


def run(*arguments, cwd):
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, cwd=cwd, timeout=120)


@pytest.mark.parametrize(
    ("arguments", "folder"), [(["../program.py"], "elsewhere"), (["-m", "program"], ".")], ids=["file", "module"]
)
def test_the_program_runs_with_the_override(program, arguments, folder):
    for launcher, by_raggemm in (([], False), (["-m", "raggemm.override"], True)):
        done = run(*launcher, *arguments, "--steps", "-m", cwd=program / folder)
        assert done.returncode == 7, done.stderr
        assert json.loads(done.stdout) == ["__main__", ["--steps", "-m"], "program.py", 3, by_raggemm]


def test_an_error_of_the_program_is_its_own(program):
    (program / "program.py").write_text("raise KeyError('of the program')\n")
    done = run("-m", "raggemm.override", "program.py", cwd=program)
    assert done.returncode == 1 and done.stderr.endswith("KeyError: 'of the program'\n")
