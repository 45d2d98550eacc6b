import contextlib
import io
import re

import raggemm


def described(*args) -> str:
    with contextlib.redirect_stdout(io.StringIO()) as out:
        raggemm.describe(*args)
    return out.getvalue()


def lines(name: str, function, *operands) -> list[str]:
    """Runs describe on a function. Returns the text after "name: " in the plan of each of its calls of raggemm."""
    return re.findall(rf"^{name}: (.*)$", described(function, *operands), re.MULTILINE)
