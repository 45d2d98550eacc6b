import contextlib
import io
import re

import raggemm


def described(*args) -> str:
    with contextlib.redirect_stdout(io.StringIO()) as out:
        raggemm.describe(*args)
    return out.getvalue()


def lines(name: str, function, *operands) -> list[str]:
    """Returns the VALUE of each line "`name`: VALUE" that raggemm.describe prints."""
    return re.findall(rf"^{name}: (.*)$", described(function, *operands), re.MULTILINE)
