"""The experts of recorded mixture-of-experts models on raggemm and on what JAX has on CPU.

__main__     `python -m raggemm.demo`
bench_jax    `python -m raggemm.bench_jax`
layers       what they run: recorded routing, and the expert block over any grouped product
contenders   the block on raggemm, jax.lax.ragged_dot and by hand
programs     compiled contenders, what they need and how long they take
checks       against float64, and against each other
"""
