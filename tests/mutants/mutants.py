"""Plants faults of one line, runs the tests that reach each, and prints those that no test notices.

Faults are drawn at random: a line, then one of the faults that it may have. They are planted together, in one build of
the C++ tests and one copy of the Python package, where the environment variable MUTANT chooses one of them. What the
compiler does not take is left out and another drawn. Faults that change nothing stand in equivalent.toml.
"""

import argparse
import os
import pathlib
import random
import sys
import tomllib
from concurrent import futures

import planted
from cpp_tests import CppTests
from faults import LANGUAGES, Fault, faults_of
from python_tests import PythonTests
from raggemm._primitive.library import description

ROOT = pathlib.Path(__file__).parents[2]
# Where faults are planted, how many of each 360, and whose tests look for them.
PLACES = (("kernels", 200, CppTests), ("ffi", 60, CppTests), ("python/raggemm", 100, PythonTests))
# Share of the faults that is noticed, or known to change nothing, below which tests are broken. Of the 40 left in a
# sample of 250, which had 0.84, 17 changed nothing either, which only a person can tell.
LEAST = 0.8


def equivalents() -> dict[tuple[str, str, str], str]:
    """By file, line and change: why it changes nothing."""
    rows = tomllib.loads((pathlib.Path(__file__).parent / "equivalent.toml").read_text()).get("equivalent", [])
    return {(row["file"], row["line"], row["change"]): row["reason"] for row in rows}


def key(fault: Fault) -> tuple[str, str, str]:
    """What a row of equivalent.toml says of a fault, whatever stands above its line."""
    return fault.path, (ROOT / fault.path).read_text().splitlines()[fault.line - 1].strip(), fault.change


def files_below(path: str) -> list[str]:
    """The sources of one file or folder of the checkout, without what links lead to."""
    whole = ROOT / path
    found = [whole] if whole.is_file() else [f for f in sorted(whole.rglob("*")) if f.suffix in LANGUAGES]
    return [f.relative_to(ROOT).as_posix() for f in found if f.resolve().is_relative_to(whole.resolve())]


def drawn(paths: list[str], rng: random.Random) -> list[Fault]:
    """Faults in an order of chance: each line as likely as any other, and each fault of a line."""
    lines: dict[tuple[str, int], list[Fault]] = {}
    for path in paths:
        for fault in faults_of(ROOT, path):
            lines.setdefault((path, fault.line), []).append(fault)
    order = list(lines)
    rng.shuffle(order)
    return [rng.choice(lines[line]) for line in order]


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="./dev mutants", description=__doc__.splitlines()[0])
    parser.add_argument(
        "paths", nargs="*", metavar="PATH", help="files or folders; by default kernels, ffi and raggemm"
    )
    parser.add_argument("--n", type=int, default=40, help="how many faults (%(default)s)")
    parser.add_argument("--seed", type=int, help="of the draw; by default another each time")
    parser.add_argument("--show", action="store_true", help="print the faults that are drawn, and end")
    given = parser.parse_args(arguments)
    tops = tuple(top for top, *_ in PLACES)
    for path in given.paths:
        if not (ROOT / path).exists() or not any(pathlib.Path(path).is_relative_to(top) for top in tops):
            parser.error(f"{path} is no file or folder below {', '.join(tops)}")
    if given.n < 1:
        parser.error(f"--n={given.n} must be at least 1")
    given.seed = random.randrange(2**31) if given.seed is None else given.seed
    return given


def plan(paths: list[str], n: int, rng: random.Random) -> list[tuple[list[Fault], int, type]]:
    """By place: its drawn faults, how many of them are wanted, whose tests look for them."""
    chosen = []
    for top, share, tests in PLACES:
        below = [path for path in paths if pathlib.Path(path).is_relative_to(top)] if paths else [top]
        files = sorted({file for path in below for file in files_below(path)})
        if files:
            chosen.append((drawn(files, rng), share, tests))
    shares = sum(share for _, share, _ in chosen)
    return [(faults, round(n * share / shares), tests) for faults, share, tests in chosen]


def planted_in(tests, wanted: list[tuple[list[Fault], int]]) -> dict[int, Fault]:
    """Of twice as many faults as are wanted, the first of each place that are code: planted, by number."""
    drawn: dict[int, Fault] = {}
    groups = []
    for faults, count in wanted:
        first = len(drawn) + 1
        drawn |= enumerate(planted.apart(faults, 2 * count + 4), first)
        groups.append((range(first, len(drawn) + 1), count))
    bad = tests.check(drawn)
    kept = [number for group, count in groups for number in [n for n in group if n not in bad][:count]]
    bad = tests.plant({number: drawn[number] for number in kept})
    return {number: drawn[number] for number in kept if number not in bad}


def run(tests, faults: dict[int, Fault]) -> tuple[list[Fault], list[Fault]]:
    """The faults that no test notices and that change something, and those that change nothing."""
    known = equivalents()
    equal = {number for number, fault in faults.items() if key(fault) in known}
    missed = []

    def look(number: int) -> tuple[int, str | None]:
        return number, tests.noticed_by(number, faults[number])

    with futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for done in futures.as_completed([pool.submit(look, number) for number in faults if number not in equal]):
            number, test = done.result()
            print(f"{faults[number]}\n    {f'noticed: {test}' if test else 'NOT NOTICED'}", flush=True)
            if test is None:
                missed.append(number)
    return [faults[number] for number in sorted(missed)], [faults[number] for number in sorted(equal)]


def why_not_counted(fault: Fault) -> str:
    """Of one that no test reaches, why none can: "" where one could."""
    if fault.in_constexpr:  # as tables of kernels are, which tests/kernels/schedules.txt has
        return "for the compiler evaluates it"
    path = pathlib.Path(fault.path)
    lacks = [isa["name"].lower() for isa in description()["isas"] if not isa["usable"]]
    return f"for this CPU lacks {path.stem}" if path.parent.name == "isa" and path.stem in lacks else ""


def main(arguments: list[str]) -> int:
    given = parse(arguments)
    print(f"mutants: --seed={given.seed}", flush=True)
    chosen = plan(given.paths, given.n, random.Random(given.seed))
    if given.show:
        for faults, count, _ in chosen:
            print(*planted.apart(faults, count), sep="\n")
        return 0
    total, missed, equal = 0, [], []
    for kind in dict.fromkeys(tests for _, _, tests in chosen):
        tests = kind(ROOT)
        faults = planted_in(tests, [(faults, count) for faults, count, of in chosen if of is kind])
        print(f"mutants: {len(faults)} planted; all tests run once without a fault", flush=True)
        tests.trace()
        for number in [number for number in faults if not tests.reach(number)]:
            if why := why_not_counted(faults[number]):
                print(f"not counted, {why}: {faults.pop(number)}")
        print(f"mutants: no test reaches {sum(not tests.reach(number) for number in faults)} of them", flush=True)
        more = run(tests, faults)
        total, missed, equal = total + len(faults), missed + more[0], equal + more[1]
    print("", *(f"not noticed: {fault}" for fault in missed), sep="\n")
    noticed = total - len(missed) - len(equal)
    print(f"mutants: {noticed} of {total} noticed, {len(equal)} equivalent (--seed={given.seed})")
    return 0 if noticed + len(equal) >= LEAST * total else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
