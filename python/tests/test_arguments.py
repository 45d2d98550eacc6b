"""Programs of the package take their arguments before they work: help ends with 0, what is wrong with 2."""

import argparse
import os
import re
import sys

import pytest
from raggemm.expert_parallel import __main__ as expert_parallel
from raggemm_demo import __main__ as demo
from raggemm_demo import bench_jax
from raggemm_demo.checks import output_file

PROGRAMS = {"demo": demo, "bench_jax": bench_jax, "expert_parallel": expert_parallel}


@pytest.fixture(params=PROGRAMS)
def run(request, monkeypatch, capsys):
    """Runs a program with these arguments, to which it must not begin to work: its exit code, stdout and stderr."""
    program = PROGRAMS[request.param]

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", [request.param, *arguments])
        runs = {"demo": "run_shown", "expert_parallel": "_run_processes"}.get(request.param, "run")
        monkeypatch.setattr(program, runs, pytest.fail)
        with pytest.raises(SystemExit) as ended:
            program.main()
        return ended.value.code, *capsys.readouterr()

    run.has_json = request.param != "expert_parallel"
    return run


@pytest.mark.parametrize("flag", ["-h", "--help"])
def test_help(run, flag):
    code, out, err = run(flag)
    assert (code, err) == (0, "")
    words = ("./dev ", "--json FILE") if run.has_json else ("python -m raggemm.", "--processes PROCESSES")
    assert all(word in out for word in words)


def test_wrong_use(run):
    for argument in ("--foo", "more"):
        code, out, err = run(argument)
        assert (code, out) == (2, "") and argument in err


@pytest.mark.parametrize("run", ["demo", "bench_jax"], indirect=True)
def test_where_results_go_is_checked_first(run, tmp_path):
    code, out, err = run(f"--json={tmp_path}/nowhere/rows.json")
    assert (code, out) == (2, "")
    assert f"cannot write {tmp_path}/nowhere/rows.json: there is no folder {tmp_path}/nowhere" in err


def test_output_file(tmp_path, monkeypatch):
    made = tmp_path / "made.json"
    assert output_file(str(made)) == made and not made.exists()
    made.write_text("kept")
    assert output_file(str(made)) == made and made.read_text() == "kept"
    assert str(output_file("rows.json")) == "rows.json"
    wrong = [(tmp_path, "it is a folder"), (made / "below", "there is no folder"), (tmp_path / "new", "denied")]
    monkeypatch.setattr(os, "access", lambda path, mode: path != tmp_path)
    for path, why in wrong:
        with pytest.raises(argparse.ArgumentTypeError, match=f"^cannot write {re.escape(str(path))}: .*{why}"):
            output_file(str(path))
