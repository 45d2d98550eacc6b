"""What the architecture tests look at: the sources, and the build that ./dev makes of them."""

import pathlib

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
