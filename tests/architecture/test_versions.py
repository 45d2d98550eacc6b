"""Versions that must agree: the oldest jax that is asked for, built with and tested; raggemm's own, which stands once."""

import re
import tomllib

import pytest


@pytest.fixture(scope="module")
def pyproject(root) -> dict:
    return tomllib.loads((root / "pyproject.toml").read_text())


def test_the_wheel_is_built_with_the_oldest_jax_that_is_asked_for_and_tested(root, pyproject):
    (oldest,) = (d.removeprefix("jax>=") for d in pyproject["project"]["dependencies"] if d.startswith("jax>="))
    tested = re.search(r"^wheel_versions=\((.*)\)$", (root / "python" / "wheel" / "wheel.sh").read_text(), re.MULTILINE)
    assert tested and tested[1].split()[0] == oldest
    assert {f"jax=={oldest}", f"jaxlib=={oldest}"} <= set(pyproject["build-system"]["requires"])


def test_the_newest_jax_of_the_wheel_is_the_one_that_all_else_is_tested_with(root):
    tested = re.search(r"^wheel_versions=\((.*)\)$", (root / "python" / "wheel" / "wheel.sh").read_text(), re.MULTILINE)
    pinned = re.findall(r"^jax(?:lib)?==(.*)$", (root / "python" / "requirements.txt").read_text(), re.MULTILINE)
    assert tested and pinned == [tested[1].split()[-1]] * 2


def test_own_version_stands_in_one_file(root, pyproject):
    assert pyproject["project"]["dynamic"] == ["version"]
    version = re.search(r"project\(raggemm VERSION ([\d.]+)", (root / "CMakeLists.txt").read_text())
    assert version
    sources = [f for folder in ("python/raggemm", "ffi", "include") for f in (root / folder).rglob("*") if f.is_file()]
    texts = {f: f.read_text() for f in sources if f.suffix in (".py", ".h", ".cc", ".txt")}
    # As an example of what version() looks like it may stand in a comment or a docstring.
    wrong = [str(f) for f, text in texts.items() if re.search(rf'=\s*"{re.escape(version[1])}"', text)]
    assert wrong == []
