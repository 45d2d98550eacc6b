"""Tests that functions of raggemm.compat have the parameters of the functions they replace (`./dev test --origins`)."""

import sys

import pytest
from raggemm.compat import ejkernel, maxtext
from raggemm.compat import transformer_engine as te
from signatures import Pair

TE = "transformer_engine/jax"
GEMM, QUANTIZATION = f"{TE}/cpp_extensions/gemm.py", f"{TE}/cpp_extensions/quantization.py"
EJKERNEL = "ejkernel/modules/operations/grouped_matmul.py"
QUANTIZE = "lhs_quantize_dtype rhs_quantize_dtype use_qwix_quantization"  # Arguments of tgmm in earlier MaxText.
MAXTEXT = "maxtext/kernels/megablox"
# Arguments whose defaults are strings in raggemm, but enumerators in TransformerEngine.
SCORES = "score_function routing_map_format"
NEW_IN_PERMUTE = """forced_routed_experts force_dropless mesh_axis_names compute_lb_loss return_expert_counts
    defer_reductions precomputed_topk precomputed_density_prob"""


def kernel(algorithm):
    """Returns one of the two kernels that compat.ejkernel.register() registers.

    algorithm: "v1" for ejkernel's algorithms grouped_matmul and grouped_matmulv2, "v3" for grouped_matmulv3.
    """
    return {"v1": ejkernel._kernel, "v3": ejkernel._kernel_v3}[algorithm]


PAIRS = [
    Pair("transformer_engine", GEMM, "grouped_gemm", te.grouped_gemm, defaults="quantizer_set"),
    Pair("transformer_engine", f"{TE}/dense.py", "grouped_dense", te.grouped_dense, defaults="quantizer_set"),
    Pair("transformer_engine", QUANTIZATION, "grouped_quantize", te.grouped_quantize, more="amax"),
    Pair("transformer_engine", QUANTIZATION, "grouped_dbias", te.grouped_dbias),
    Pair("transformer_engine", f"{TE}/moe.py", "moe", te.moe, defaults="quantizer_sets"),
    Pair(
        "transformer_engine",
        f"{TE}/router.py",
        "fused_topk_with_score_function",
        te.fused_topk_with_score_function,
        defaults=SCORES,
    ),
    Pair("transformer_engine", f"{TE}/router.py", "fused_moe_aux_loss", te.fused_moe_aux_loss),
    Pair("transformer_engine", f"{TE}/permutation.py", "token_dispatch", te.token_dispatch),
    Pair("transformer_engine", f"{TE}/permutation.py", "token_combine", te.token_combine),
    Pair("transformer_engine", f"{TE}/permutation.py", "sort_chunks_by_index", te.sort_chunks_by_index),
    Pair("ejkernel", EJKERNEL, "grouped_matmul", ejkernel.grouped_matmul),
    Pair("ejkernel", "ejkernel/kernels/_xla/grouped_matmul/_interface.py", "grouped_matmul", kernel("v1")),
    Pair("ejkernel", "ejkernel/kernels/_xla/grouped_matmulv3/_interface.py", "grouped_matmulv3", kernel("v3")),
    Pair("maxtext", f"{MAXTEXT}/ops.py", "gmm", maxtext.gmm, more="varying_axes"),
    Pair("maxtext", f"{MAXTEXT}/backend.py", "tgmm", maxtext.tgmm, more=QUANTIZE),
    Pair("maxtext", "maxtext/layers/moe.py", "RoutedMoE.permute", maxtext.permute, without=NEW_IN_PERMUTE),
    Pair("maxtext", "maxtext/layers/moe.py", "RoutedMoE.unpermute", maxtext.unpermute, without="topk_argsort_indices"),
]


@pytest.mark.parametrize("pair", PAIRS, ids=str)
def test_parameters_match_the_original(pair):
    if pair.package == "maxtext" and sys.version_info < (3, 12):
        pytest.skip("MaxText needs Python 3.12")
    assert pair.differences() == []
