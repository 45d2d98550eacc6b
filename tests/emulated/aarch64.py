"""Tests the library for aarch64 on an x86-64 host. Debian's cross compiler builds it, and qemu runs it."""

import pathlib
import re
import shutil
import subprocess

import checksums

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD, FOLDER = ROOT / "build/aarch64", ROOT / "build/aarch64-python"
CPUS = ("max", "neoverse-n1", "cortex-a72")
# {regular expression for names of C++ tests that do not run under qemu: reason}
EXCLUDED = {
    "DeathTest": "qemu cannot start a program again",
    "^AdviseHugePages": "qemu does not pass madvise to the kernel",
    "^PlanChoicesTest": "tests/kernels/plan_choices.txt has the plans of x86",
    "ThreadFailures": "qemu does not work with the resource limits of this test",
    "^Soak": "qemu uses more memory with each new thread",
}
# Python tests that run under qemu, in ten minutes.
PYTHON_TESTS = (
    "test_package.py",
    "test_modes.py -k every_pattern",
    "test_override.py",
    "test_moe_mlp.py",
    "test_quantized_gemm.py",
)
# Packages of python/requirements.txt that these tests need.
REQUIREMENTS = "jax jaxlib numpy scipy ml_dtypes opt_einsum flatbuffers hypothesis sortedcontainers pytest iniconfig"
REQUIREMENTS += " packaging pluggy Pygments"
SCRIPT = """#!/bin/sh
export PYTHONHOME={0}/system/usr PYTHONPATH={0}/site
exec qemu-aarch64-static -cpu max -0 "$0" {0}/system/usr/bin/python3.11 "$@"
"""


def make_python(session, python: pathlib.Path, wheel: pathlib.Path) -> None:
    shutil.rmtree(FOLDER, ignore_errors=True)
    (FOLDER / "system").mkdir(parents=True)
    packages = ("python3.11-minimal:arm64", "libpython3.11-minimal:arm64", "libpython3.11-stdlib:arm64")
    subprocess.run(["apt-get", "download", "-q", *packages], check=True, cwd=FOLDER)
    for package in FOLDER.glob("*.deb"):
        subprocess.run(["dpkg", "-x", package, FOLDER / "system"], check=True)
    names = REQUIREMENTS.split()
    lines = (ROOT / "python/requirements.txt").read_text().splitlines()
    (FOLDER / "requirements.txt").write_text("\n".join(line for line in lines if line.partition("==")[0] in names))
    tags = [f"manylinux_2_{version}" for version in (35, 28, 27, 24, 17)] + ["manylinux2014"]
    command = f"{python} -m pip install --quiet --no-deps --only-binary=:all: --python-version 3.11".split()
    command += [f"--platform={tag}_aarch64" for tag in tags]
    session.run(*command, "--target", f"{FOLDER}/site", "-r", f"{FOLDER}/requirements.txt", str(wheel), external=True)
    # The script that runs Python in qemu is called python, so that tests can start it again.
    (FOLDER / "python").write_text(SCRIPT.format(FOLDER))
    (FOLDER / "python").chmod(0o755)


def run_python_tests(session, steps) -> None:
    run = FOLDER / "run"
    shutil.rmtree(run, ignore_errors=True)
    shutil.copytree(ROOT / "python/tests", run / "tests")
    with session.chdir(run / "tests"):
        for row in PYTHON_TESTS:
            command = [f"{FOLDER}/python", "-m", "pytest", "-q", "--rootdir=..", "-p", "no:cacheprovider", *row.split()]
            steps.run(row, *command, env={"RAGGEMM_TESTS_SLOWER": "10"})


def run_cpp_tests(session, steps, python: pathlib.Path) -> None:
    session.run("cmake", "--preset", "aarch64", silent=True)
    session.run("cmake", "--build", "--preset", "aarch64")
    steps.run("counted", str(python), "tests/emulated/counted.py", f"{BUILD}/kernels/CMakeFiles/raggemm.dir/isa")
    for cpu in CPUS:
        with steps.step(f"checksums as {cpu}"):
            differing = checksums.differences(["qemu-aarch64-static", "-cpu", cpu, f"{BUILD}/bin/ffi_driver"])
            assert not differing, "\n".join(differing)
    excluded = "|".join(EXCLUDED)
    assert all(re.compile(pattern) for pattern in EXCLUDED)
    steps.run("ctest", "ctest", "--preset", "aarch64", "-E", excluded, env={"RAGGEMM_TESTS_SLOWER": "10"})
    # Computes about 2,100 problems on two cores of Zen 4.
    fuzz = ["qemu-aarch64-static", "-cpu", "max", f"{BUILD}/bin/fuzz_problems", "--seconds=180"]
    steps.run("random problems", *fuzz)
    for pattern, reason in EXCLUDED.items():
        session.log(f"NOT covered under qemu: {pattern}: {reason}")
