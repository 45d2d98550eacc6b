"""Runs tests that need AMX on a Sapphire Rapids, emulated by the Bochs of Debian 13."""

import pathlib
import re
import shutil
import subprocess
import time

import checksums
import debian

ROOT = debian.CHECKOUT
BUILD, FOLDER, HERE = ROOT / "build/release", ROOT / "build/amx", ROOT / "tests/emulated"
PACKAGES = ("bochs", "bochs-term", "bochsbios", "busybox-static", "cpio", "isolinux", "linux-headers-cloud-amd64")
PACKAGES += ("linux-image-cloud-amd64", "lz4", "make", "syslinux-common", "xorriso")
ISAS = ("amx", "avx512_bf16", "avx512_vnni", "avx512")
MINUTES = 90  # time limit of a machine, by the host's clock


def read_excluded() -> list[list[str]]:
    lines = (HERE / "left_out.txt").read_text().splitlines()
    return [line.split(" ", 2) for line in lines if not line.startswith("#")]


def write_tasks(files: pathlib.Path) -> list[str]:
    rows = read_excluded()
    missing = [program for program, _, _ in rows if not (BUILD / "bin" / program).exists()]
    assert not missing, f"{HERE}/left_out.txt: {missing} do not exist"
    # No checksums are recorded for products of unsigned bytes, so scalar code computes them. Two cases with fractional
    # scales end with an error, and are left out.
    unsigned = [f"--cases={checksums.CASES}/edge.textproto", "--dtype=u8"]
    driver = [BUILD / "bin/ffi_driver", "--all", "--checksums", "--isa=scalar", *unsigned]
    found = subprocess.run(driver, stdout=subprocess.PIPE, text=True).stdout.splitlines()
    expected = checksums.recorded() + [line for line in found if "ERROR" not in line]
    isas = [
        f"{isa} " + "|".join(pattern.partition(":")[2] for _, pattern, _ in rows if re.match(rf"({isa}|\*):", pattern))
        for isa in ISAS
    ]
    programs = []
    for path in sorted((BUILD / "bin").glob("*_test")):
        patterns = [pattern for program, pattern, _ in rows if program == path.name]
        if "*" not in patterns:
            listed = subprocess.run([path, "--gtest_list_tests"], capture_output=True, text=True, check=True).stdout
            suites = dict.fromkeys(re.findall(r"^([\w/]+)\.", listed, re.MULTILINE))
            tests = [pattern for pattern in patterns if not pattern.endswith(".*") or "*" in pattern[:-2]]
            programs += [f"{path.name} {suite}.*-{':'.join(tests)}" for suite in suites if f"{suite}.*" not in patterns]
    texts = {
        "build": [str(BUILD)],
        "flags": [" ".join(run) for run in [*checksums.runs(), unsigned]],
        "checksums": expected,
        "isas": isas,
        "programs": programs,
    }
    for name, lines in texts.items():
        (files / name).write_text("\n".join(lines) + "\n")
    return list(dict.fromkeys(line.split()[0] for line in programs))


def make_image(root: debian.Root, image: pathlib.Path) -> None:
    """Makes the CD that the emulated machine boots. Programs and libraries of the build keep their paths on it."""
    shutil.rmtree(image, ignore_errors=True)
    files, boot, module = image / "root", image / "cd/isolinux", image / "module"
    for folder in (files / "bin", boot, module, *(files / (BUILD / name).relative_to("/") for name in ("bin", "lib"))):
        folder.mkdir(parents=True)
    shutil.copy(HERE / "tiles.c", module)
    (module / "Makefile").write_text("obj-m := tiles.o\n")
    headers = next((root.folder / "usr/src").glob("linux-headers-*-cloud-amd64")).relative_to(root.folder)
    root.run("make", "-C", f"/{headers}", f"M={module}", "modules")
    programs = write_tasks(files)
    shutil.copy(HERE / "guest.sh", files / "init")
    (files / "init").chmod(0o755)
    shutil.copy(module / "tiles.ko", files)
    shutil.copy(root.folder / "usr/bin/busybox", files / "bin")
    shutil.copy(shutil.which("chrt") or "chrt", files / "bin")
    shutil.copytree(ROOT / "proto/cases", files / (ROOT / "proto/cases").relative_to("/"))
    tested = [*(BUILD / "lib").glob("*.so"), *(BUILD / "bin" / name for name in ("ffi_driver", *programs))]
    copies = [pathlib.Path(shutil.copy(path, files / path.parent.relative_to("/"))) for path in tested]
    subprocess.run(["strip", "--strip-debug", *copies], check=True)
    for program in [files / "bin/chrt", *copies]:
        listed = subprocess.run(["ldd", program], capture_output=True, text=True).stdout
        for library in map(pathlib.Path, re.findall(r"(/[^ ]*) \(", listed)):
            copy = files / library.relative_to("/")
            if not library.is_relative_to(files) and not copy.exists():
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(library, copy)
    pack = "find . | cpio -o -H newc --quiet | lz4 -lq >../cd/isolinux/initrd"
    root.run("sh", "-euc", pack, folder=files)
    shutil.copy(next((root.folder / "boot").glob("vmlinuz-*")), boot / "vmlinuz")
    for path in (HERE / "isolinux.cfg", *(root.folder / "usr/lib" / name for name in BOOT)):
        shutil.copy(path, boot)
    options = "-quiet -b isolinux/isolinux.bin -c isolinux/boot.cat -no-emul-boot -boot-load-size 4 -boot-info-table"
    root.run("xorriso", "-as", "mkisofs", *options.split(), "-o", image / "boot.iso", image / "cd")
    shutil.copy(HERE / "bochsrc.txt", image)


BOOT = ("ISOLINUX/isolinux.bin", "syslinux/modules/bios/ldlinux.c32")


def boot(root: debian.Root, name: str, *options: str) -> subprocess.Popen:
    """Starts an emulated machine, in its own network namespace, because the display of Bochs listens on a port."""
    bochs = ["timeout", "-s", "KILL", f"{MINUTES}m", "unshare", "--net", "bochs", "-q", "-f", "bochsrc.txt", *options]
    # bochsrc.txt connects the serial port to file descriptor 3.
    shell = f'exec "$@" 3>"{FOLDER}/{name}.serial.log" >"{FOLDER}/{name}.bochs.log" 2>&1'
    return subprocess.Popen(root.entering("sh", "-c", shell, "sh", *bochs, folder=FOLDER / "image"))


def run(session) -> None:
    """Runs the tests on two emulated machines at the same time, because Bochs uses one thread.

    Bochs 3.0 is wrong for signed bytes on tiles: it multiplies them as unsigned. So the machine "others", which runs
    all test programs, lacks amx_int8. The machine "bytes" compares the checksums of AMX.
    """
    start = time.monotonic()
    root = debian.Root(session, FOLDER / "debian-13", *PACKAGES)
    make_image(root, FOLDER / "image")
    session.log("a Sapphire Rapids in Bochs; times are those of its clock")
    machines = [boot(root, "bytes"), boot(root, "others", 'cpu: exclude_features="amx_int8"')]
    for machine in machines:
        machine.wait()
    texts = [(FOLDER / f"{name}.serial.log").read_text(errors="replace") for name in ("bytes", "others")]
    print("\n".join(texts).replace("\r", ""))
    for row in read_excluded():
        session.log(f"NOT covered: {' '.join(row)}")
    ends = [re.findall(r"^end: (.*?)\r?$", text, re.MULTILINE) for text in texts]
    if ends != [["passed"], ["passed"]]:
        session.error(f"FAILED on AMX: {[end or 'no end' for end in ends]}, see {FOLDER}")
    session.log(f"{sum(text.count('passed: ') for text in texts)} passed in {(time.monotonic() - start) / 60:.0f} min")
