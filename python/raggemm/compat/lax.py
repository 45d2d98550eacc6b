"""jax.lax.ragged_dot, jax.lax.ragged_dot_general and jax.lax.ragged_all_to_all on CPU.

The semantics are those of jax.lax. Its own rules check shapes and dimension numbers with their own errors, and infer
the dtype of the result. Deliberate differences:

- group_offset is supported; jax.lax raises. rhs may then have fewer groups than group_sizes.
- group_sizes: a negative size, or a sum above the ragged extent, is an error at run time. jax.lax truncates sizes.
- Elements of the result that belong to no group are zero. A NaN or infinity never reaches another group.
- precision: any jax.lax.Precision is supported. A DotAlgorithmPreset is supported if products are exact and sums have
  its type, or if it is BF16_BF16_F32_X3 or _X6 and the operands are float32. Other presets raise NotImplementedError.
- dtypes: one operand may be float, and the other an integer type of up to 8 bits, float8_e4m3fn, float8_e5m2 or
  float4_e2m1fn, as numbers without scales. The result dtype is that of jax.lax. For a float result, both operands may
  be float8 or float4, but not both float8_e5m2. For an int32 result, both may be integers of up to 8 bits. Other
  combinations are a TypeError. raggemm.QuantizedTensors and QArrays of qwix are also allowed.
- Derivatives of every order are supported, and vmap over every combination of operands and axes.
- out_sharding is optional on a mesh with explicit axes. Without it the result is replicated.

XLA has no ragged_all_to_all on CPU. This one uses all_gather, so that programs for other devices run in tests. The
deliberate differences are:

- The gradient of a row that is sent several times is the sum over its receivers. jax.lax keeps one of them.
- Derivatives and vmap work with axis_index_groups, too. vmap also works over axis_name itself.
- Shapes and dtypes are checked when tracing. As in jax.lax, slices outside of operand or output are not checked.
"""

from raggemm._src.lax import ragged_all_to_all, ragged_dot, ragged_dot_general

__all__ = ["ragged_all_to_all", "ragged_dot", "ragged_dot_general"]
