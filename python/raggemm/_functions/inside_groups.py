"""Which rows belong to groups, of sizes that are checked."""

from typing import Any

import jax
import jax.numpy as jnp

from raggemm._functions.grouped_gemm import parsed, product
from raggemm._functions.operands import GroupedTensor, Words, integer_array


def inside_groups(count: int, group_sizes: Any) -> jax.Array:
    """float32 [count]: 1 for rows of groups and 0 behind them, as a product with nothing but a bias, for the call
    checks sizes: with on_error="nan" wrong ones give NaN."""
    words, sizes = Words(sizes="group_sizes"), integer_array("group_sizes", group_sizes)
    if sizes.ndim != 1:
        raise ValueError(f"group_sizes: shape is {sizes.shape}, must be [G]")
    groups = sizes.shape[0]
    lhs, rhs = (jnp.zeros(shape, jnp.float32) for shape in ((count, 0), (groups, 0, 1)))
    operands = parsed(words, GroupedTensor(lhs, first_dims=sizes), rhs, ((1,), (1,)))
    return product(words, *operands, bias=jnp.ones((groups, 1), jnp.float32))[:, 0]
