"""The public functions and types of raggemm itself, a module each; raggemm/__init__.py lists them.

grouped_gemm.py checks and binds the general product, moe_mlp.py the whole MLP (moe_sequence.py: as a sequence of
products; moe_backward.py: its gradient). operands.py and tensors.py are what they take, quantize.py, quantized.py and
prepack.py what makes it.
"""
