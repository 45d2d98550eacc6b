"""jax.lax.ragged_dot and jax.lax.ragged_dot_general, on CPU by raggemm.

The semantics are those of jax.lax; shapes, dimension numbers and the dtype of the result are checked and inferred by
jax.lax's own rules, with their errors. Deliberate differences:

  group_offset    works, where jax.lax raises; with it rhs may have fewer groups than group_sizes
  group_sizes     a negative one, or a sum above the ragged extent, is an error when running; jax.lax cuts it off
  what is outside of all groups is zero, and a NaN or infinity of one group never shows in another
  precision       any jax.lax.Precision is met; a DotAlgorithmPreset is if products are exact and sums made in the
                  type that it names, or if it is BF16_BF16_F32_X3 or _X6 and the operands are float32, and
                  NotImplementedError with its name otherwise
  dtypes          beside a float matrix one of integers of up to 8 bits, float8_e4m3fn, float8_e5m2 or float4_e2m1fn is
                  one of numbers, with the result dtype of jax.lax; so are two of the float8 and float4 types with a
                  float result, but two of float8_e5m2. Integers with integers are those of up to 8 bits for int32; all
                  else is a TypeError. raggemm.QuantizedTensor and QArrays of qwix are taken, in all three forms
  derivatives     of every order, of all three forms, and vmap over every combination of operands and axes
  out_sharding    is optional on a mesh with explicit axes; without it the result is replicated
"""

from raggemm._src.lax import ragged_dot, ragged_dot_general

__all__ = ["ragged_dot", "ragged_dot_general"]
