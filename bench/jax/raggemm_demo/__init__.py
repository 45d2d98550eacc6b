"""Compares raggemm with the alternatives in JAX on CPU, on the experts of recorded mixture-of-experts models.

layers      the problems: recorded routing, random weights and rows, and the expert block
formats     quantized weights
contenders  the expert block with raggemm, with jax.lax.ragged_dot and with hand-written loops
checks      errors relative to float64, and distances between contenders
__main__    ./dev demo: checks, measures and prints the table
"""
