"""The front ends as functions of two matrices and sizes, each with a dense product in float64 that it equals."""

import dataclasses
from collections.abc import Callable

import jax.numpy as jnp
import numpy as np
from oracle import membership
from raggemm import GroupedTensor, gmm, grouped_gemm, ragged_dot, tgmm

SIZES = np.array([3, 0, 2], np.int32)  # and a row of no group
G, M, K, N = 3, 6, 2, 3


def random(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape)


@dataclasses.dataclass(frozen=True)
class FrontEnd:
    name: str
    ours: Callable  # of (x, w, sizes), where w is what MoE code has as weights, or the second factor of tgmm
    equation: str  # of (membership(sizes, M, x.dtype), x, w)
    x: tuple[int, ...]
    w: tuple[int, ...]
    w_gradient: str  # the mode of the product that is the gradient of w

    def dense(self, x, w, sizes=SIZES):
        return jnp.einsum(self.equation, membership(sizes, M, x.dtype), x, w)

    def operands(self, *batch):
        return random(*batch, *self.x), random(*batch, *self.w, seed=1)


def _general(x, w, sizes):
    """Ragged K with alpha, stored transposed."""
    lhs, rhs = GroupedTensor(x.T, last_dims=sizes), GroupedTensor(w, first_dims=sizes)
    return grouped_gemm(lhs, rhs, contracting_dims=((1,), (0,)), alpha=np.ones(G))


FRONT_ENDS = [
    FrontEnd("gmm", lambda *a: gmm(*a, np.float64), "gm,mk,gkn->mn", (M, K), (G, K, N), "RAGGED_K"),
    FrontEnd("gmm-transposed", lambda *a: gmm(*a, np.float64, transpose_rhs=True), "gm,mk,gnk->mn", (M, K), (G, N, K),
     "RAGGED_K"),
    FrontEnd("tgmm", lambda x, w, s: tgmm(x.T, w, s, np.float64), "gm,mk,mn->gkn", (M, K), (M, N), "RAGGED_M"),
    FrontEnd("ragged_dot", ragged_dot, "gm,mk,gkn->mn", (M, K), (G, K, N), "RAGGED_K"),
    FrontEnd("grouped_gemm", _general, "gm,mk,mn->gkn", (M, K), (M, N), "RAGGED_M"),
]  # fmt: skip


def loss_of(function):
    return lambda x, w, sizes=SIZES: jnp.sin(function(x, w, sizes)).sum()
