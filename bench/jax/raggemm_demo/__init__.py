"""The experts of recorded mixture-of-experts models, on raggemm and on what JAX has on CPU.

layers      what is run: recorded routing, random weights and rows, and the expert block over any grouped product
formats     quantized weights
contenders  the block on raggemm, on jax.lax.ragged_dot and by hand
checks      errors against float64, and distances between contenders
__main__    ./dev demo: checks, times and the table
"""
