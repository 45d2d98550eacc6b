"""Every conversion that a product makes on its way: what is read, what is rounded, and that a NaN stays one."""

import itertools

import ml_dtypes
import numpy as np
from exact_products import rounded
from raggemm import grouped_gemm

DTYPES = (np.float16, ml_dtypes.bfloat16, np.float32, np.float64)


@np.errstate(all="ignore")
def patterns(dtype) -> np.ndarray:
    """Every number of a 16-bit type; of the others random bits, and around every 16-bit number and tie."""
    size = np.dtype(dtype).itemsize
    if size == 2:
        return np.arange(1 << 16, dtype=np.uint16).view(dtype)
    rng = np.random.default_rng(0)
    unsigned = {4: np.uint32, 8: np.uint64}[size]
    anything = rng.integers(0, np.iinfo(unsigned).max, 1 << 16, unsigned, endpoint=True).view(dtype)
    near = []
    for narrow in (np.float16, ml_dtypes.bfloat16):
        numbers = np.arange(1 << 16, dtype=np.uint16).view(narrow)
        numbers = numbers[np.isfinite(numbers)]
        below = np.nextafter(numbers, narrow(0)).astype(dtype)
        near += [numbers.astype(dtype), (numbers.astype(dtype) + below) / 2]
    special = np.array([np.nan, -np.nan, np.inf, -np.inf, 0.0, -0.0], dtype)
    around = [np.nextafter(x, dtype(s)) for x in near for s in (-np.inf, np.inf)]
    return np.concatenate([anything, special, *near, *around])


@np.errstate(all="ignore")
def wrong_conversions() -> list[str]:
    """For each pair of dtypes of lhs and out, x*1 of all patterns: it is x, rounded once, and -0*1 + 0 is +0."""
    wrong = []
    for source, target in itertools.product(DTYPES, DTYPES):
        x = patterns(source)
        one = np.ones((1, 1, 1), source)
        out = grouped_gemm(x[None, :, None], one, contracting_dims=((2,), (1,)), preferred_element_type=target)
        got, want = np.asarray(out)[0, :, 0], rounded(x.astype(np.float64), target)
        same = (got == want) & (np.signbit(got) == np.signbit(want)) | (want == 0) & (got == 0)
        bad = ~(same | (np.isnan(got) & np.isnan(want)))
        if bad.any():
            i = np.argmax(bad)
            wrong.append(f"{np.dtype(source).name} to {np.dtype(target).name}: {bad.sum()}, {x[i]} became {got[i]}")
    return wrong
