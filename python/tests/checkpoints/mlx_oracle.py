"""Runs mlx-lm on the checkpoint in FOLDER, in an environment of its own: mlx_oracle.py FOLDER OUT COUNT TOKEN...

Writes "logits" after each TOKEN, and "greedy", the COUNT tokens that mlx-lm then generates, to the .npz file OUT.
"""

import pathlib
import sys

import mlx.core as mx
import numpy as np
from mlx_lm.models.cache import make_prompt_cache
from mlx_lm.utils import load_model


def main() -> None:
    folder, out, count, *tokens = sys.argv[1:]
    model, _ = load_model(pathlib.Path(folder))
    prompt = mx.array([[int(token) for token in tokens]])
    logits = np.array(model(prompt).astype(mx.float32))[0]
    cache, greedy = make_prompt_cache(model), []
    for _ in range(int(count)):
        prompt = mx.argmax(model(prompt, cache=cache)[:, -1:], -1)
        greedy.append(int(prompt[0, 0]))
    np.savez(out, logits=logits, greedy=greedy)


if __name__ == "__main__":
    main()
