"""Drop-in replacements for the grouped products of other libraries: same names, argument orders and defaults.

    megablox    jax.experimental.pallas.ops.tpu.megablox: gmm, tgmm, make_group_metadata
    tops        gmm, tgmm, gmm_ref, tgmm_ref: products of bfloat16, summed in float32
    ejkernel    grouped_matmul, transposed_grouped_matmul, make_group_metadata, register
    maxtext     gmm and tgmm of maxtext.kernels.megablox; permute and unpermute of RoutedMoE
    tokamax     ragged_dot, for the list of implementations of tokamax.ragged_dot
    transformer_engine  grouped_gemm, grouped_dense, grouped_dbias, grouped_quantize and their tensors; the router,
                        token_dispatch, token_combine, sort_chunks_by_index, moe
    lax         ragged_dot, ragged_dot_general
    sglang      gmm of sglang-jax: weights with scales, a bias

Each module's docstring names the source of its semantics and every deliberate difference. Unless the docstring says
otherwise, products have derivatives of every order, and work with vmap, jit, shard_map and export. An unsupported
argument that would change the result raises an error with its name and value when tracing.
"""

from raggemm.compat import ejkernel, lax, maxtext, megablox, sglang, tokamax, tops, transformer_engine

__all__ = ["ejkernel", "lax", "maxtext", "megablox", "sglang", "tokamax", "tops", "transformer_engine"]
