"""What the architecture tests look at: the sources, the build that ./dev makes of them, a copy of dev."""

import pathlib
import shutil
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def root() -> pathlib.Path:
    """The checkout."""
    return ROOT


@pytest.fixture(scope="session")
def build() -> pathlib.Path:
    """The build tree of ./dev."""
    path = ROOT / "build" / "release"
    if not (path / "build.ninja").exists():
        pytest.fail(f"no build in {path}; run ./dev build first")
    return path


SOURCED = (
    "cmake/setup.sh",
    "python/wheel/wheel.sh",
    "python/tests/origins/origins.sh",
    "tests/aarch64/aarch64.sh",
    "tests/amx/amx.sh",
    "tests/checkers.sh",
    "tests/release.sh",
)
# What dev prints as the help of the programs behind these commands.
HELP = {
    "bench": "bench/help.txt",
    "demo": "bench/jax/raggemm_demo/help.txt",
    "driver": "tests/host/help.txt",
    "numerics": "tests/numerics/help.txt",
}
# A set-up that does nothing but say so, and programs that print their arguments; the benchmark's has a report where it
# is not asked for anything unknown.
SET_UP = """
prepare() { echo preparing; }
compile() { echo "compiling $*"; }
python_install() { echo installing; }
"""
PROGRAM = """#!/bin/sh
echo "${0##*/} $*"
case "$*" in
  *--foo*) exit 2 ;;
  *--absent*) echo "dev: NOT covered: what is absent" && exit 77 ;;
  -h | *--help*) exit 0 ;;
esac
[ "${0##*/}" != raggemm_bench ] || echo new >build/bench/report.json
"""


@pytest.fixture(scope="session")
def help_files(root) -> dict[str, pathlib.Path]:
    """By command of dev: the help of the program behind it."""
    return {command: root / path for command, path in HELP.items()}


@pytest.fixture
def dev(root, tmp_path):
    """Runs a copy of dev, which can neither install nor remove anything: its exit code, stdout and stderr."""
    for path in ("dev", "python/requirements.txt", *SOURCED, *HELP.values()):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(root / path, tmp_path / path)
    text = (tmp_path / "dev").read_text()
    assert text.count("\ncommand=${1:-help}\n") == 1
    (tmp_path / "dev").write_text(text.replace("\ncommand=${1:-help}\n", f"\n{SET_UP}command=${{1:-help}}\n"))
    for path in ("build/release/bin/ffi_driver", "build/release/bin/raggemm_bench", ".venv/bin/python"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(PROGRAM)
        (tmp_path / path).chmod(0o755)

    def run(*arguments):
        done = subprocess.run([tmp_path / "dev", *arguments], capture_output=True, text=True, cwd=tmp_path, timeout=60)
        return done.returncode, done.stdout, done.stderr

    return run
