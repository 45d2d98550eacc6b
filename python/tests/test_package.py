import contextlib
import importlib
import pkgutil
import subprocess
import sys

import jax
import pytest
import raggemm
import raggemm.compat
from raggemm._src import library


def test_import_from_any_folder_starts_no_backend(tmp_path):
    code = "import raggemm, jax._src.xla_bridge as b; assert not b._backends; print(raggemm.__version__)"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == raggemm.version() == raggemm.__version__


@pytest.mark.slow
def test_import_after_the_backend_has_started(tmp_path):
    code = "import jax; jax.devices(); import raggemm, numpy as np; print(raggemm.gmm(np.ones((2, 3), 'f4'), "
    code += "np.ones((1, 3, 4), 'f4'), np.array([2])).sum())"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout.strip() == "24.0", done.stderr


def test_import_compares_the_versions_of_the_ffi(tmp_path, monkeypatch):
    built = library._built_ffi_version(library._library)
    monkeypatch.setattr(jax.ffi, "include_dir", lambda: str(tmp_path))
    assert library._runtime_ffi_version() is None
    header = tmp_path / "xla" / "ffi" / "api" / "c_api.h"
    header.parent.mkdir(parents=True)
    for major, minor, is_accepted in ((0, 0, False), (0, 99, True), (1, 99, False)):
        header.write_text(f"#define XLA_FFI_API_MAJOR {major}\n#define XLA_FFI_API_MINOR {minor}\n")
        message = rf"^raggemm: .*built for version 0\.[1-9]\d* of XLA's FFI, .* version {major}\.{minor}$"
        with contextlib.nullcontext() if is_accepted else pytest.raises(ImportError, match=message):
            library._check_ffi_version(built, library._runtime_ffi_version())


def test_import_chooses_the_newest_library_that_the_runtime_takes(tmp_path):
    names = {(0, 3): "libraggemm_ffi_0_3.so", (0, 10): "libraggemm_ffi_0_10.so", None: "libraggemm_ffi.so"}
    for name in names.values():
        (tmp_path / name).touch()
    expected = {(0, 2): None, (0, 3): (0, 3), (0, 9): (0, 3), (0, 10): (0, 10), (0, 11): (0, 10), (1, 3): None}
    for runtime, version in {**expected, None: None}.items():
        assert library._find_library(tmp_path, runtime) == tmp_path / names[version], runtime


def test_every_custom_call_of_the_library_is_registered():
    assert [call["name"] for call in library.tables()["calls"]] == list(map(library.call_name, library._TARGETS))


def test_public_names_are_documented():
    names = [module.name for module in pkgutil.walk_packages(raggemm.__path__, "raggemm.") if "._" not in module.name]
    compat_names = {f"raggemm.compat.{name}" for name in raggemm.compat.__all__}
    module_names = {f"raggemm.{name}" for name in ("compat", "expert_parallel", "nn", "ops", "override")}
    assert set(names) == module_names | compat_names
    for name in ("raggemm", *names):
        module = importlib.import_module(name)
        assert module.__doc__ and all(getattr(module, public).__doc__ for public in module.__all__), name


def test_workspace_is_linear_in_the_number_of_groups():
    for arrays in range(7):
        constant, per_group = library.workspace_coefficients(arrays)
        assert constant > 0
        assert per_group > 0
