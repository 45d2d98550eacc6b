"""Writes the reference of the public modules from their docstrings: reference.py FOLDER."""

import argparse
import importlib
import pathlib
import pkgutil

import pdoc
import raggemm


def public_modules() -> list[str]:
    """raggemm and what is below it, but for modules with an underscore."""
    below = (module.name for module in pkgutil.walk_packages(raggemm.__path__, "raggemm."))
    return ["raggemm", *(name for name in below if not any(part.startswith("_") for part in name.split(".")))]


def undocumented(names: list[str]) -> list[str]:
    """Modules without a docstring, and names of their __all__ without one."""
    missing = []
    for name in names:
        module = importlib.import_module(name)
        things = {name: module} | {f"{name}.{x}": getattr(module, x) for x in getattr(module, "__all__", ())}
        missing += [path for path, thing in things.items() if not (thing.__doc__ or "").strip()]
    return missing


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=pathlib.Path)
    options = parser.parse_args()
    names = public_modules()
    if missing := undocumented(names):
        raise SystemExit(f"without a docstring: {', '.join(missing)}")
    pdoc.render.configure(docformat="google", footer_text=f"raggemm {raggemm.__version__}")
    # Modules of raggemm.compat come with it, for its __all__ names them.
    pdoc.pdoc(*(name for name in names if name.count(".") < 2), output_directory=options.folder)


if __name__ == "__main__":
    main()
