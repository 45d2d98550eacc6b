"""Programs of the package take their arguments before they work: help ends with 0, what is wrong with 2."""

import sys

import pytest
from raggemm.expert_parallel import __main__ as expert_parallel
from raggemm_demo import __main__ as demo

PROGRAMS = {"demo": demo, "expert_parallel": expert_parallel}


@pytest.fixture(params=PROGRAMS)
def run(request, monkeypatch, capsys):
    """Runs a program with these arguments, to which it must not begin to work: its exit code, stdout and stderr."""
    program = PROGRAMS[request.param]

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", [request.param, *arguments])
        runs = {"demo": "run_model", "expert_parallel": "_run_processes"}[request.param]
        monkeypatch.setattr(program, runs, pytest.fail)
        with pytest.raises(SystemExit) as ended:
            program.main()
        return ended.value.code, *capsys.readouterr()

    run.is_demo = request.param == "demo"
    return run


@pytest.mark.parametrize("flag", ["-h", "--help"])
def test_help(run, flag):
    code, out, err = run(flag)
    assert (code, err) == (0, "")
    words = ("./dev ", "--long") if run.is_demo else ("python -m raggemm.", "--processes PROCESSES")
    assert all(word in out for word in words)


def test_wrong_use(run):
    for argument in ("--foo", "more"):
        code, out, err = run(argument)
        assert (code, out) == (2, "") and argument in err
