import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import raggemm
from arrays import random
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from program_text import calls, custom_calls
from raggemm import GroupedTensor, gmm, grouped_gemm

SIZES = np.array([3, 0, 2, 4], np.int32)
M, K, N, G = 12, 8, 8, 4
LHS, RHS = random(M, K), random(G, K, N, seed=1)
close = functools.partial(np.testing.assert_allclose, rtol=2e-5, atol=2e-5)


def loss(x, w):
    return jnp.sin(gmm(x, w, SIZES)).sum()


def test_jit_is_one_custom_call_with_traced_sizes():
    compiled = jax.jit(lambda *args: gmm(*args))  # a new function, because JAX caches programs by function
    assert custom_calls(compiled.lower(LHS, RHS, SIZES)) == 1
    for sizes in (SIZES, SIZES[::-1]):
        np.testing.assert_array_equal(compiled(LHS, RHS, sizes), gmm(LHS, RHS, sizes))
    assert compiled._cache_size() == 1


def test_jaxpr_and_hlo_are_readable():
    gradient = jax.jit(jax.grad(loss, 1))
    jaxpr = str(jax.make_jaxpr(gradient)(LHS, RHS))
    assert "Storage(" not in jaxpr
    assert "call=RAGGED_M(" in jaxpr and "call=RAGGED_K(" in jaxpr
    hlo = gradient.lower(LHS, RHS).compile().as_text()
    scopes = {line.split('op_name="')[1].split('"')[0] for line in hlo.splitlines() if "custom_call_target" in line}
    assert any(x.endswith("/ragged_m/ffi_call") for x in scopes), scopes
    assert any("transpose(jvp(" in x and "/ragged_k/" in x for x in scopes), scopes
    call = functools.partial(gmm, transpose_rhs=True, existing_out=np.ones((M, N), np.float32))
    text = jax.jit(call).lower(LHS, RHS, SIZES).as_text()
    for attribute in ("rhs_is_trans = true", 'ragged = "lhs_first,out_first"', 'operands = "c,beta"'):
        assert attribute in text


def test_checkpoint_policy():
    """grouped_gemm_saveable saves only results of grouped GEMMs, so the backward pass recomputes dots."""
    square = random(K, K)

    def loss_of_rows(x, w):
        return loss(jnp.sin(x @ square), w)

    save_gemms = raggemm.grouped_gemm_saveable
    save_both = jax.checkpoint_policies.save_from_both_policies(jax.checkpoint_policies.dots_saveable, save_gemms)
    counts = {}
    for name, policy in {"none": None, "gemms": save_gemms, "both": save_both}.items():
        f = jax.value_and_grad(jax.checkpoint(loss_of_rows, policy=policy), (0, 1))
        counts[name] = calls(f, LHS, RHS).total(), str(jax.make_jaxpr(f)(LHS, RHS)).count("dot_general[")
        jax.tree.map(close, f(LHS, RHS), jax.value_and_grad(loss_of_rows, (0, 1))(LHS, RHS))
    _, dots = counts["none"]
    assert counts == {"none": (4, dots), "gemms": (3, dots), "both": (3, dots - 1)}


# Explicit meshes.


def square_mesh():
    return jax.make_mesh((2, 2), ("x", "y"), axis_types=(AxisType.Explicit,) * 2)


def gradients(f, count):
    return jax.jit(jax.grad(lambda *args: jnp.sin(f(*args)).sum(), tuple(range(count))))


@pytest.mark.parametrize("spec", [P("x"), P(None, "x"), P("x", "y"), P(None, None, "y"), P(("x", "y"))], ids=str)
def test_explicit_mesh_with_a_collapsed_axis(spec):
    explicit, sizes = square_mesh(), np.array([3, 0, 12, 4], np.int32)
    x = random(4, 6, K)

    def f(x, w):
        return grouped_gemm(GroupedTensor(x, first_dims=sizes), w, contracting_dims=((2,), (1,)))

    want, want_gradients = f(x, RHS), gradients(f, 2)(x, RHS)
    with jax.set_mesh(explicit):
        sharded_operands = [
            jax.device_put(a, NamedSharding(explicit, s)) for a, s in ((x, spec), (RHS, P(None, None, "y")))
        ]
        np.testing.assert_array_equal(f(*sharded_operands), want)
        got = gradients(f, 2)(*sharded_operands)
    for gradient, operand, want_gradient in zip(got, sharded_operands, want_gradients, strict=True):
        close(gradient, want_gradient)
        assert jax.typeof(gradient).sharding.spec == jax.typeof(operand).sharding.spec


def test_explicit_mesh_with_all_operands_and_a_batch():
    explicit, c, bias, alpha = square_mesh(), random(M, N, seed=2), random(G, N, seed=3), random(G)

    def f(x, w, c, bias, alpha):
        options = {"c": c, "bias": bias, "alpha": alpha, "beta": alpha, "group_offset": 0}
        return grouped_gemm(GroupedTensor(x, first_dims=SIZES), w, contracting_dims=((1,), (1,)), **options)

    operands = (LHS, RHS, c, bias, alpha)
    want, batch = gradients(f, 5)(*operands), random(4, M, K)
    want_batched = jax.vmap(gmm, (0, None, None))(batch, RHS, SIZES)
    with jax.set_mesh(explicit):
        specs = (P("x"), P("y"), P(None, "x"), P("x", "y"), P(("x", "y")))
        sharded_operands = [jax.device_put(a, NamedSharding(explicit, s)) for a, s in zip(operands, specs, strict=True)]
        jax.tree.map(close, gradients(f, 5)(*sharded_operands), want)
        rows, sizes = (jax.device_put(a, NamedSharding(explicit, P(s))) for a, s in ((batch, "x"), (SIZES, "y")))
        np.testing.assert_array_equal(jax.jit(jax.vmap(gmm, (0, None, None)))(rows, RHS, sizes), want_batched)
