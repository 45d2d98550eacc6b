"""Front ends outside of jit: compiled as a whole, so that only the first call of a signature checks and rearranges."""

import functools
import inspect
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import jax

_P = ParamSpec("_P")
_R = TypeVar("_R")


def _is_concrete(x: Any) -> bool:
    return isinstance(x, jax.Array) and not isinstance(x, jax.core.Tracer)


def _is_hashable(x: Any) -> bool:
    try:
        hash(x)
    except TypeError:
        return False
    return True


def compiled_when_eager(
    *arrays: str, without_effect: tuple[str, ...] = ()
) -> Callable[[Callable[_P, _R]], Callable[_P, _R]]:
    """A decorator: calls whose parameters `arrays` are all JAX arrays with values, or None, go through jax.jit, where
    the other parameters are static, but for those without effect, which it never sees: a new function in each call
    would be a new program. JAX' caches know what those calls depend on besides: dtypes, shapes, shardings,
    configuration, options.

    All other calls are left as they are: traced ones, which some jit compiles already, and those with values that are
    checked as they come (integers of Python and NumPy) or that JAX does not take as static.
    """

    def decorate(function: Callable[_P, _R]) -> Callable[_P, _R]:
        names = tuple(inspect.signature(function).parameters)
        compiled = jax.jit(function, static_argnames=tuple(name for name in names if name not in arrays))

        @functools.wraps(function)
        def call(*args: _P.args, **kwargs: _P.kwargs) -> _R:
            given: dict[str, Any] = dict(zip(names, args, strict=False))
            if len(args) > len(names) or given.keys() & kwargs.keys():
                return function(*args, **kwargs)  # a TypeError
            given |= kwargs
            for name in without_effect:
                given.pop(name, None)
            if all(x is None or (_is_concrete(x) if name in arrays else _is_hashable(x)) for name, x in given.items()):
                return compiled(**given)
            return function(*args, **kwargs)

        return call

    return decorate
