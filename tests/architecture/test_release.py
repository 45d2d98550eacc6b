"""./dev test --release: every long form has a row, and the rows are run and reported as its help says."""

import json
import re
import subprocess

import pytest

ROWS = """
good 1 driver --good
bad 2 driver --foo
absent 3 driver --absent
last 4 driver --last
"""


def test_every_long_form_has_a_row(dev, tmp_path):
    """The flags of test that the help names, and the commands that test something."""
    helped = dev("test", "--help")[1]
    forms = {
        f"test {flag}"
        for flag in re.findall(r"^  test (--[a-z0-9-]+)|, test (--[a-z0-9-]+)", helped, re.M)
        for flag in flag
        if flag
    }
    assert len(forms) > 5
    (tmp_path / "rows").write_text(
        (tmp_path / "dev").read_text().replace("\ncommand=", "\nrelease_rows; exit\ncommand=")
    )
    done = subprocess.run(["bash", tmp_path / "rows"], capture_output=True, text=True, check=True)
    rows = [line.split(" ", 2) for line in done.stdout.splitlines()]
    assert all(minutes.isdigit() for _, minutes, _ in rows)
    assert len({name for name, _, _ in rows}) == len(rows)
    commands = [command for _, _, command in rows]
    assert "test" in commands
    for flag in ("--sanitize=address", "--sanitize=thread"):
        assert f"test {flag}" in commands
    has_row = {re.match(r"test --[a-z0-9-]+|[a-z]+", command)[0] for command in commands}
    assert has_row == {"test", "mutants", "fuzz", "lint", "docs", "checksums"} | forms - {"test --release"}


@pytest.fixture
def release(dev, tmp_path):
    """Runs test --release with ROWS: exit code, the table's lines by name, what was run."""
    text = (tmp_path / "dev").read_text()
    rows = f"release_rows() {{ printf '%s\\n' {' '.join(repr(row) for row in ROWS.split(chr(10)) if row)}; }}"
    (tmp_path / "dev").write_text(text.replace("\ncommand=${1:-help}\n", f"\n{rows}\ncommand=${{1:-help}}\n"))
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "-C", tmp_path]
    for arguments in (["init", "-q"], ["add", "dev"], ["commit", "-qm", "first"]):
        subprocess.run([*git, *arguments], check=True)

    def run(*arguments):
        code, out, err = dev("test", "--release", *arguments)
        table = out.partition("\nrow ")[2].splitlines()[1:]
        lines = {line.split()[0]: line for line in table if line and not line.startswith("dev: ")}
        return code, lines, re.findall(r"^dev: (\w+) \(about", out, re.M), out.splitlines()[-1] + err

    return run


def test_goes_on_after_a_failure_and_reports_all(release, tmp_path):
    code, lines, run, end = release()
    assert (code, run) == (1, ["good", "bad", "absent", "last"])
    results = ["passed", r"FAILED \(2\), see build/release-test/bad\.log", "not run: what is absent", "passed"]
    for (name, line), result in zip(lines.items(), results, strict=True):
        assert re.fullmatch(rf"{name} +[\d.]+  \./dev driver --\w+ +{result}", line)
    assert "release FAILED: bad; 2 passed; NOT run: absent" in end
    assert "ffi_driver --foo" in (tmp_path / "build" / "release-test" / "bad.log").read_text()


def test_runs_some_alone(release):
    code, lines, run, end = release("last", "absent")
    assert (code, run) == (0, ["absent", "last"])
    assert "not asked for" in lines["good"] and "passed" in lines["last"]
    assert end == "dev: release: OK, 1 passed; NOT run: absent"


def test_resumes_on_the_same_commit_alone(release, tmp_path):
    release("good", "bad")
    code, lines, run, _ = release("--resume")
    assert (code, run) == (1, ["bad", "absent", "last"])
    assert "passed before" in lines["good"]
    assert release("--resume", "last", "good")[2] == []
    with open(tmp_path / "dev", "a") as file:
        file.write("# a change\n")
    assert release("--resume", "last", "good")[2] == ["good", "last"]


@pytest.fixture
def wheel_tests(root):
    """The files of tests that the wheel shall pass, by version of jax, shared or not."""

    def run(shared):
        program = f"""root={root} && . "$root/python/wheel/wheel.sh"
            for version in "${{wheel_versions[@]}}" "$(newest_jax)"; do wheel_tests "$version" {shared}; echo; done"""
        done = subprocess.run(["bash", "-euc", program], capture_output=True, text=True, check=True)
        return [set(files.split()) for files in done.stdout.split("\n\n")[:-1]]

    return run


def test_versions_of_jax_share_the_tests_of_the_wheel(root, wheel_tests):
    """Of five: all of them see each test with the oldest and the newest, and once between these."""
    every = {f"tests/{path.name}" for path in (root / "python" / "tests").glob("test_*.py")}
    assert wheel_tests("no") == [every] * 5
    oldest, one, other, of_venv, newest = wheel_tests("yes")
    assert oldest == newest == every == one | other
    assert not one & other and abs(len(one) - len(other)) < 2
    assert of_venv < every and "tests/test_package.py" in of_venv


def test_what_has_threads_runs_under_tsan(root):
    """The tests that its preset leaves out by name have one thread, where there is no OpenMP."""
    (preset,) = (
        p for p in json.loads((root / "CMakePresets.json").read_text())["testPresets"] if p["name"] == "thread"
    )
    left_out = re.search(r"\^kernels_\((.*)\)_test", preset["filter"]["exclude"]["name"])[1].split("|")
    for name in left_out:
        folder = root / "tests" / "kernels"
        sources = [folder / f"{name}_test.cc", *(folder / name).glob("*.cc")]
        text = "".join(path.read_text() for path in sources)
        assert not re.search(r"\b(TaskPool|task_pools|ThreadPool|thread|kPool)\b", text), name
