"""Runs each form of ./dev test in a checkout that ran nothing before, with stubs for all tools and programs.

A form that needs a file, folder or program that only another form makes fails here within seconds.
"""

import os
import shutil
import subprocess

import pytest

FORMS = [
    "",
    "--full",
    "--wheel",
    "--origins",
    "--checkpoints",
    "--soak",
    "--valgrind",
    "--sanitize=address",
    "--sanitize=thread",
]
FORMS += ["--amx", "--aarch64", "--debian-13", "--headers", "--release checksums"]
TOOLS = ["apt-get", "cmake", "ctest", "debootstrap", "dpkg", "dpkg-query", "g++", "git", "ldd", "ninja"]
TOOLS += ["python", "qemu-aarch64-static", "strip", "unshare", "valgrind"]

# Stands for every tool and for every program that the build makes. It makes the files that the tool would make: cmake
# makes only the programs that it is asked for.
STUB = r"""#!/usr/bin/env bash
set -euo pipefail
after() { sed -n "s|.* $1[ =]\([^ ]*\).*|\1|p" <<<" $arguments"; }
arguments=$*
programs() {
  echo ffi_driver fuzz_{problems,attributes,frame,cases}
  echo {kernels,ffi,describe,bench,software_units}_test
  (cd "$CLONE/tests" && find -- ffi/load -name '*_test.cc' | sed 's|/|_|g; s|\.cc$||')
}
case "${0##*/} $*" in
  dpkg-query*) echo installed ;;
  dpkg*--print-foreign*) echo arm64 ;;
  ninja*--version) echo 1.11 ;;
  ldd*) echo /bin/sh ;;
  git\ ls-files*) printf 'dev\0' ;;
  debootstrap*)
    root=${*: -1}
    for file in usr/bin/busybox boot/vmlinuz-1 usr/lib/{ISOLINUX/isolinux.bin,syslinux/modules/bios/ldlinux.c32}; do
      install -D /dev/null "$root/$file"
    done
    ;;
  cmake*--build*)
    [[ $* == *--preset* ]] && tree=build/$(after --preset) || tree=$(after --build)
    mkdir -p "$tree"/{bin,lib}
    touch "$tree"/lib/libraggemm_{ffi,proto}.so
    [[ $* == *--target* && " $* " != *" all "* ]] && names=${arguments##*--target} || names=$(programs)
    for name in $names; do ln -sf "$STUB" "$tree/bin/$name"; done
    ;;
  cmake*--preset*) install -D /dev/null "build/$(after --preset)/build.ninja" ;;
  cmake*) mkdir -p "$(after -B)" ;;
  python*-m\ venv*)
    mkdir -p "${*: -1}/bin"
    for name in python auditwheel; do ln -sf "$STUB" "${*: -1}/bin/$name"; done
    ;;
  python*-m\ build*)
    mkdir -p "$(after --outdir)"
    touch "$(after --outdir)/raggemm-linux.whl"
    tar -czf "$(after --outdir)/raggemm.tar.gz" -C "$CLONE/.." "${CLONE##*/}/dev"
    ;;
  auditwheel*aarch64*) touch "$(after --wheel-dir)/raggemm_aarch64.whl" ;;
  auditwheel*) install -D /dev/null "$(after --wheel-dir)/raggemm_x86_64.whl" ;;
  python*pip\ download*) install -D /dev/null "$(after --dest)/jaxlib-1.whl" ;;
  python*-m\ zipfile*) mkdir -p "${*: -1}/jaxlib/include" ;;
  python\ -\ *) echo scalar ;;
  python*\(3,\ 12\)*) exit 1 ;;
  *--checksums*--dtype=f64*) echo sum ;;
esac
"""
# The functions that need a real root of Debian 13. The others run in it as they are.
IN_DEBIAN_13 = """
in_debian_13() {
  case $1 in
    test_source | apt-get | xorriso) ;;
    bash) touch "$amx/image/module/tiles.ko" ;;
    env) echo 'end: passed' >&3 ;;
    *) ("$@") ;;
  esac
}
"""


@pytest.mark.parametrize("form", FORMS)
def test_a_form_needs_no_other_before_it(root, tmp_path, form):
    clone, tools = tmp_path / "clone", tmp_path / "tools"
    shutil.copytree(root, clone, symlinks=True, ignore=shutil.ignore_patterns(".*", "build", "dist", "lib"))
    (clone / "proto/cases/checksums.txt").write_text("sum\n")
    dev = (clone / "dev").read_text()
    assert dev.count("\ncommand=") == 1
    (clone / "dev").write_text(dev.replace("\ncommand=", f"{IN_DEBIAN_13}\ncommand="))
    tools.mkdir()
    (tools / "stub").write_text(STUB)
    (tools / "stub").chmod(0o755)
    for tool in TOOLS:
        (tools / tool).symlink_to("stub")
    environment = os.environ | {
        "PATH": f"{tools}:{os.environ['PATH']}",
        "PYTHON": str(tools / "python"),
        "STUB": str(tools / "stub"),
        "CLONE": str(clone),
    }
    done = subprocess.run(
        [clone / "dev", "test", *form.split()],
        capture_output=True,
        text=True,
        env=environment,
        cwd=tmp_path,
        timeout=60,
    )
    assert "No such file" not in done.stdout + done.stderr
    assert done.returncode in (0, 77), done.stdout + done.stderr  # 77: not as root
