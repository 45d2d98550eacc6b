"""The functions that MoE programs already call, under the names, argument orders and defaults of their origins.

    megablox    jax.experimental.pallas.ops.tpu.megablox: gmm, tgmm, make_group_metadata
    tops        gmm, tgmm, gmm_ref, tgmm_ref: bfloat16 products, float32 sums
    ejkernel    grouped_matmul, transposed_grouped_matmul, make_group_metadata, register
    maxtext     gmm, tgmm of maxtext.kernels.megablox, permute, unpermute of its RoutedMoE
    tokamax     ragged_dot, for the list of implementations of tokamax.ragged_dot
    transformer_engine  grouped_gemm, grouped_dense, grouped_quantize, and the tensors that they take; its router,
                        token_dispatch and token_combine
    lax         ragged_dot, ragged_dot_general
    sglang      gmm of sglang-jax: weights with scales, a bias

Each module's docstring names the source of its semantics and every deliberate difference. All products are names and
defaults over grouped_gemm: what holds for it holds for them, that is every derivative, vmap, jit, shard_map and export.
An argument that would change the result and cannot be honoured is an error with its name and value when tracing.
"""

from raggemm.compat import ejkernel, lax, maxtext, megablox, sglang, tokamax, tops, transformer_engine

__all__ = ["ejkernel", "lax", "maxtext", "megablox", "sglang", "tokamax", "tops", "transformer_engine"]
