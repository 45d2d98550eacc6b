"""Scales of float8_e8m0fnu near the ends of their range, 2^-127 and 2^127, that multiply elements: exact values."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import raggemm
from raggemm import QuantizedTensor
from raggemm._primitive import library

K, N = 64, 32
CODES = np.resize([0, 1, 2, 252, 253, 254], N)  # the scale of each column: 2^(code - 127)
VALUES = {  # the elements, one for each group
    jnp.float4_e2m1fn: [0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.5, -6],
    jnp.float8_e4m3fn: [2.0**-9, 2.0**-6, 1, 1.875, 4, 448, -448],
    jnp.float8_e5m2: [2.0**-16, 2.0**-14, 1, 1.75, 4, 57344, -57344],
    jnp.int8: [1, 2, 3, 4, 64, 127, -128],
    jnp.uint4: [1, 2, 3, 4, 15],
}
ISAS = [isa["name"] for isa in library.description()["isas"] if isa["usable"]]
FLUSHING = ("PAIRS", "TILES")  # rules that take numbers below 2^-126 for 0


def weights(dtype, transpose, codes=CODES):
    """Element VALUES[dtype][g] at step 40 of every column of group g, in the second of two blocks along K."""
    data = np.zeros((len(VALUES[dtype]), K, N), np.float32)
    data[:, 40] = np.asarray(VALUES[dtype])[:, None]
    scale = np.stack([np.full(N, 127), codes]).astype(np.uint8)
    scale = np.broadcast_to(scale, (len(data), 2, N))
    if transpose:
        data, scale = data.swapaxes(1, 2), scale.swapaxes(1, 2)
    return QuantizedTensor(
        jnp.asarray(data).astype(dtype), jax.lax.bitcast_convert_type(jnp.asarray(scale), jnp.float8_e8m0fnu)
    )


def elements(dtype, partner, rule):
    """[G,N]: what an element counts as beside a partner of this dtype, whose products are summed by this rule."""
    exact = np.asarray(VALUES[dtype], np.float64)[:, None] * 2.0 ** (CODES - 127.0)
    with np.errstate(over="ignore"):
        if partner != jnp.bfloat16:
            return exact.astype(np.float32).astype(np.float64)
        rounded = exact.astype(np.float32).astype(jnp.bfloat16).astype(np.float64)
    return np.where((abs(rounded) < 2.0**-126) & (rule in FLUSHING), 0, rounded)


# Multiplies large elements by a small number and small ones by a large one, so that no result is at an end itself.
PARTNER = np.where(CODES < 127, 2.0**12, 2.0**-12)


def rules(partner):
    return (*FLUSHING, "FMA") if partner == jnp.bfloat16 else ("PAIRS",)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", VALUES, ids=lambda t: jnp.dtype(t).name)
@pytest.mark.parametrize("rows", [jnp.float32, jnp.float16, jnp.bfloat16], ids=lambda t: jnp.dtype(t).name)
def test_products(isa, dtype, rows):
    groups = len(VALUES[dtype])
    for rule in rules(rows):
        want = elements(dtype, rows, rule) * PARTNER
        for transpose in (False, True):
            rhs = weights(dtype, transpose)
            for each in (1, 16):  # rows of a group
                sizes = np.full(groups, each, np.int32)
                with raggemm.options(isa=isa, bf16_sums=rule):
                    call = jax.jit(lambda lhs, q, s, t=transpose: raggemm.gmm(lhs, q, s, transpose_rhs=t))
                    parts = {
                        partner: np.asarray(call(jnp.full((groups * each, K), partner, rows), rhs, sizes))
                        for partner in set(PARTNER)
                    }
                out = np.where(PARTNER == 2.0**12, parts[2.0**12], parts[2.0**-12]).reshape(groups, each, N)
                for row in out.swapaxes(0, 1):
                    np.testing.assert_array_equal(row, want.astype(np.float32), err_msg=f"{rule} {transpose} {each}")


@pytest.mark.parametrize("dtype", VALUES, ids=lambda t: jnp.dtype(t).name)
@pytest.mark.parametrize("rows", [jnp.float32, jnp.bfloat16], ids=lambda t: jnp.dtype(t).name)
@pytest.mark.parametrize("out", [jnp.float32, jnp.bfloat16], ids=lambda t: jnp.dtype(t).name)
def test_gradient_of_lhs(dtype, rows, out):
    """The type of the cotangent, which is that of the result, decides."""
    groups = len(VALUES[dtype])
    lhs, sizes = jnp.zeros((groups, K), rows), np.ones(groups, np.int32)
    for rule in rules(out):
        want = (elements(dtype, out, rule) * PARTNER).astype(np.float32).astype(rows)
        with raggemm.options(bf16_sums=rule):
            call = jax.jit(lambda ct, q: jax.vjp(lambda lhs: raggemm.gmm(lhs, q, sizes, out), lhs)[1](ct)[0])
            for column in range(6):
                # One column with the scale, for an infinite element beside a cotangent of 0 is NaN.
                rhs = weights(dtype, False, np.where(np.arange(N) == column, CODES[column], 127))
                gradient = call(jnp.zeros((groups, N), out).at[:, column].set(jnp.asarray(PARTNER[column], out)), rhs)
                np.testing.assert_array_equal(gradient[:, 40], want[:, column], err_msg=rule)


def test_a_scale_of_all_of_k_multiplies_sums():
    """So that no element is rounded with it, or is infinite."""
    scale = jax.lax.bitcast_convert_type(jnp.asarray([[[0, 254]]], jnp.uint8), jnp.float8_e8m0fnu)
    data = np.zeros((1, K, 2), np.float32)
    data[0, 0] = 1, 4
    for rows in (jnp.float32, jnp.bfloat16):
        for partner, column, want in ((2.0**12, 0, 2.0**-115), (2.0**-12, 1, 2.0**117)):
            rhs = QuantizedTensor(jnp.asarray(data).astype(jnp.float4_e2m1fn), scale)
            out = raggemm.gmm(jnp.full((1, K), partner, rows), rhs, np.array([1]))
            assert out[0, column] == want
