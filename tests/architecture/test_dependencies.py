"""DEPENDENCIES.md names what ./dev installs, in the versions that it pins, each with a licence."""

import pathlib
import re

import pytest

PINNED = [
    "bench/peers/requirements.txt",
    "python/docs/requirements.txt",
    "python/requirements.txt",
    "python/tests/tokamax/requirements.txt",
    "python/wheel/neighbours.txt",
    "python/wheel/tools.txt",
]


@pytest.fixture(scope="module")
def listed(root: pathlib.Path) -> dict[str, tuple[str, str]]:
    """(versions, licence) of each package."""
    lines = (root / "DEPENDENCIES.md").read_text().splitlines()
    rows = [[field.strip() for field in line.strip("|").split("|")] for line in lines if line.startswith("|")]
    return {name: (" ".join(versions), licence) for name, *versions, licence, _ in rows}


def test_every_file_that_pins_is_known(root):
    # build and .venv hold files of others
    found = [path for folder in ("bench", "python") for path in (root / folder).rglob("*.txt")]
    pins = {str(path.relative_to(root)) for path in found if re.search(r"^\S+==\S+$", path.read_text(), re.MULTILINE)}
    assert pins == set(PINNED)


@pytest.mark.parametrize("file", PINNED)
def test_python_packages_are_listed(root, listed, file):
    pins = re.findall(r"^([^#\s=]+)==([^\s;]+)(?:; .*)?$", (root / file).read_text(), re.MULTILINE)
    assert pins
    for name, version in pins:
        assert name in listed, f"{name} {version} of {file}"
        assert version in re.split(r",? ", listed[name][0]), name
        assert listed[name][1], name


def test_debian_packages_are_listed(root, listed):
    text = "".join((root / file).read_text() for file in ("dev", "python/wheel/wheel.sh", "tests/checkers.sh"))
    packages = [name for found in re.findall(r"_packages=\(([^)]*)\)", text) for name in found.split()]
    packages += [
        name for found in re.findall(r"debian_packages ([a-z][^\n\"$]*)$", text, re.M) for name in found.split()
    ]
    assert {"cmake", "clang-tidy", "python3-venv"} <= set(packages)
    for name in packages:
        assert listed.get(name, ("", ""))[1], name
