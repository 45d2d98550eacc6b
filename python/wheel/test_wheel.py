"""The installed wheel: what it is called, which shared libraries it loads, and that it comes from nowhere else."""

import ctypes
import importlib.metadata
import pathlib
import re
import sys

import jax
import pytest
import raggemm
from raggemm import _ffi

SITE = pathlib.Path(raggemm.__file__).parents[1]
# What manylinux finds everywhere; all else must come with the wheel.
SYSTEM = r"lib(c|m|dl|rt|pthread|stdc\+\+|gcc_s)\.so"


def test_is_installed_not_taken_from_a_checkout():
    assert SITE.is_relative_to(sys.prefix)
    assert not (SITE / "raggemm" / "lib").is_symlink()
    assert (SITE / "raggemm" / "py.typed").exists()


def test_name_and_version():
    distribution = importlib.metadata.distribution("raggemm")
    assert distribution.version == raggemm.__version__ == raggemm.version()
    tags = re.findall(r"^Tag: (.*)$", distribution.read_text("WHEEL") or "", re.MULTILINE)
    assert tags and all(re.fullmatch(r"py3-none-manylinux_2_\d+_x86_64", tag) for tag in tags), tags


def test_handlers_are_built_for_the_oldest_supported_runtime():
    assert _ffi._built_ffi_version(_ffi._library) == (0, 2)
    assert _ffi._runtime_ffi_version() >= (0, 2)


def test_every_shared_library_comes_with_the_wheel():
    raggemm.cases_json()
    mapped = {pathlib.Path(line.split()[-1]) for line in pathlib.Path("/proc/self/maps").read_text().splitlines()}
    own = {path.name for path in mapped if path.is_relative_to(SITE / "raggemm.libs")}
    assert any(re.fullmatch(r"libprotobuf-[0-9a-f]+\.so[.\d]*", name) for name in own), own
    assert any(re.fullmatch(r"libabsl_status-[0-9a-f]+\.so[.\d]*", name) for name in own), own
    foreign = [path for path in mapped if re.match(r"lib(protobuf|absl|raggemm)", path.name)]
    assert [path for path in foreign if not path.is_relative_to(SITE)] == []


def test_needs_nothing_but_itself_and_the_system():
    names = {path.name for folder in ("raggemm/lib", "raggemm.libs") for path in (SITE / folder).glob("*.so*")}
    needed = set()
    for folder in ("raggemm/lib", "raggemm.libs"):
        for path in (SITE / folder).glob("*.so*"):
            needed |= _needed(path)
    assert {"libraggemm_proto.so"} <= needed
    assert [name for name in needed - names if not re.match(SYSTEM, name) and not name.startswith("ld-linux")] == []


def _needed(path: pathlib.Path) -> set[str]:
    """The names of the bundled or system libraries that occur among the strings of a shared library."""
    return {name.decode() for name in re.findall(rb"\0(lib[\w+.-]+\.so[.\d]*)(?=\0)", path.read_bytes())} - {path.name}


@pytest.mark.parametrize("symbol", ["raggemm_version", "_ZN6google8protobuf7Message11GetTypeNameEv"])
def test_symbols_stay_out_of_the_global_scope(symbol):
    assert not hasattr(ctypes.CDLL(None), symbol)


def test_supported_jax():
    assert jax.__version_info__ >= (0, 8, 1)
