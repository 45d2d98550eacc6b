"""Versions that agree: the oldest jax that is asked for, built with and tested; raggemm's own, which stands once."""

import importlib.metadata
import re
import sys
import tomllib

import pytest


@pytest.fixture(scope="module")
def pyproject(root) -> dict:
    return tomllib.loads((root / "pyproject.toml").read_text())


@pytest.fixture(scope="module")
def tested(root) -> list[str]:
    """The versions of jax that the wheel is tested with on the oldest Python, in the order of wheel.sh."""
    (line,) = re.findall(
        r"^wheel_versions=\((.*)\)$", (root / "python" / "wheel" / "wheel.sh").read_text(), re.MULTILINE
    )
    return line.split()


@pytest.fixture(scope="module")
def pinned(root) -> dict[str, list[str]]:
    """By condition on Python's version: jax and jaxlib of .venv."""
    versions: dict[str, list[str]] = {}
    for version, condition in re.findall(
        r"^jax(?:lib)?==(\S+); python_version (.*)$", (root / "python" / "requirements.txt").read_text(), re.MULTILINE
    ):
        versions.setdefault(condition, []).append(version)
    return versions


def test_the_wheel_is_built_with_the_oldest_jax_that_is_asked_for_and_tested(tested, pyproject):
    (oldest,) = (d.removeprefix("jax>=") for d in pyproject["project"]["dependencies"] if d.startswith("jax>="))
    assert tested[0] == oldest
    assert {f"jax=={oldest}", f"jaxlib=={oldest}"} <= set(pyproject["build-system"]["requires"])


def test_the_newest_jax_of_the_wheel_is_the_one_that_all_else_is_tested_with(pinned, tested):
    assert pinned.keys() == {'< "3.12"', '>= "3.12"'}
    assert pinned['< "3.12"'] == [tested[-1]] * 2
    assert len(set(pinned['>= "3.12"'])) == 1


def test_the_installed_jax_is_the_pinned_one(pinned):
    want = pinned['< "3.12"' if sys.version_info < (3, 12) else '>= "3.12"'][0]
    assert [importlib.metadata.version(name) for name in ("jax", "jaxlib")] == [want] * 2


def test_pages_and_metadata_name_the_tested_versions(root, pyproject, pinned, tested):
    newest = pinned['>= "3.12"'][0]
    limits = re.sub(r"\s+", " ", (root / "docs/limits.md").read_text())
    assert f"jax and jaxlib {', '.join(tested)} on Python 3.11 (g++ 12)" in limits
    assert f"{newest} on Python 3.13 (g++ 14)" in limits
    classifiers = pyproject["project"]["classifiers"]
    assert re.findall(r"Python :: (3\.\d+)", " ".join(classifiers)) == ["3.11", "3.13"]
    assert pyproject["project"]["requires-python"] == ">=3.11"


def test_warnings_are_errors_only_where_ci_asks_for_it(root, build):
    (default,) = re.findall(r"option\(RAGGEMM_WARNINGS_AS_ERRORS .* (\S+)\)", (root / "CMakeLists.txt").read_text())
    assert default == "OFF"
    cache = (build / "CMakeCache.txt").read_text()
    (configured,) = re.findall(r"^RAGGEMM_WARNINGS_AS_ERRORS:\w+=(\w+)$", cache, re.MULTILINE)
    commands = (build / "compile_commands.json").read_text()
    assert (" -Werror " in commands) == (configured == "ON")


def test_own_version_stands_in_one_file(root, pyproject):
    assert pyproject["project"]["dynamic"] == ["version"]
    version = re.search(r"project\(raggemm VERSION ([\d.]+)", (root / "CMakeLists.txt").read_text())
    assert version
    sources = [f for folder in ("python/raggemm", "ffi", "include") for f in (root / folder).rglob("*") if f.is_file()]
    texts = {f: f.read_text() for f in sources if f.suffix in (".py", ".h", ".cc", ".txt")}
    # As an example of what version() looks like it may stand in a comment or a docstring.
    wrong = [str(f) for f, text in texts.items() if re.search(rf'=\s*"{re.escape(version[1])}"', text)]
    assert wrong == []
