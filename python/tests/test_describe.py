import pathlib
import re

import jax
import jax.numpy as jnp
import jaxlib
import numpy as np
import plans
import pytest
import raggemm
from arrays import random
from raggemm._src import library

SIZES = np.array([3, 0, 2, 4], np.int32)
LHS, RHS = random(12, 8), random(4, 8, 16, seed=1)


def test_description_of_the_library():
    facts = dict(re.split(r"  +", line, maxsplit=1) for line in plans.described().splitlines())
    assert facts["raggemm"].startswith(f"{raggemm.__version__}, built for version 0.")
    assert facts["jax"].startswith(f"{jax.__version__}, jaxlib {jaxlib.__version__}, Python 3.")
    cpu = re.search(r"^model name\s*: (.*)$", pathlib.Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    assert facts["CPU"].split() == cpu[1].split()
    described = library.description()
    assert facts["instruction set"] == "{isa}: {reason}".format(**described["f32"])
    assert facts["bf16 with bf16"] == "{arithmetic} on {isa}: {reason}".format(**described["bf16"])
    assert described["bf16"]["arithmetic"] == ("tiles" if described["bf16"]["isa"] == "AMX" else "pairs")
    assert facts["options"] == "on_error=log"  # With four devices, on_error is "log" by default.
    for name in ("ISA", "THREADS", "EXECUTOR", "BF16_SUMS"):
        assert facts[f"RAGGEMM_{name}"] == "not set"


def test_the_plans_of_a_program():
    loss = jax.jit(jax.grad(lambda x, w: jnp.sin(raggemm.gmm(x, w, SIZES)).sum(), (0, 1)))
    for _ in range(2):  # The second iteration runs a program that is already compiled.
        modes = plans.lines("mode", loss, LHS, RHS)
        assert sorted(modes) == ["ragged K", "ragged M", "ragged M"]
    assert plans.lines("out", raggemm.gmm, LHS, RHS, SIZES) == ["f32 12x16"]


def test_the_plans_of_an_mlp():
    def mlp(x, w_up, w_gate, w_down):
        token = np.arange(10, dtype=np.int32) % 5
        return raggemm.moe_mlp(x, token, None, SIZES, w_up, w_down, w_gate=w_gate)

    x, up, down = random(5, 8), random(4, 8, 16, seed=1), random(4, 16, 8, seed=2)
    operands = (jax.jit(mlp), x, up, up, down)
    assert plans.lines("moe_mlp", *operands) == ["5 tokens of 8, 16 intermediate, silu"]
    assert plans.lines("rows", *operands) == ["9 of 4 groups, in pieces of at most 256"]
    assert plans.lines("first piece", *operands) == ["9 rows"]
    assert plans.lines("product", *operands) == ["up", "gate", "down"]
    assert plans.lines("out", *operands) == ["f32 9x16", "f32 9x16", "f32 9x8"]
    for name in ("isa", "kernels", "threads", "tiles"):
        assert len(plans.lines(name, *operands)) == 3


def test_errors_of_the_function_are_raised_and_end_recording():
    with pytest.raises((jax.errors.JaxRuntimeError, ValueError), match="group 2 has size 99"):
        raggemm.describe(raggemm.gmm, LHS, RHS, np.array([3, 0, 99, 4], np.int32))
    jax.block_until_ready(raggemm.gmm(LHS, RHS, SIZES))
    assert library.take_plans() == ""
