"""The JAX primitives grouped_gemm and moe_mlp and all of their rules:

    call            what a call is: how its operands are stored, which there are, of which types
    primitive       the primitive, its value and shape, and the custom call that it becomes
    column_blocks   weights in column blocks
    rewrites        calls that the custom call does not take as they come; apply() is the way in
    factors         scales and zero points of quantized operands, element by element
    derivatives, batching, partitioning
                    its rules; the last one has the lowering
    moe_mlp         the other primitives, with their rules and custom calls, but for
    moe_batches     their batch rules
    options         how calls are computed that are lowered now
    library         the shared library
    jax_versions    what differs between versions of jax

Nothing here imports other parts of the package.
"""

from raggemm._primitive import batching, derivatives, moe_batches, partitioning  # noqa: F401  register their rules
