"""`python -m raggemm.bench_jax`: see raggemm.demo.bench_jax."""

import sys

from raggemm.demo.bench_jax import main

if __name__ == "__main__":
    sys.exit(main())
