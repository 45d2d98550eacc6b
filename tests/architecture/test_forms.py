"""The commands of ./dev: wrong use ends with 2 and says what is allowed; each form sets up what its session reads."""

import re
import subprocess

import pytest

# What a session reads, and the set-up in dev that makes it.
MADE_BY = {
    r"\bBUILD\b|\bDRIVER\b|\bFUZZ\b|isas\(|amx\.run": "setup",
    r"debian\.Root\(|debian_13\(|amx\.run": "roots",
    r"aarch64\.run": "aarch64",
    r"build_sanitized\(|sanitized\(": "sanitizers",
}


def run(root, *arguments):
    done = subprocess.run([root / "dev", *arguments], capture_output=True, text=True, timeout=20)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        "nosuch",
        "setup x",
        "test --full x",
        "test --wheel x",
        "test --headers x",
        "test --release x",
        "fuzz --minutes=0",
    ],
)
def test_wrong_use_ends_with_2_and_names_it(root, arguments):
    code, text = run(root, *arguments.split())
    assert code == 2
    assert arguments.split()[-1] in text and ("must be" in text or "help" in text)


@pytest.mark.slow
def test_every_command_has_help(root):
    _, usage = run(root, "help")
    commands = set(re.findall(r"^  (\w+)", usage, re.MULTILINE))
    assert commands >= {"setup", "build", "test", "fuzz", "bench", "lint"}
    for command in commands:
        code, text = run(root, command, "--help")
        assert code == 0 and text.startswith(f"  {command}")


def test_a_form_needs_no_other_before_it(root):
    """A session that reads the build, a root or a cross compiler is set up with it by its own form."""
    sessions = dict(re.findall(r'^@form\("([\w-]+)".*?\)\ndef \w+\((.*?)(?=^\S)', noxfile(root), re.MULTILINE | re.S))
    cases = (root / "dev").read_text().partition("test_form() {")[2].partition("\n}\n")[0]
    for form in ("full", "wheel", "origins", "soak", "amx", "aarch64", "debian-13"):
        set_up = " ".join(re.findall(rf"^ +(?:[\w| -]+\| )?{form}(?: \|[\w| -]+)?\) (.*);;$", cases, re.MULTILINE))
        for read, needed in MADE_BY.items():
            assert not re.search(read, sessions[form]) or needed in set_up, (form, needed)


def noxfile(root) -> str:
    return (root / "noxfile.py").read_text()
