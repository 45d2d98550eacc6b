"""Tests the installed wheel's name, version, shared libraries and licences."""

import ctypes
import importlib.metadata
import pathlib
import re
import sys

import pytest
import raggemm
from raggemm._src import library

SITE = pathlib.Path(raggemm.__file__).parents[1]


def test_is_installed_not_taken_from_a_checkout():
    assert SITE.is_relative_to(sys.prefix)
    assert not (SITE / "raggemm" / "lib").is_symlink()
    assert (SITE / "raggemm" / "py.typed").exists()


def test_name_and_version():
    distribution = importlib.metadata.distribution("raggemm")
    assert distribution.version == raggemm.__version__ == raggemm.version()
    tags = re.findall(r"^Tag: (.*)$", distribution.read_text("WHEEL") or "", re.MULTILINE)
    assert tags and all(re.fullmatch(r"py3-none-manylinux_2_\d+_x86_64", tag) for tag in tags), tags


def test_loads_the_newest_handlers_that_the_runtime_takes():
    runtime, folder = library._runtime_ffi_version(), SITE / "raggemm" / "lib"
    newest = max(map(library._built_ffi_version, map(library._load, folder.glob("libraggemm_ffi*.so"))))
    assert library._built_ffi_version(library._load(folder / "libraggemm_ffi.so")) == (0, 2)
    assert newest > (0, 2)
    expected = newest if newest <= runtime else (0, 2)
    assert library._built_ffi_version(library._library) == expected


def test_every_shared_library_comes_with_the_wheel():
    raggemm.describe()
    mapped = {pathlib.Path(line.split()[-1]) for line in pathlib.Path("/proc/self/maps").read_text().splitlines()}
    own = {path.name for path in mapped if path.is_relative_to(SITE / "raggemm.libs")}
    assert any(re.fullmatch(r"libprotobuf-[0-9a-f]+\.so[.\d]*", name) for name in own), own
    assert any(re.fullmatch(r"libabsl_status-[0-9a-f]+\.so[.\d]*", name) for name in own), own
    foreign = [path for path in mapped if re.match(r"lib(protobuf|absl|gomp|raggemm)", path.name)]
    assert [path for path in foreign if not path.is_relative_to(SITE)] == []


def test_licences_of_the_bundled_libraries_are_in_it():
    licences = {path.stem: path.read_text() for path in (SITE / "raggemm" / "licences").glob("*.txt")}
    assert licences.keys() == {"libabsl-dev", "libgomp1", "libprotobuf-dev"}
    assert "Apache" in licences["libabsl-dev"] and "Google" in licences["libprotobuf-dev"]


@pytest.mark.parametrize("symbol", ["raggemm_version", "_ZN6google8protobuf7Message11GetTypeNameEv"])
def test_symbols_stay_out_of_the_global_scope(symbol):
    assert not hasattr(ctypes.CDLL(None), symbol)
