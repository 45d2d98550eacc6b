"""Reads the output of raggemm.describe."""

import contextlib
import io
import re

import raggemm


def described(*args) -> str:
    with contextlib.redirect_stdout(io.StringIO()) as out:
        raggemm.describe(*args)
    return out.getvalue()


def lines(name: str, function, *operands) -> list[str]:
    """Returns the text after "name: " in the plan of each call of a function."""
    return re.findall(rf"^{name}: (.*)$", described(function, *operands), re.MULTILINE)
