import contextlib
import io
import re

import raggemm


def described(*args) -> str:
    with contextlib.redirect_stdout(io.StringIO()) as out:
        raggemm.describe(*args)
    return out.getvalue()


def lines(name: str, function, *operands) -> list[str]:
    """Returns the VALUE of each line "`name`: VALUE" of raggemm.describe about the function's calls."""
    return re.findall(rf"^{name}: (.*)$", described(function, *operands), re.MULTILINE)
