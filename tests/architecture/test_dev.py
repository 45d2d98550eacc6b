"""dev takes its arguments as every program does: help goes to stdout and ends with 0, wrong use to stderr with 2."""

import shutil
import subprocess

import pytest

COMMANDS = ("setup", "build", "test", "fuzz", "demo", "driver", "checksums", "bench", "numerics", "wheel", "docs")
COMMANDS += ("fmt", "lint", "clean")

# A set-up that does nothing but say so, and programs that print their arguments; the benchmark's has a report where it
# is not asked for anything unknown.
SET_UP = """
prepare() { echo preparing; }
compile() { echo compiling; }
python_install() { echo installing; }
"""
PROGRAM = """#!/bin/sh
echo "${0##*/} $*"
case "$*" in
  *--foo*) exit 2 ;;
  -h | *--help*) exit 0 ;;
esac
[ "${0##*/}" != raggemm_bench ] || echo new >build/bench/report.json
"""


@pytest.fixture
def dev(root, tmp_path):
    """Runs a copy of dev, which can neither install nor remove anything: its exit code, stdout and stderr."""
    for path in ("dev", "python/wheel/wheel.sh", "tests/checkers.sh"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(root / path, tmp_path / path)
    text = (tmp_path / "dev").read_text()
    assert text.count("\ncommand=${1:-help}\n") == 1
    (tmp_path / "dev").write_text(text.replace("\ncommand=${1:-help}\n", f"\n{SET_UP}command=${{1:-help}}\n"))
    for path in ("build/release/bin/ffi_driver", "build/release/bin/raggemm_bench", ".venv/bin/python"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(PROGRAM)
        (tmp_path / path).chmod(0o755)

    def run(*arguments):
        done = subprocess.run([tmp_path / "dev", *arguments], capture_output=True, text=True, cwd=tmp_path, timeout=60)
        return done.returncode, done.stdout, done.stderr

    return run


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("flag", ["--help", "-h"])
def test_help_of_a_command(dev, command, flag):
    code, out, _ = dev(command, flag)
    assert (code, out.split()[0]) == (0, command)
    others = set(COMMANDS) - {command}
    assert not {line.split()[0] for line in out.splitlines() if line.startswith("  ") and line[2] != " "} & others


def test_help_of_a_command_sets_nothing_up_where_no_program_has_more(dev):
    assert dev("setup", "--help")[2] == ""
    code, out, err = dev("driver", "--help")
    assert (code, out.splitlines()[-1]) == (0, "ffi_driver --help") and "compiling" in err


@pytest.mark.parametrize("arguments", [(), ("help",), ("--help",), ("-h",)])
def test_help_names_every_command(dev, arguments):
    code, out, err = dev(*arguments)
    assert (code, err) == (0, "")
    assert [line.split()[0] for line in out.splitlines() if line.startswith("  ") and line[2] != " "].count("test") > 3
    assert {line.split()[0] for line in out.splitlines()} >= set(COMMANDS)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ("foo", "foo"),
        ("--foo", "--foo"),
        ("foo --help", "foo"),
        ("help more", "more"),
        ("test --wheel --foo", "--foo"),
        *((f"{command} --foo", "--foo") for command in ("setup", "checksums", "docs", "fmt", "lint", "wheel", "clean")),
        ("checksums --record more", "--record"),
        ("fuzz --foo", "--foo"),
        ("fuzz --minutes=1 2", "2"),
        ("fuzz --minutes=0", "--minutes=0"),
        ("fuzz --minutes=", "--minutes="),
        ("test --sanitize=memory", "--sanitize=memory"),
        ("test --soak more", "more"),
        ("test --sanitize=thread more", "more"),
        ("bench --peers more", "more"),
    ],
)
def test_wrong_use(dev, tmp_path, arguments, named):
    code, out, err = dev(*arguments.split())
    assert (code, out) == (2, "")
    assert err.startswith("dev: ") and named in err and len(err.splitlines()) == 1
    assert (tmp_path / "build" / "release").exists()


def test_the_output_of_a_command_is_its_own(dev):
    assert dev("driver", "--list") == (0, "ffi_driver --list\n", "preparing\ncompiling\ninstalling\n")


def test_a_run_that_measures_nothing_keeps_the_last_report(dev, tmp_path):
    report = tmp_path / "build" / "bench" / "report.json"
    report.parent.mkdir()
    for flag, code in (("--foo", 2), ("--help", 0)):
        report.write_text("last")
        assert dev("bench", flag)[0] == code
        assert report.read_text() == "last"
        assert "report.py" not in dev("bench", flag)[1]
    code, out, _ = dev("bench", "--quick")
    assert (code, report.read_text()) == (0, "new\n")
    assert out.splitlines()[0] == "raggemm_bench --quick" and "report.py" in out.splitlines()[1]
