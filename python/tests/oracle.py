"""Computes grouped_gemm in float64, and the tolerance of each result. Follows the documentation, not the code.

Rows that a call quantizes (lhs_quantize) have a rule of every bit, which rounded_product follows.

A group's matrix is an array of positions in the flattened `data` of the operand.
"""

import dataclasses
import math

import ml_dtypes
import numpy as np


@dataclasses.dataclass
class Expected:
    want: np.ndarray  # expected value of each element, float64
    bound: np.ndarray  # largest permitted error of each element

    def check(self, got) -> None:
        got = np.asarray(got)
        assert got.shape == self.want.shape, (got.shape, self.want.shape)
        error = self.error(got)
        if error.size and error.max() > 1:
            worst = np.unravel_index(np.argmax(error), error.shape)
            raise AssertionError(
                f"{(error > 1).sum()} of {error.size} elements are wrong; at {tuple(map(int, worst))} "
                f"got {got[worst]}, want {self.want[worst]} +- {self.bound[worst]}: {error[worst]} times the tolerance"
            )

    def error(self, got: np.ndarray) -> np.ndarray:
        """Returns each element's error divided by its tolerance. A wrong NaN or infinity has an infinite error."""
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            rounded = self.want.astype(got.dtype).astype(np.float64)
            got = got.astype(np.float64)
            error = np.abs(got - self.want) / self.bound
            exact = (got == self.want) | (np.isinf(rounded) & (got == rounded)) | (np.isnan(got) & np.isnan(self.want))
        return np.where(exact, 0, np.where(np.isnan(error), np.inf, error))


def compute_type(*dtypes) -> type:
    return np.float64 if np.dtype(np.float64) in map(np.dtype, dtypes) else np.float32


def tolerance(k, magnitude, want, compute, out, alpha=1.0):
    """Returns the largest permitted error of each element of the result `want`.

    compute: type of the sums. out: type of the result. magnitude: |alpha| * sum of |a||b| + |beta c| + |bias|, for
      each element. k: number of products in a sum.
    """
    c, o = ml_dtypes.finfo(compute), ml_dtypes.finfo(out)
    bound = float(c.eps) * (258 + k / 256) * magnitude + float(o.eps) * np.abs(want)
    return bound + (abs(alpha) * k + 4) * float(c.smallest_subnormal) + float(o.smallest_subnormal)


def membership(sizes, rows, dtype):
    """Returns an array [..., G, rows] with 1 if a row is in a group, else 0."""
    ends = sizes.cumsum(-1)[..., None]
    row = np.arange(rows)
    return ((ends > row) & (ends - sizes[..., None] <= row)).astype(dtype)


def _slices(sizes):
    ends = np.cumsum(sizes, dtype=np.int64)
    return [slice(end - size, end) for end, size in zip(ends.tolist(), np.asarray(sizes).tolist(), strict=True)]


def _packed(rows, cols, trans):
    """Returns the flat positions of each matrix [rows[g],cols[g]].

    The matrices are stored one after another. trans: transposes the returned arrays.
    """
    positions, start = [], 0
    for m, n in zip(rows, cols, strict=True):
        block = start + np.arange(m * n).reshape(m, n)
        positions.append(block.T if trans else block)
        start += m * n
    return positions


def _positions(x, axes, groups, has_group_axis):
    """Returns the flat positions of each group's matrix in x.data.

    The second axis of each array is the contracted axis.
    """
    if x.first_dims is not None and x.last_dims is not None:
        return _packed(x.first_dims, x.last_dims, axes == (0,))
    position = np.arange(np.size(x.data)).reshape(np.shape(x.data))
    axes = tuple(a % position.ndim for a in axes)
    lead = 1 if has_group_axis else 0
    contracts_first = axes[0] == lead
    boundary = axes[-1] + 1 if contracts_first else axes[0]
    shape = position.shape
    if has_group_axis:
        matrices = list(position.reshape(shape[0], math.prod(shape[1:boundary]), math.prod(shape[boundary:])))
    else:
        matrix = position.reshape(math.prod(shape[:boundary]), math.prod(shape[boundary:]))
        if x.first_dims is not None:
            matrices = [matrix[rows] for rows in _slices(x.first_dims)]
        elif x.last_dims is None:
            matrices = [matrix] * groups
        elif x.layout == "PACKED":
            matrices = _packed([len(matrix)] * groups, x.last_dims, False)
        else:
            matrices = [matrix[:, cols] for cols in _slices(x.last_dims)]
    return [m.T for m in matrices] if contracts_first else matrices


def _free_shape(x, axes, has_group_axis):
    axes = [a % np.ndim(x.data) for a in axes]
    return tuple(n for a, n in enumerate(np.shape(x.data)) if a >= has_group_axis and a not in axes)


def _out_positions(sizes, m, n, rows_are_ragged, layout):
    matrix = np.arange(m * n).reshape(m, n)
    if rows_are_ragged:
        return [matrix[rows] for rows in _slices(sizes)]
    if layout == "PACKED":
        return _packed([m] * len(sizes), sizes, False)
    return [matrix[:, cols] for cols in _slices(sizes)]


def _products(lhs, rhs, contracting_dims, first, num_actual_groups, out_size, out_layout):
    """Returns (shape of the result, groups). Each processed group has flat positions in lhs, rhs and the result."""
    lhs_axes, rhs_axes = map(tuple, contracting_dims)
    lhs_dims, rhs_dims = ([d for d in (x.first_dims, x.last_dims) if d is not None] for x in (lhs, rhs))
    sizes = (lhs_dims + rhs_dims + [None])[0]
    lhs_grouped = not lhs_dims and (not rhs_dims or np.ndim(lhs.data) - len(lhs_axes) > 1)
    total = np.shape(lhs.data)[0] if sizes is None else len(sizes)
    left = _positions(lhs, lhs_axes, total, lhs_grouped)
    right = [p.T for p in _positions(rhs, rhs_axes, total, not rhs_dims)]
    if len(lhs_dims) == 2:
        return (out_size,), list(
            zip(left, right, _packed(map(len, left), (p.shape[1] for p in right), False), strict=True)
        )

    shape = (*_free_shape(lhs, lhs_axes, lhs_grouped), *_free_shape(rhs, rhs_axes, not rhs_dims))
    m, n = math.prod(_free_shape(lhs, lhs_axes, lhs_grouped)), math.prod(_free_shape(rhs, rhs_axes, not rhs_dims))
    if bool(lhs_dims) == bool(rhs_dims):  # Ragged K and uniform: out has only the processed groups.
        local = total if num_actual_groups is None else num_actual_groups
        shape, out = (local, *shape), list(np.arange(local * m * n).reshape(local, m, n))
        return shape, list(zip(left[first : first + local], right[first : first + local], out, strict=True))
    out = _out_positions(sizes, m, n, bool(lhs_dims), out_layout)
    if lhs_dims:  # Ragged M: rhs has only the processed groups.
        left, out = left[first : first + len(right)], out[first : first + len(right)]
    return shape, list(zip(left, right, out, strict=True))


def grouped_gemm(
    lhs,
    rhs,
    *,
    contracting_dims,
    c=None,
    bias=None,
    alpha=None,
    beta=None,
    group_offset=0,
    num_actual_groups=None,
    out_size=None,
    out_layout="STRIDED",
    preferred_element_type=None,
) -> Expected:
    """Returns the expected result of raggemm.grouped_gemm. lhs and rhs are GroupedTensors."""
    first = int(np.asarray(group_offset).reshape(-1)[0])
    shape, groups = _products(lhs, rhs, contracting_dims, first, num_actual_groups, out_size, out_layout)
    lhs_dtype, rhs_dtype = (np.asarray(x.data).dtype for x in (lhs, rhs))
    dtype = np.dtype(preferred_element_type or lhs_dtype)
    compute = compute_type(lhs_dtype, rhs_dtype, dtype)

    def flat(x):
        return np.asarray(x).astype(np.float64).reshape(-1)

    def each(values):
        return np.broadcast_to(1.0 if values is None else np.asarray(values).astype(np.float64), (len(groups),))

    x, y = flat(lhs.data), flat(rhs.data)
    old = np.zeros(math.prod(shape)) if c is None else flat(c)
    want, bound = old.copy(), np.zeros_like(old)
    for g, (left, right, out) in enumerate(groups):
        alpha_g, beta_g = each(alpha)[g], each(beta)[g] * (c is not None)
        with np.errstate(all="ignore"):
            value, magnitude = alpha_g * (x[left] @ y[right]), abs(alpha_g) * (np.abs(x[left]) @ np.abs(y[right]))
            if beta_g != 0:
                value, magnitude = value + beta_g * old[out], magnitude + np.abs(beta_g * old[out])
            if bias is not None:
                value, magnitude = value + flat(bias[g]), magnitude + np.abs(flat(bias[g]))
            want[out] = value
            bound[out] = tolerance(left.shape[1], magnitude, value, compute, dtype, alpha_g)
    return Expected(want.reshape(shape), bound.reshape(shape))


# Rows that a call quantizes to int8.


def quantize_rows(x, block):
    """Quantizes rows of float32 [M,K]. Returns codes, int64 [M,K], and scales, float32 [M,blocks].

    block: number of elements that share a scale, or None for the whole row. The last block of a row may be shorter.
    """
    x = np.asarray(x).astype(np.float32)
    starts = np.arange(0, x.shape[1], block or max(x.shape[1], 1))
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        largest = np.maximum.reduceat(np.abs(x), starts, axis=1) if x.size else np.zeros((len(x), len(starts)))
        scales = np.where(np.isfinite(largest), largest.astype(np.float32) / np.float32(127), np.float32(np.nan))
        each = np.repeat(scales, np.diff([*starts, x.shape[1]]), axis=1)
        quotients = np.clip(np.rint(x / each), -127, 127)
    return np.where(np.isfinite(quotients), quotients, 0).astype(np.int64), scales


def _fma(a, b, c):
    """Returns a * b + c for float32, rounded once."""
    with np.errstate(invalid="ignore", over="ignore"):
        product, c = np.float64(a) * np.float64(b), np.float64(c)  # The product of two float32 is exact.
        total = product + c
        virtual = total - product
        error = (product - (total - virtual)) + (c - virtual)
        # If the sum in float64 is not exact, its last bit is made odd. Then rounding to float32 gives the same as
        # rounding the exact sum.
        bits = total.view(np.int64)
        away = (error > 0) == (total > 0)
        odd = np.where((error != 0) & np.isfinite(error) & (bits % 2 == 0), bits + np.where(away, 1, -1), bits)
        return odd.view(np.float64).astype(np.float32)


def rounded_product(x, w, scale=None, zero_point=None, block=32):
    """Computes rows x [M,K], quantized in blocks, times a matrix w [K,N] of integers or float4_e2m1fn: float32 [M,N].

    scale, zero_point: None, or arrays with two axes that divide those of w.
    """
    codes, row_scales = quantize_rows(x, block)
    k, n = w.shape
    doubled = w.dtype == ml_dtypes.float4_e2m1fn
    elements = (np.float32(w) * 2).astype(np.int64) if doubled else w.astype(np.int64)
    scale = np.ones((1, 1), np.float32) if scale is None else np.float64(scale).astype(np.float32)
    scale = scale * np.float32(0.5 if doubled else 1)
    zero_rows = k
    if zero_point is not None:
        zero_rows = k // len(zero_point)
        elements = elements - _repeat_blocks(zero_point.astype(np.int64), w.shape)
    block, rows = block or max(k, 1), k // len(scale)
    total = np.zeros((len(x), n), np.float32)
    starts = sorted({*range(0, k, block), *range(0, k, max(rows, 1)), *range(0, k, max(zero_rows, 1))})
    for start, end in zip(starts, [*starts[1:], k], strict=True):
        sums = (codes[:, start:end] @ elements[start:end]).astype(np.float32)
        columns = np.broadcast_to(np.repeat(scale[start // rows], n // scale.shape[1]), (n,))
        total = _fma(row_scales[:, start // block, None] * columns, sums, total)
    return total


def _repeat_blocks(values, shape):
    for axis, extent in enumerate(shape):
        values = values.repeat(extent // values.shape[axis], axis)
    return values
