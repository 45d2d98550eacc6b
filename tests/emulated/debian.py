"""Makes chroots of Debian and runs programs in them.

As a program, `debian.py ROOT FOLDER COMMAND...` runs a command in FOLDER of the chroot ROOT. Root.entering starts this
program by `unshare --mount`.
"""

import os
import pathlib
import shutil
import subprocess
import sys

CHECKOUT = pathlib.Path(__file__).resolve().parents[2]
PYTHON = ("python3", "python3-venv")
# Files of this system that programs in a chroot need for network access.
FILES = ("etc/hosts", "etc/resolv.conf", "etc/pip.conf", "etc/ssl/certs/ca-certificates.crt")
ENVIRONMENT = {
    "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
    "PYTHON": "/usr/bin/python3",
    "DEBIAN_FRONTEND": "noninteractive",
}


class NotCovered(Exception):
    """Raised if a chroot cannot be made on this machine."""


class Root:
    """A chroot in `folder`, of Debian 13 by default. The constructor makes it with these packages.

    It does nothing if the chroot exists already. suite: Debian's name of the release, such as "trixie" or "testing".
    """

    def __init__(self, session, folder: pathlib.Path, *packages: str, suite: str = "trixie"):
        self.session, self.folder = session, folder
        if os.geteuid() != 0:
            raise NotCovered("only root can make a Debian chroot")
        if subprocess.run(["unshare", "--mount", "true"], stderr=subprocess.DEVNULL).returncode != 0:
            raise NotCovered("this system does not allow mounts of /proc, /dev and /sys in a Debian chroot")
        stamp, want = folder / ".complete", " ".join(packages)
        if stamp.exists() and stamp.read_text() == want:
            return
        shutil.rmtree(folder, ignore_errors=True)
        folder.parent.mkdir(parents=True, exist_ok=True)
        session.log(f"making a chroot of Debian {suite} in {folder} (a minute or two)")
        log = folder.with_suffix(".log")
        with open(log, "w") as out:
            make = ["debootstrap", "--variant=minbase", "--include=ca-certificates", suite, folder]
            done = subprocess.run(make, stdout=out, stderr=out)
            # A mirror's index of testing may be older than its date of expiry.
            apt_get = ["apt-get", "-o", "Acquire::Check-Valid-Until=false"]
            for arguments in (["update"], ["install", "-q", "-y", "--no-install-recommends", *packages]):
                if done.returncode == 0:
                    done = subprocess.run(self.entering(*apt_get, *arguments), stdout=out, stderr=out)
        if done.returncode != 0:
            raise NotCovered(f"debootstrap or apt-get failed, see {log}")
        stamp.write_text(want)

    def entering(self, *command, folder="/") -> list[str]:
        return ["unshare", "--mount", sys.executable, __file__, str(self.folder), str(folder), *map(str, command)]

    def run(self, *command, folder="/", **options) -> None:
        self.session.run(*self.entering(*command, folder=folder), external=True, **options)


def enter(root: pathlib.Path, folder: str, command: list[str]) -> None:
    """Runs a command in the chroot. unshare hides the chroot's mounts from other processes."""

    def mount(*arguments) -> None:
        subprocess.run(["mount", *map(str, arguments)], check=True)

    inside = root / CHECKOUT.relative_to("/")
    inside.mkdir(parents=True, exist_ok=True)
    mount("-t", "proc", "proc", root / "proc")
    mount("--rbind", "/dev", root / "dev")
    mount("--rbind", "/sys", root / "sys")
    mount("--bind", CHECKOUT, inside)
    for name in FILES:
        if pathlib.Path("/", name).is_file():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).touch()
            mount("--bind", f"/{name}", root / name)
    os.chroot(root)
    os.chdir(folder)
    os.execvpe(command[0], command, os.environ | ENVIRONMENT)


if __name__ == "__main__":
    enter(pathlib.Path(sys.argv[1]), sys.argv[2], sys.argv[3:])
