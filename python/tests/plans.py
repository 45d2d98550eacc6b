"""How calls were computed: what raggemm.describe prints of them."""

import contextlib
import io
import re

import raggemm


def described(*args) -> str:
    with contextlib.redirect_stdout(io.StringIO()) as out:
        raggemm.describe(*args)
    return out.getvalue()


def lines(name: str, function, *operands) -> list[str]:
    """What the plan of each call of a function says behind "name: "."""
    return re.findall(rf"^{name}: (.*)$", described(function, *operands), re.MULTILINE)
