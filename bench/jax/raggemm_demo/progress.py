"""What a program says: lines of its report on stdout, and on stderr what runs now and how long all may still take."""

import sys
import time
from collections.abc import Sequence

from raggemm_demo.layers import Layer

_CLEARED = "\r\x1b[K"  # the last line of a terminal


def say(text: str) -> None:
    """A part of the report, in the place of what runs, which is no part of it."""
    if sys.stderr.isatty():
        print(_CLEARED, end="", file=sys.stderr, flush=True)
    print(text, flush=True)


class Progress:
    """Says what runs before each of about so many steps of a layer: in one line of a terminal, elsewhere in a line for
    each. The time left is that of the steps so far, by their work, which is guessed: it grows with the weights, and
    prefill has twice that of decode.
    """

    def __init__(self, layers: Sequence[Layer], steps: int):
        self._layers, self._steps = layers, steps
        self._work = [x.experts * x.hidden * x.intermediate * (2 if x.phase == "prefill" else 1) for x in layers]
        self._start = 0.0  # of the first layer
        self._at = self._number = 0

    def begin(self, layer: Layer) -> None:
        """The steps that follow are those of this layer."""
        self._at, self._number = self._layers.index(layer), 0
        self._start = self._start or time.monotonic()

    def step(self, what: str) -> None:
        layer = self._layers[self._at]
        text = f"{layer.model} {layer.phase}: {what}"
        share = min(1.0, self._number / self._steps)
        done = (sum(self._work[: self._at]) + share * self._work[self._at]) / sum(self._work)
        if done:
            text += f", about {(time.monotonic() - self._start) / done * (1 - done):.0f} s left"
        self._number += 1
        rewritten = sys.stderr.isatty()
        print(f"{_CLEARED}{text}" if rewritten else text, end="" if rewritten else "\n", file=sys.stderr, flush=True)
