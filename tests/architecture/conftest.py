"""Fixtures: the folders of the checkout and of the build tree."""

import pathlib

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def root() -> pathlib.Path:
    return ROOT


@pytest.fixture(scope="session")
def build() -> pathlib.Path:
    """Returns the folder build/release. Fails the test if it has no build."""
    path = ROOT / "build" / "release"
    if not (path / "build.ninja").exists():
        pytest.fail(f"no build in {path}; run ./dev build first")
    return path
