"""./dev mutants: which faults a source may have, how they are planted and chosen, and what its arguments are."""

import itertools
import pathlib
import random
import re
import subprocess
import sys

import cpp_tests
import faults
import mutants
import planted
import pytest

CPP = """// A file.
#pragma once
constexpr int kLimit = 64;
template <int kSize = 3>
int Sum(const Pair& pair, int count) {
  int sum = pair.first;
  static_assert(kLimit == 64);
  for (int i = 0; i < count; ++i) sum += pair.second;
  if (!pair.empty && count > 2) {
    Put(sum, count);
    sum = std::max<int>(sum, count);
  }
  return count != 0 ? sum : 0;
}
"""
PYTHON = '''"""A module."""

import numpy as np


def total(values: list[int], *, first: int = 0) -> int:
    """The sum of 3 values."""
    if first < 0 or not values:
        raise ValueError("wrong")
    check(values, first)
    return values[first] + sum(values[1:], start=first)
'''


def _changes(tmp_path, name, text):
    (tmp_path / name).write_text(text)
    return {fault.change for fault in faults.faults_of(tmp_path, name)}


def test_faults_of_cpp(tmp_path):
    found = _changes(tmp_path, "a.cc", CPP)
    for change in (
        *(
            "i < count  ->  i <= count",
            "i < count  ->  i >= count",
            "count > 2  ->  count >= 2",
            "2  ->  3",
            "64  ->  63",
        ),
        *("pair.first  ->  pair.second", "!pair.empty  ->  pair.empty", "sum += pair.second;  ->  left out"),
        *("Put(sum, count);  ->  left out", "Put(sum, count)  ->  Put(count, sum)", "count != 0 ? sum : 0  ->  sum"),
        "!pair.empty && count > 2  ->  !pair.empty || count > 2",
    ):
        assert change in found
    assert not any(re.search(r"kSize|kLimit ==|^3|pragma|<int>.count", change) for change in found)


def test_what_changes_speed_alone_is_never_wrong(tmp_path):
    (tmp_path / "kernels" / "isa").mkdir(parents=True)
    source = """inline void FetchLine(Prefetch& prefetch) { prefetch.line += 64; }
int Gemm(Prefetch& prefetch, int k) {
  FetchDue<int>(prefetch, 2 * k);
  asm("" : "+v"(k));
  return k + 3;
}
struct Rows {
  int first = 7, last = Last(8);
};
"""
    found = _changes(tmp_path, "kernels/isa/a.h", source)
    assert found == {"k + 3  ->  k - 3", "k + 3  ->  k", "k + 3  ->  3", "3  ->  4", "3  ->  2", "8  ->  9", "8  ->  7"}
    assert "prefetch.line += 64;  ->  left out" in _changes(tmp_path, "a.h", source)


def test_faults_of_python(tmp_path):
    found = _changes(tmp_path, "a.py", PYTHON)
    for change in (
        *("first < 0  ->  first <= 0", "0  ->  1", "not values  ->  values", "check(values, first)  ->  left out"),
        *("check(values, first)  ->  check(first, values)", 'raise ValueError("wrong")  ->  left out'),
        "first < 0 or not values  ->  first < 0 and not values",
    ):
        assert change in found
    assert not any(re.search(r"^3|import|A module", change) for change in found)


def test_planted_python_computes_what_is_chosen(tmp_path):
    """Each by itself; without one all is as it was."""
    source = "import os\nprint(sum(range(1, 4)), 7 // 2, os.sep)\n"
    (tmp_path / "a.py").write_text(source)
    drawn = {
        n: f
        for n, f in enumerate(faults.faults_of(tmp_path, "a.py"), 1)
        if f.change in ("range(1, 4)  ->  range(4, 1)", "7 // 2  ->  7 * 2")
    }
    text = planted.planted(tmp_path, "a.py", drawn).decode()
    assert text.count("\n") == source.count("\n")
    (tmp_path / "b.py").write_text(text)
    outputs = {}
    for chosen in (0, *drawn):
        environment = {"MUTANT": str(chosen), "PYTHONPATH": str(pathlib.Path(__file__).parent)}
        outputs[chosen] = subprocess.check_output([sys.executable, tmp_path / "b.py"], env=environment, text=True)
    one, two = drawn
    assert outputs == {0: "6 3 /\n", one: "0 3 /\n", two: "6 14 /\n"}


def test_planted_cpp_computes_what_is_chosen(tmp_path):
    """Constants and functions of constant expressions among them; what static_assert sees stays right."""
    here = pathlib.Path(__file__).parent
    source = """#include <cstdio>
constexpr int kTen = 10;
constexpr int Twice(int x) { return x * 2; }
static_assert(Twice(3) == 6);
int main(int argc, char**) {
  int x = argc - 1;
  x += kTen;
  std::printf("%d %d\\n", x, Twice(argc + 2));
}
"""
    (tmp_path / "a.cc").write_text(source)
    wanted = {"10  ->  11": "11 6\n", "x * 2  ->  x + 2": "10 5\n", "x += kTen;  ->  left out": "0 6\n"}
    drawn = {n: f for n, f in enumerate(faults.faults_of(tmp_path, "a.cc"), 1) if f.change in wanted}
    assert len(drawn) == len(wanted)
    (tmp_path / "b.cc").write_bytes(planted.planted(tmp_path, "a.cc", drawn))
    header = ["-include", here / "chosen.h"]
    subprocess.run(
        ["g++", "-std=c++20", *header, tmp_path / "b.cc", here / "chosen.cc", "-o", tmp_path / "b"], check=True
    )
    record = tmp_path / "reached"
    for chosen, want in ((0, "10 6\n"), *((n, wanted[f.change]) for n, f in drawn.items())):
        record.write_bytes(bytes(1 << 16))
        environment = {"MUTANT": str(chosen), "MUTANT_REACHED": str(record)}
        assert subprocess.check_output(tmp_path / "b", env=environment, text=True) == want
        assert {n for n, flag in enumerate(record.read_bytes()) if flag} == set(drawn)


def test_what_the_compiler_says_is_blamed_on_a_fault(tmp_path):
    """On those in the lines that it names; else on the last one before them."""
    source = tmp_path / "source"
    drawn = {n: faults.Fault("kernels/a.h", line, 0, 1, "1", "2") for n, line in enumerate((3, 7, 9), 1)}
    drawn |= {n: faults.Fault("kernels/b.h", 2 * n - 2, 0, 1, "1", "2", constant=(0, 9)) for n in (4, 5)}
    text = f"""In file included from {source}/kernels/b.cc:5:
In function 'f',
    inlined from 'g' at {source}/kernels/a.h:7:30,
    inlined from 'h' at ../source/kernels/b.cc:9:3:
/usr/include/x.h:6173:10: error: the last argument must be a 1-bit immediate
"""
    for output, want in (
        (text, {2}),
        (text.replace("a.h:7:", "a.h:8:"), {2}),
        ("../source/kernels/a.h:3:1: error: no", {1}),
        (f"{source}/kernels/a.h:8:2: error: no\n{source}/kernels/b.h:4:1: note: 't' was not declared 'constexpr'", {4}),
    ):
        assert cpp_tests.blamed(output, tmp_path / "build", source, drawn) == want


def test_faults_that_are_planted_together_lie_apart(tmp_path):
    (tmp_path / "a.cc").write_text(CPP)
    found = faults.faults_of(tmp_path, "a.cc")
    random.Random(7).shuffle(found)
    kept = planted.apart(found, 6)
    assert len(kept) == 6 and kept == [fault for fault in found if fault in kept]
    kept.sort(key=lambda fault: fault.start)
    assert all(one.end <= two.start for one, two in itertools.pairwise(kept))


def test_a_seed_draws_the_same_faults(capsys):
    arguments = ["--show", "--n=9", "--seed=5", "kernels/tile.cc", "python/raggemm/ops.py"]
    outputs = []
    for _ in range(2):
        assert mutants.main(arguments) == 0
        outputs.append(capsys.readouterr().out)
    assert outputs[0] == outputs[1]
    lines = outputs[0].splitlines()
    assert [line.split(":")[0] for line in lines] == ["mutants"] + ["kernels/tile.cc"] * 6 + [
        "python/raggemm/ops.py"
    ] * 3


@pytest.mark.parametrize("arguments", [["nowhere"], ["tests"], ["--n=0"], ["--foo"]])
def test_wrong_use(arguments, capsys):
    with pytest.raises(SystemExit) as ended:
        mutants.parse(arguments)
    assert ended.value.code == 2
    assert arguments[0].lstrip("-") in capsys.readouterr().err


def test_what_counts_as_equivalent_may_be_drawn():
    """A row whose line or change is no more is taken out."""
    known = mutants.equivalents()
    assert known
    found = {
        mutants.key(fault) for path in {path for path, *_ in known} for fault in faults.faults_of(mutants.ROOT, path)
    }
    assert not set(known) - found
