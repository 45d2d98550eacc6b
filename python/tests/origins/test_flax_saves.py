"""Tests that flax.serialization saves and restores raggemm's types bit by bit."""

import subprocess
import sys

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import raggemm
from flax import serialization
from quantized_formats import FLOATS, INTEGERS, SCALES, codes, dtype_of
from raggemm import GroupedTensor, QuantizedTensor

G, K, N = 2, 32, 5
SIZES = np.array([3, 4], np.int32)
X = np.random.default_rng(0).normal(size=(7, K)).astype(np.float32)


def save_and_restore(tree):
    zeros = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), tree)
    got = serialization.from_bytes(zeros, serialization.to_bytes(tree))
    assert jax.tree.structure(got) == jax.tree.structure(tree)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(tree), strict=True):
        assert (a.dtype, a.shape, np.asarray(a).tobytes()) == (b.dtype, b.shape, np.asarray(b).tobytes())
    return got


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("name", [*INTEGERS, *FLOATS])
def test_every_element_of_every_format(name, scale):
    data = np.resize(codes(name), (G, 128, 2))
    tensor = QuantizedTensor(
        data, np.arange(1, G + 1).astype(dtype_of(scale)), data[0, 0, 0] if name in INTEGERS else None
    )
    tree = {"layer": {"w": tensor}, "also": [jax.tree.map(jnp.asarray, tensor), np.float32(3)]}
    assert isinstance(save_and_restore(tree)["layer"]["w"], QuantizedTensor)


def weights():
    return np.random.default_rng(1).normal(size=(G, N, K)).astype(np.float32)


@pytest.mark.parametrize("quantized", [True, False])
def test_restored_packed_weights_have_the_same_products(quantized):
    w = raggemm.quantize(weights(), jnp.int4, axes=2) if quantized else weights().astype(ml_dtypes.bfloat16)
    packed = raggemm.prepack(w, transpose=True)
    got = save_and_restore({"w": packed})["w"]
    assert (got.columns, got.transposed, got.quantized, got.version) == (N, True, quantized, packed.version)
    np.testing.assert_array_equal(raggemm.gmm(X, got, SIZES), raggemm.gmm(X, w, SIZES, transpose_rhs=True))


def test_static_fields_are_restored():
    wide, narrow = (raggemm.prepack(np.ones((G, K, n), np.float32)) for n in (40, 50))
    assert serialization.from_bytes(narrow, serialization.to_bytes(wide)).columns == 40


def test_other_types_are_restored():
    w = raggemm.quantize(weights(), jnp.int8, axes=1)
    save_and_restore(GroupedTensor(w, first_dims=jnp.asarray(SIZES), layout="PACKED"))
    save_and_restore(raggemm.sort_by_expert(np.array([[0, 1], [1, 0]]), 2))


def test_missing_fields_are_an_error():
    tensor = QuantizedTensor(np.zeros(3, np.int8))
    with pytest.raises(
        ValueError, match=r"^QuantizedTensor has the fields .*'zero_point'\], the saved state has \['data'\]"
    ):
        serialization.from_state_dict(tensor, {"data": tensor.data})


@pytest.mark.parametrize("imports", ["import flax, raggemm", "import raggemm, flax"])
def test_either_import_may_come_first(imports):
    code = f"{imports}; import numpy as np; w = raggemm.QuantizedTensor(np.arange(3, dtype=np.int8)); "
    code += "print(flax.serialization.from_bytes(w, flax.serialization.to_bytes(w)).data)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "[0 1 2]\n", done.stderr


def test_raggemm_imports_no_flax():
    code = (
        "import raggemm, sys, numpy as np; raggemm.QuantizedTensor(np.zeros(3, np.int8)); print('flax' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "False\n", done.stderr
