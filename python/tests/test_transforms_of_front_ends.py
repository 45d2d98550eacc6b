"""The transforms of JAX on each front end, in float64 against dense products with masks."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import raggemm
from front_ends import FRONT_ENDS, SIZES, loss_of, random
from program_text import calls
from raggemm import GroupedTensor, grouped_gemm, tgmm

pytestmark = pytest.mark.usefixtures("x64")

BATCH = 2
close = functools.partial(np.testing.assert_allclose, rtol=1e-12, atol=1e-12)
each_front_end = pytest.mark.parametrize("front_end", FRONT_ENDS, ids=lambda f: f.name)


@each_front_end
def test_gradient_of_vmap_with_shared_weights_is_one_call(front_end):
    x, w = front_end.operands(BATCH)[0], front_end.operands()[1]
    sizes = np.stack([SIZES, SIZES[::-1]])

    def loss(f):
        return lambda w: jax.vmap(loss_of(f), (0, None, 0))(x, w, sizes).sum()

    gradient = jax.grad(loss(front_end.ours))
    counted = calls(gradient, w)
    assert counted.total() == 2
    assert counted[front_end.w_gradient] == 1
    close(jax.jit(gradient)(w), jax.grad(loss(front_end.dense))(w))


@each_front_end
def test_checkpoint_policy(front_end):
    """Results of grouped GEMMs are kept, and only they: those of dots are computed again."""
    x, w = front_end.operands()
    square = random(x.shape[1], x.shape[1])

    def loss(x, w):
        return loss_of(front_end.ours)(jnp.sin(x @ square), w)

    def gradients(policy):
        return jax.value_and_grad(jax.checkpoint(loss, policy=policy), (0, 1))

    both = jax.checkpoint_policies.save_from_both_policies(
        jax.checkpoint_policies.dots_saveable, raggemm.grouped_gemm_saveable
    )
    counted = {}
    for name, policy in {"none": None, "ours": raggemm.grouped_gemm_saveable, "both": both}.items():
        f = gradients(policy)
        dots = str(jax.make_jaxpr(f)(x, w)).count("dot_general[")
        counted[name] = (calls(f, x, w).total(), dots)
        jax.tree.map(close, f(x, w), jax.value_and_grad(loss, (0, 1))(x, w))
    grouped, dots = counted["none"]
    assert counted == {"none": (4, dots), "ours": (3, dots), "both": (3, dots - 1)}, (grouped, counted)


@pytest.mark.parametrize("front_end", FRONT_ENDS[:3:2], ids=lambda f: f.name)
def test_accumulates_in_place(front_end):
    """c is donated, carried through a scan, and written where it lies: no copy of it in the program."""
    xs, ws = front_end.operands(BATCH)
    accumulate = {
        "gmm": lambda c, x, w: grouped_gemm(GroupedTensor(x, SIZES), w, contracting_dims=((1,), (1,)), c=c),
        "tgmm": lambda c, x, w: tgmm(x.T, w, SIZES, np.float64, existing_out=c),
    }[front_end.name]

    def total(c, xs, ws):
        return jax.lax.scan(lambda c, xw: (accumulate(c, *xw), None), c, (xs, ws))[0]

    c = jnp.ones(front_end.dense(xs[0], ws[0]).shape)

    def copies(compiled):
        extents = ",".join(map(str, c.shape))
        return [line for line in compiled.as_text().splitlines() if f"f64[{extents}]" in line and " copy(" in line]

    compiled = jax.jit(total, donate_argnums=0).lower(c, xs, ws).compile()
    assert copies(compiled) == []
    assert copies(jax.jit(total).lower(c, xs, ws).compile()) != []
    pointer = c.unsafe_buffer_pointer()
    out = compiled(c, xs, ws)
    assert out.unsafe_buffer_pointer() == pointer
    assert c.is_deleted()
    close(out, 1 + sum(front_end.dense(x, w) for x, w in zip(xs, ws, strict=True)))


@each_front_end
def test_jaxpr_and_hlo_can_be_read(front_end):
    """Modes and attributes by their names, in one line, and the same words in both."""
    x, w = front_end.operands()
    gradient = jax.jit(jax.grad(loss_of(front_end.ours), 1))
    jaxpr = str(jax.make_jaxpr(gradient)(x, w))
    assert "Storage(" not in jaxpr
    forward = "RAGGED_M(" if front_end.w_gradient == "RAGGED_K" else "RAGGED_K("
    assert f"call={forward}" in jaxpr
    assert f"call={front_end.w_gradient}(" in jaxpr
    assert "name=_grouped_gemm" in jaxpr
    hlo = gradient.lower(x, w).compile().as_text()
    scopes = {line.split('op_name="')[1].split('"')[0] for line in hlo.splitlines() if "custom_call_target" in line}
    assert any(x.endswith(f"/{forward[:-1].lower()}/ffi_call") for x in scopes), scopes
    assert any("transpose(jvp(" in x and f"/{front_end.w_gradient.lower()}/" in x for x in scopes), scopes
    for words in ("ragged = ", "_is_trans = true"):
        assert words in hlo
