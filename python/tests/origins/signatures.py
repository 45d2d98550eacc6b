"""Compares parameters of raggemm's functions with the sources of other packages.

The packages are not imported, because most would need a GPU.
"""

import ast
import dataclasses
import importlib.metadata
import inspect
from collections.abc import Callable
from inspect import Parameter

import jax
import jax.numpy as jnp

_KNOWN = {"jax": jax, "jnp": jnp, "tuple": tuple}


class Unknown(str):
    """The source text of a default value that only the other package can evaluate."""


def _default(node: ast.expr):
    text = ast.unparse(node)
    try:
        return eval(text, dict(_KNOWN))
    except (AttributeError, NameError):
        return Unknown(text)


def parameters_of(source: str, name: str) -> list[Parameter]:
    body = ast.parse(source).body
    for part in name.split("."):
        found = [node for node in body if getattr(node, "name", None) == part]
        assert found, f"{name} does not exist any more"
        node = found[-1]
        body = node.body
    args = node.args
    positional = [*args.posonlyargs, *args.args]
    defaults = [None] * (len(positional) - len(args.defaults)) + args.defaults
    kinds = [Parameter.POSITIONAL_ONLY] * len(args.posonlyargs) + [Parameter.POSITIONAL_OR_KEYWORD] * len(args.args)
    kinds += [Parameter.KEYWORD_ONLY] * len(args.kwonlyargs)
    return [
        Parameter(arg.arg, kind, default=Parameter.empty if default is None else _default(default))
        for arg, kind, default in zip(
            [*positional, *args.kwonlyargs], kinds, [*defaults, *args.kw_defaults], strict=True
        )
    ]


@dataclasses.dataclass(frozen=True)
class Pair:
    """A function of raggemm.compat (`ours`), and the function that it replaces."""

    package: str
    file: str
    name: str
    ours: Callable
    without: str = ""  # Parameters that only the replaced function has, separated by spaces.
    more: str = ""  # Parameters that only `ours` has.
    defaults: str = ""  # Parameters whose defaults differ.

    def __str__(self) -> str:
        return f"{self.package}-{self.name}"

    def theirs(self) -> list[Parameter]:
        path = importlib.metadata.distribution(self.package).locate_file(self.file)
        found = parameters_of(path.read_text(), self.name)
        if "." in self.name:  # Renames a method's self to the first parameter of `ours`.
            found[0] = found[0].replace(name=next(iter(inspect.signature(self.ours).parameters)))
        return found

    def differences(self) -> list[str]:
        return differences(self.theirs(), self.ours, *(x.split() for x in (self.without, self.more, self.defaults)))


def differences(theirs: list[Parameter], function: Callable, without=(), more=(), defaults=()) -> list[str]:
    """Returns a sentence for each difference between `theirs` and the parameters of `function`.

    `without`, `more` and `defaults` list expected differences. These get a sentence only if they do not exist.
    """
    ours = list(inspect.signature(function).parameters.values())
    at = {p.name: i for i, p in enumerate(ours)}
    names = [p.name for p in theirs]
    found = [f"{name} is no parameter there any more" for name in without if name not in names]
    found += [f"{name} is only ours" for name in at if name not in names and name not in more]
    found += [f"{name} is a parameter there, too" for name in more if name in names]
    for index, p in enumerate(theirs):
        if p.name in without:
            if p.name in at:
                found.append(f"{p.name} is there now")
            continue
        if p.name not in at:
            found.append(f"{p.name} is missing")
            continue
        own = ours[at[p.name]]
        if own.kind is not p.kind:
            found.append(f"{p.name} is {own.kind.description}, there {p.kind.description}")
        elif p.kind is not Parameter.KEYWORD_ONLY and at[p.name] != index:
            found.append(f"{p.name} has position {at[p.name]}, there {index}")
        if p.name not in defaults and own.default != p.default:
            found.append(f"{p.name} is {own.default} by default, there {p.default}")
        if p.name in defaults and own.default == p.default:
            found.append(f"{p.name} has the default that it has there")
    return found
