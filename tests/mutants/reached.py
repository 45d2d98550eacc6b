"""A pytest plugin: writes a line of JSON for each test, with its id, its seconds and the faults that it reached.

What imports reach is in a line without an id: any test may notice it.
"""

import json
import os
import time

import pytest
import raggemm_mutants


def _write(name: str, seconds: float) -> None:
    with open(os.environ["MUTANT_REACHED"], "a") as file:
        file.write(json.dumps([name, seconds, sorted(raggemm_mutants.reached)]) + "\n")
    raggemm_mutants.reached.clear()


def pytest_collection_finish():
    _write("", 0)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    start = time.monotonic()
    result = yield
    _write(item.nodeid, time.monotonic() - start)
    return result
