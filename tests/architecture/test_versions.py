"""Versions that agree: the oldest jax that is asked for, built with and tested; raggemm's own, which stands once."""

import re
import tomllib

import pytest


@pytest.fixture(scope="module")
def pyproject(root) -> dict:
    return tomllib.loads((root / "pyproject.toml").read_text())


@pytest.fixture(scope="module")
def tested(root) -> list[str]:
    """The versions of jax that the wheel is tested with, in the order of wheel.sh."""
    (line,) = re.findall(
        r"^wheel_versions=\((.*)\)$", (root / "python" / "wheel" / "wheel.sh").read_text(), re.MULTILINE
    )
    return line.split()


def test_the_wheel_is_built_with_the_oldest_jax_that_is_asked_for_and_tested(tested, pyproject):
    (oldest,) = (d.removeprefix("jax>=") for d in pyproject["project"]["dependencies"] if d.startswith("jax>="))
    assert tested[0] == oldest
    assert {f"jax=={oldest}", f"jaxlib=={oldest}"} <= set(pyproject["build-system"]["requires"])


def test_the_newest_jax_of_the_wheel_is_the_one_that_all_else_is_tested_with(root, tested):
    pinned = re.findall(r"^jax(?:lib)?==(.*)$", (root / "python" / "requirements.txt").read_text(), re.MULTILINE)
    assert pinned == [tested[-1]] * 2


def test_own_version_stands_in_one_file(root, pyproject):
    assert pyproject["project"]["dynamic"] == ["version"]
    version = re.search(r"project\(raggemm VERSION ([\d.]+)", (root / "CMakeLists.txt").read_text())
    assert version
    sources = [f for folder in ("python/raggemm", "ffi", "include") for f in (root / folder).rglob("*") if f.is_file()]
    texts = {f: f.read_text() for f in sources if f.suffix in (".py", ".h", ".cc", ".txt")}
    # As an example of what version() looks like it may stand in a comment or a docstring.
    wrong = [str(f) for f, text in texts.items() if re.search(rf'=\s*"{re.escape(version[1])}"', text)]
    assert wrong == []
