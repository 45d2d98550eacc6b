"""Test programs in an interpreter of their own."""

import json
import pathlib
import subprocess
import sys
from typing import Any


def printed_by(script: pathlib.Path, folder: pathlib.Path) -> Any:
    """The JSON that a script prints which is given a folder."""
    done = subprocess.run([sys.executable, script, folder], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
