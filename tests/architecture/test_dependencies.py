"""DEPENDENCIES.md names what ./dev installs, each with a licence, and nothing else."""

import pathlib
import re

PINNED = [
    "bench/mlp/requirements.txt",
    "bench/peers/requirements.txt",
    "docs/requirements.txt",
    "python/requirements.txt",
    "python/tests/checkpoints/requirements.txt",
    "python/tests/origins/requirements.txt",
    "python/wheel/neighbours.txt",
    "python/wheel/tools.txt",
]


def _rows(root: pathlib.Path, title: str) -> list[list[str]]:
    """The fields of the table below a heading."""
    _, _, section = (root / "DEPENDENCIES.md").read_text().partition(f"\n## {title}\n")
    rows = [line for line in section.partition("\n## ")[0].splitlines() if line.startswith("|")]
    return [[field.strip() for field in line.strip("|").split("|")] for line in rows[2:]]


def test_every_file_that_pins_is_known(root):
    # build and .venv hold files of others
    found = [path for folder in ("bench", "docs", "python") for path in (root / folder).rglob("*.txt")]
    pins = {str(path.relative_to(root)) for path in found if re.search(r"^\S+==\S+$", path.read_text(), re.MULTILINE)}
    assert pins == set(PINNED)


def test_python_packages_are_listed(root):
    pinned = {
        name
        for file in PINNED
        for name in re.findall(r"^([^#\s=]+)==[^\s;]+(?:; .*)?$", (root / file).read_text(), re.MULTILINE)
    }
    listed = [name for licence, names in _rows(root, "Python packages") if licence for name in names.split(", ")]
    assert sorted(listed) == sorted(pinned)


def test_debian_packages_are_listed(root):
    dev = (root / "dev").read_text()
    text = dev + "".join((root / file).read_text() for file in re.findall(r'^\. "\$root/(\S+)"$', dev, re.M))
    packages = [name for found in re.findall(r"_packages=\(([^)]*)\)", text) for name in found.split()]
    packages += [
        name for found in re.findall(r"debian_packages ([a-z][^\n\"$]*)$", text, re.M) for name in found.split()
    ]
    assert {"cmake", "clang-tidy", "python3-venv"} <= set(packages)
    listed = {name: licence for name, *_, licence, _ in _rows(root, "Debian packages") if licence}
    assert sorted(set(packages)) == sorted(listed)
