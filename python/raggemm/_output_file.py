"""Where a program that computes for minutes will write: found out before it starts."""

import argparse
import os
import pathlib


def output_file(text: str) -> pathlib.Path:
    """The path of a file that can be written, for argparse's `type`. Neither makes nor changes it."""
    path = pathlib.Path(text)
    if path.is_dir():
        raise argparse.ArgumentTypeError(f"cannot write {path}: it is a folder")
    if not path.parent.is_dir():
        raise argparse.ArgumentTypeError(f"cannot write {path}: there is no folder {path.parent}")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise argparse.ArgumentTypeError(f"cannot write {path}: permission denied")
    return path
