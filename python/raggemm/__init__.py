"""Ragged grouped GEMM for XLA on CPU: the experts of a mixture-of-experts layer, in JAX.

    gmm, tgmm               with the signatures of megablox
    ragged_dot              with the signature of jax.lax.ragged_dot
    grouped_gemm            the general operation, on arrays and GroupedTensors
    moe_mlp                 the MLP of all experts: gather, products, activation, weighted sum
    Activation              an activation with its numbers, for moe_mlp and grouped_gemm
    QuantizedTensor, quantize, dequantize, fake_quantize, quantize_nvfp4
                            operands of 8, 4 and 2 bits with scales and zero points
    mxfp4_from_blocks, fp8_from_blocks, int4_from_awq, int4_from_gptq, from_compressed_tensors
                            quantized operands from the arrays of checkpoints
    prepack, unprepack, PackedWeights
                            weights in the layout that kernels read fastest
    route, sort_by_expert, combine, load_balance_loss, z_loss
                            routing: choose experts, sort rows by expert, and sum each token's rows
    grouped_gemm_saveable   a policy for jax.checkpoint
    enable_partitioning     lets jax.jit divide calls over devices
    override_ragged_dot, enable_ragged_dot_override
                            make jax.lax.ragged_dot itself use raggemm
    options                 threads, instruction set, executor, handling of errors, rounding of bfloat16 sums
    describe                prints the configuration, or the plans of a program's calls

`import raggemm` does not import these modules:

    nn                      a layer with a router, as functions
    compat                  one module per library, with that library's names and signatures
    expert_parallel         experts sharded over devices and processes
    ops                     gmm, tgmm and ragged_dot alone
    override                a command: runs an unchanged program with the override of jax.lax.ragged_dot

Start reading at _src/api.py and _src/grouped_gemm.py. The docstring of _src lists its modules from the bottom up.
"""

from raggemm._src import batching, lowering, mlp_batching  # noqa: F401  imported to register rules of the primitives
from raggemm._src.activations import Activation
from raggemm._src.ad import grouped_gemm_saveable
from raggemm._src.api import gmm, ragged_dot, tgmm
from raggemm._src.describe import describe
from raggemm._src.grouped_gemm import grouped_gemm
from raggemm._src.layouts import (
    fp8_from_blocks,
    from_compressed_tensors,
    int4_from_awq,
    int4_from_gptq,
    mxfp4_from_blocks,
    prepack,
    unprepack,
)
from raggemm._src.library import version
from raggemm._src.mlp import moe_mlp
from raggemm._src.options import options
from raggemm._src.override import RaggedDotLowering, enable_ragged_dot_override, override_ragged_dot
from raggemm._src.quantization import dequantize, fake_quantize, quantize, quantize_nvfp4
from raggemm._src.routing import SortedRows, combine, load_balance_loss, route, sort_by_expert, z_loss
from raggemm._src.sharding import enable_partitioning
from raggemm._src.tensors import GroupedTensor, PackedWeights, QuantizedTensor

__all__ = [
    "Activation",
    "GroupedTensor",
    "PackedWeights",
    "QuantizedTensor",
    "RaggedDotLowering",
    "SortedRows",
    "combine",
    "dequantize",
    "describe",
    "enable_partitioning",
    "enable_ragged_dot_override",
    "fake_quantize",
    "fp8_from_blocks",
    "from_compressed_tensors",
    "gmm",
    "grouped_gemm",
    "grouped_gemm_saveable",
    "int4_from_awq",
    "int4_from_gptq",
    "load_balance_loss",
    "moe_mlp",
    "mxfp4_from_blocks",
    "options",
    "override_ragged_dot",
    "prepack",
    "quantize",
    "quantize_nvfp4",
    "ragged_dot",
    "route",
    "sort_by_expert",
    "tgmm",
    "unprepack",
    "version",
    "z_loss",
]
__version__ = version()
