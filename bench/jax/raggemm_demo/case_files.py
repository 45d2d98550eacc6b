"""Reads the case files of proto/cases: the part of protobuf's text format that they use."""

import pathlib
import re
from collections.abc import Iterator
from typing import Any

CASES = pathlib.Path(__file__).parents[3] / "proto" / "cases"
_TOKEN = re.compile(r'#[^\n]*|"[^"]*"|[\w.+-]+|[][{}:]')


def _scalar(token: str) -> Any:
    if token[0] == '"':
        return token[1:-1]
    if token in ("true", "false"):
        return token == "true"
    for number in (int, float):
        try:
            return number(token)
        except ValueError:
            pass
    return token  # of an enum


def _message(tokens: Iterator[str]) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for name in tokens:
        if name == "}":
            break
        token = next(tokens)
        if token == ":":
            token = next(tokens)
        if token == "{":
            value: Any = _message(tokens)
        elif token == "[":
            value = [_scalar(element) for element in iter(tokens.__next__, "]")]
        else:
            value = _scalar(token)
        if name == "cases":
            fields.setdefault(name, []).append(value)
        else:
            fields[name] = value
    return fields


def read_cases(name: str) -> list[dict[str, Any]]:
    """Returns the cases of proto/cases/NAME.textproto, a dictionary each: fields as in proto/case.proto, enumerators
    as their names."""
    text = (CASES / f"{name}.textproto").read_text()
    return _message(token for token in _TOKEN.findall(text) if token[0] != "#")["cases"]
