"""The implementation of the public modules.

    library, versions       the shared library; differences between versions of jax
    options, describe       options of calls; the printed description and plans
    dtypes                  element types and the rules for combining them
    activations             activations: names, numbers, and functions in JAX
    call, primitive         static parameters of a call; the primitive grouped_gemm
    ad, batching            the derivatives and the batching rule of grouped_gemm
    sharding                the rule that lets the compiler divide calls over devices
    tensors, checks         the pytrees that calls accept; checks of single arguments
    operands, arguments     checks of lhs and rhs; checks of the other arguments
    grouped_gemm            the general product
    quantization, layouts   quantized operands; packed weights and weights of checkpoints
    api                     gmm, tgmm and ragged_dot
    routing                 choice of experts, order of rows, sums of a token's rows
    mlp_reference           the experts' MLP as a sequence of grouped GEMMs
    mlp_primitive, mlp_batching
                            the primitives of the MLP; their batching rules
    mlp                     moe_mlp
    lowering                lowering of the primitives to custom calls
    dimension_numbers, lax  ragged_dot and ragged_dot_general with the signatures of jax.lax
    override                the override of jax.lax.ragged_dot

Each module imports only modules that come before it in this list.
"""
