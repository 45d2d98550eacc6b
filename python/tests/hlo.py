"""What became of a call: reading the compiled program."""

import re

import numpy as np

TARGET = 'custom_call_target="raggemm_grouped_gemm_v1"'


def custom_calls(lowered) -> int:
    return lowered.compile().as_text().count(TARGET)


def copies_of_weights(lowered, elements: int) -> list[str]:
    """Instructions that write a multiple of `elements` by moving data; choose a number that nothing else divides."""
    moved = []
    for line in lowered.compile().as_text().splitlines():
        match = re.search(
            r"= \w+\[([\d,]*)\]\S* (broadcast|transpose|copy|concatenate|gather|pad|dynamic-slice)\(", line
        )
        if match and match[1] and np.prod([int(n) for n in match[1].split(",")]) % elements == 0:
            moved.append(line.strip())
    return moved
