"""The code behind the public modules. Each module imports only modules above it in this list:

    library, versions       the shared library; what differs between versions of jax
    options, describe       how calls are computed, and what is used here
    dtypes                  types of elements
    call, primitive         what a call is; the primitive grouped_gemm
    activations             activations in JAX
    ad, batching            the derivatives and the batch rule of grouped_gemm
    sharding                the rule by which the compiler divides calls over devices
    tensors, checks         the pytrees that calls take; checks of single arguments
    operands, arguments     lhs and rhs of a product; its other arguments
    grouped_gemm            the general product
    quantization, layouts   quantized operands; packed weights and those of checkpoints
    api                     gmm, tgmm and ragged_dot
    routing                 what stands around the experts
    mlp_reference           the experts' MLP as grouped GEMMs
    mlp_primitive, mlp_batching
                            the primitives of the MLP, and their rules
    mlp                     moe_mlp
    lowering                the custom calls that the primitives become
    dimension_numbers, lax  ragged_dot and ragged_dot_general with the signatures of jax.lax
    override                jax.lax's own functions

None of them imports a public module.
"""
