import contextlib
import io
import re

import raggemm


def described(*args) -> str:
    with contextlib.redirect_stdout(io.StringIO()) as out:
        raggemm.describe(*args)
    return out.getvalue()


def lines(name: str, function, *operands) -> list[str]:
    """Describes the function's calls of raggemm by raggemm.describe, which prints a plan for each.

    Returns the text after "name: " from each plan.
    """
    return re.findall(rf"^{name}: (.*)$", described(function, *operands), re.MULTILINE)
