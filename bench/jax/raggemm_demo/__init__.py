"""The experts of recorded mixture-of-experts models on raggemm and on what JAX has on CPU:

    layers       what is run: recorded routing, and the expert block over any grouped product
    contenders   the block on raggemm, jax.lax.ragged_dot and by hand
    whole_mlps   the contenders as whole MLPs of tokens
    programs     compiled contenders, what they need and how long they take
    progress     what a program says while it runs
    contest      contenders compared, timed in turns, and their table
    checks       against float64, and against each other; rows and tables of reports
    formats      quantized weights
    quantized    the contenders on them, and their table

`./dev demo` is __main__.py, `./dev bench --jax` is bench_jax.py, and with --layer bench_layer.py.
"""
