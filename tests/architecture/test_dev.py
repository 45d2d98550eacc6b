"""dev takes its arguments as every program does: help goes to stdout and ends with 0, wrong use to stderr with 2."""

import os
import re
import subprocess
import sys

import pytest

COMMANDS = ("setup", "build", "test", "mutants", "fuzz", "demo", "driver", "checksums", "bench", "numerics", "wheel")
COMMANDS += ("docs", "fmt", "lint", "clean")


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("flag", ["--help", "-h"])
def test_help_of_a_command(dev, command, flag):
    code, out, _ = dev(command, flag)
    assert (code, out.split()[0]) == (0, command)
    others = set(COMMANDS) - {command}
    assert not {line.split()[0] for line in out.splitlines() if line.startswith("  ") and line[2] != " "} & others


@pytest.mark.parametrize("arguments", [*((command, "--help") for command in COMMANDS), ("bench", "--quick", "-h")])
def test_help_sets_nothing_up(dev, help_files, arguments):
    code, out, err = dev(*arguments)
    assert (code, err) == (0, "")
    if arguments[0] in help_files:
        assert out.endswith(help_files[arguments[0]].read_text())
    assert "raggemm_bench -" not in out  # as the program would say that it was called


PROGRAMS = {
    "bench": ("{build}/bin/raggemm_bench",),
    "demo": (sys.executable, "-m", "raggemm_demo"),
    "driver": ("{build}/bin/ffi_driver",),
    "numerics": (sys.executable, "{root}/tests/numerics/numerics.py"),
}


@pytest.mark.parametrize("command", PROGRAMS)
def test_flags_in_the_help_are_those_of_the_program(root, build, help_files, command):
    """And what is said of them. Versions of Abseil and Python differ in line breaks, paths and last sentences."""
    program = [word.format(root=root, build=build) for word in PROGRAMS[command]]
    environment = os.environ | {"COLUMNS": "120", "PYTHONPATH": f"{root / 'python'}:{root / 'bench' / 'jax'}"}
    own = subprocess.run([*program, "--help"], capture_output=True, text=True, check=True, env=environment).stdout
    texts = [re.sub(r"\s+", " ", text) for text in (own, help_files[command].read_text())]
    if command in ("bench", "driver"):
        texts = [sorted(re.findall(r"--\w+ \(.*?\); default: [^;]*;", text)) for text in texts]
        assert len(texts[1]) > 4
    assert texts[0] == texts[1]


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
        ("test --wheel --share --foo", "--foo"),
        *((f"{command} --foo", "--foo") for command in ("setup", "checksums", "docs", "fmt", "lint", "wheel", "clean")),
        ("checksums --record more", "--record"),
        ("fuzz --foo", "--foo"),
        ("fuzz --minutes=1 2", "2"),
        ("fuzz --minutes=0", "--minutes=0"),
        ("fuzz --minutes=", "--minutes="),
        ("test --sanitize=memory", "--sanitize=memory"),
        ("test --soak more", "more"),
        ("test --sanitize=thread more", "more"),
        ("test --aarch64 more", "more"),
        ("test --amx more", "more"),
        ("test --debian-13 more", "more"),
        ("test --headers more", "more"),
        ("test --release more", "more"),
        ("test --release --resume default more", "more"),
        ("bench --peers more", "more"),
    ],
)
def test_wrong_use(dev, tmp_path, arguments, named):
    code, out, err = dev(*arguments.split())
    assert (code, out) == (2, "")
    assert err.startswith("dev: ") and named in err and len(err.splitlines()) == 1
    assert (tmp_path / "build" / "release").exists()


@pytest.fixture
def compiled(dev):
    """The targets that a command sets up."""

    def run(*arguments):
        return re.search("^compiling --target (.*)$", dev(*arguments)[2], re.M)[1].split()

    return run


def test_the_output_of_a_command_is_its_own(dev):
    prepared = "preparing\ncompiling --target raggemm_ffi ffi_driver\ninstalling\n"
    assert dev("driver", "--list")[:2] == (0, "ffi_driver --list\n")
    assert re.sub("^dev: .*\n", "", dev("driver", "--list")[2], flags=re.M) == prepared


@pytest.mark.parametrize(
    ("command", "targets"),
    [
        ("setup", ""),
        ("demo", ""),
        ("numerics", ""),
        ("driver --list", "ffi_driver"),
        ("bench --quick", "raggemm_bench"),
        ("test kernels_plan_test", ""),  # and then that one
        ("test python/tests", "all"),
        ("build", "all"),
    ],
)
def test_a_command_builds_what_it_needs(compiled, command, targets):
    """Tests and benchmarks are most of the build, and no user of the package waits for them."""
    assert compiled(*command.split()) == ["raggemm_ffi", *targets.split()]


def test_setup_says_what_is_ready(dev):
    code, out, _ = dev("setup")
    assert (code, out.count("\n")) == (0, 1) and "ready" in out and ".venv/bin/python" in out


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


def test_a_program_of_tests_that_is_none(dev):
    code, _, err = dev("test", "kernels_plam_test")
    assert (code, "there is no C++ test kernels_plam_test" in err) == (2, True)


def test_a_filter_that_selects_nothing(root):
    for flag, code, text in (("*Nothing*", 1, "no test is selected by --gtest_filter=*Nothing*"), ("*", 0, "PASSED")):
        command = [root / "dev", "test", "kernels_workspace_test", f"--gtest_filter={flag}"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert (done.returncode, text in done.stdout + done.stderr) == (code, True)
