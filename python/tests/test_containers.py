import itertools

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import raggemm
from arrays import sampled
from jax.sharding import PartitionSpec as P
from quantized_formats import broadcast_blocks
from raggemm import GroupedTensor, QuantizedTensor

same = np.testing.assert_array_equal
W = QuantizedTensor(np.zeros((4, 64, 32), ml_dtypes.int4), np.ones((4, 2, 32), np.float32))
TEXT = "QuantizedTensor(data=int4[4,64,32], scale=float32[4,2,32])"


REPRS = [
    (W, TEXT),
    (QuantizedTensor(W.data, jnp.float32(1), jnp.int4(1)),
     "QuantizedTensor(data=int4[4,64,32], scale=float32[], zero_point=int4[])"),
    (jax.eval_shape(lambda w: w, W), TEXT),
    (QuantizedTensor(P("expert"), P()), f"QuantizedTensor(data={P('expert')!r}, scale={P()!r})"),
    (QuantizedTensor(0, None, "x"), "QuantizedTensor(data=0, zero_point='x')"),
    (QuantizedTensor(None), "QuantizedTensor()"),
    (QuantizedTensor(np.zeros((2, 3), jax.dtypes.float0)), "QuantizedTensor(data=float0[2,3])"),
    (QuantizedTensor(W), f"QuantizedTensor(data={TEXT})"),
    (raggemm.prepack(jnp.ones((2, 3, 5))),
     "PackedWeights(data=float32[2,1,3,64], columns=5, transposed=False, quantized=False, version=1, "
     "layout='COLUMN_BLOCKS')"),
    (GroupedTensor(W, np.zeros(3, np.int32)), f"GroupedTensor(data={TEXT}, first_dims=int32[3], layout='STRIDED')"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("x", "text"),
    REPRS,
)
def test_repr_has_shapes_and_no_numbers(x, text):
    assert repr(x) == str(x) == text


# Indices along axis 0.

G, K, N = 4, 8, 3
MASK = np.array([True, False, True, True])
INDICES = [0, -1, np.int64(2), slice(1, 3), slice(None, None, -2), slice(4, 9), np.array([2, 0, 2]), np.array([], int)]
INDICES += [MASK, np.array(3), jnp.array([3, -4]), jnp.uint8(1)]
SHAPES = [None, (), (G,), (1, 1, 1), (1, 2, N), (G, 1, N), (G, K, 1)]


def numbers(shape, dtype, first=1):
    return None if shape is None else np.arange(first, np.prod(shape) + first).reshape(shape).astype(dtype)


def values(tensor):
    zero, scale = (
        np.full((), default) if x is None else broadcast_blocks(np.float64(x), tensor.shape)
        for x, default in ((tensor.zero_point, 0), (tensor.scale, 1))
    )
    return (np.float64(tensor.data) - zero) * scale


@pytest.mark.parametrize(
    ("arrays", "shape", "index"),
    sampled([*itertools.product((np.asarray, jnp.asarray), SHAPES, INDICES)], 11, unpack=True),
)
def test_an_index_takes_data_with_its_scales_and_zero_points(arrays, shape, index):
    for parts in ((shape, None), (None, shape), (shape, (G,))):
        tensor = QuantizedTensor(numbers((G, K, N), np.int8), numbers(parts[0], np.float32), numbers(parts[1], np.int8))
        want = values(tensor)[np.asarray(index)] if not isinstance(index, slice) else values(tensor)[index]
        part = jax.tree.map(arrays, tensor)[index]
        assert isinstance(part, QuantizedTensor)
        assert part.shape == want.shape
        if want.size:
            same(values(part), want)


def test_traced_indices_are_clamped():
    tensor = QuantizedTensor(numbers((G, K, N), np.int8), numbers((G, 1, N), np.float32), numbers((G,), np.int8))
    take = jax.jit(lambda i: tensor[i])
    for i, clamped in ((0, 0), (2, 2), (-1, 3), (9, 3), (-9, 0)):
        same(values(take(i)), values(tensor)[clamped])
    same(values(jax.vmap(lambda i: tensor[i])(jnp.array([3, 1]))), values(tensor)[[3, 1]])


@pytest.mark.parametrize(
    ("index", "error", "message"),
    [
        (4, IndexError, r"index is 4, must be in \[-4, 4\)"),
        (np.int32(-5), IndexError, r"index is .*-5.*, must be in"),
        ((0, 1), TypeError, r"index is \(0, 1\), must be an integer, a slice, or an array"),
        (None, TypeError, "index is None, must be"),
        (..., TypeError, "index is Ellipsis, must be"),
        (True, TypeError, "index is True, must be"),
        ([0, 1], TypeError, r"index is \[0, 1\], must be"),
        (np.array([[0]]), TypeError, "index is .*, must be"),
        (np.float32([0]), TypeError, "index is .*, must be"),
        (np.array(True), TypeError, "index is .*, must be"),
    ],
)
def test_wrong_indices(index, error, message):
    with pytest.raises(error, match=f"^{message}"):
        W[index]


def test_tensors_without_an_axis_to_index():
    halves = QuantizedTensor(W.data, np.ones((2, 1, 32), np.float32))
    with pytest.raises(
        IndexError, match=r"^scale: shape is \(2, 1, 32\) with data \(4, 64, 32\), which cannot be indexed along axis 0"
    ):
        halves[0]
    with pytest.raises(IndexError, match=r"^data has no axis"):
        QuantizedTensor(np.int8(3))[0]
    with pytest.raises(TypeError, match="len"):
        len(QuantizedTensor(np.array(3, np.int8)))


def test_a_quantized_tensor_is_no_array():
    for call in (np.asarray, jnp.asarray, lambda w: np.ones((2, 4)) @ w):
        with pytest.raises(TypeError, match=r"^a QuantizedTensor is not an array; "):
            call(W)
