"""Runs the examples of docs/saving.md, which need Orbax."""

import pathlib
import re
import subprocess
import sys

import pytest

PAGE = next(page for folder in pathlib.Path(__file__).parents if (page := folder / "docs/saving.md").exists())
EXAMPLES = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("example", EXAMPLES)
def test_examples_run(example, tmp_path):
    script = tmp_path / "example.py"
    script.write_text(example)
    subprocess.run([sys.executable, script], check=True, cwd=tmp_path, timeout=300)


def test_the_page_has_examples():
    assert EXAMPLES
