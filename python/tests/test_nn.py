"""raggemm.nn against the layer in float64, one token at a time, and its gradients against differences of that."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import raggemm
import routing_oracle as oracle
from arrays import random
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from raggemm import nn

SHAPE = nn.Shape(width=6, hidden=8, num_experts=5)
PARAMS = {name: np.asarray(x) for name, x in nn.init(jax.random.key(0), SHAPE).items()}
X = random(7, SHAPE.width)
SHARED = {"shared_up": random(6, 4, seed=5), "shared_down": random(4, 6, seed=6), "shared_router": random(6, 1, seed=7)}
close = functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-5)


def silu(x):
    return x * oracle.sigmoid(x)


def layer(params, x, top_k, **routing):
    """In float64; without "w_gate" the activation is of w_up."""
    p = {name: np.asarray(value).astype(np.float64) for name, value in params.items()}
    x = np.asarray(x).astype(np.float64)
    weights, experts = oracle.route(x @ p["router"], top_k, **{"score": "softmax"} | routing)
    out = np.zeros_like(x)
    for t, j in np.ndindex(experts.shape):
        e = experts[t, j]
        up = x[t] @ p["w_up"][e]
        inner = silu(x[t] @ p["w_gate"][e]) * up if "w_gate" in p else silu(up)
        out[t] += weights[t, j] * (inner @ p["w_down"][e])
    return out


def test_init(x64):
    """Also where JAX would make float64 numbers."""
    params = nn.init(jax.random.key(1), nn.Shape(64, 32, 16), jnp.bfloat16)
    shapes = {"router": (64, 16), "w_gate": (16, 64, 32), "w_up": (16, 64, 32), "w_down": (16, 32, 64)}
    assert {name: x.shape for name, x in params.items()} == shapes
    assert {name: x.dtype for name, x in params.items()} == dict.fromkeys(shapes, jnp.bfloat16) | {"router": np.float32}
    for name, x in params.items():
        summed = 32 if name == "w_down" else 64
        close(np.std(np.asarray(x, np.float64)), summed**-0.5, rtol=0.1)


@pytest.mark.parametrize("params", [PARAMS, PARAMS | SHARED], ids=["routed", "shared"])
@pytest.mark.parametrize("check_vma", [True, False])
def test_data_parallel(check_vma, params):
    """Tokens are sharded, and parameters replicated, whose gradients are summed."""
    x, target = random(8, SHAPE.width, seed=3), random(8, SHAPE.width, seed=4)
    mesh = jax.make_mesh((4,), ("data",), axis_types=(AxisType.Auto,))
    specs = {"mesh": mesh, "in_specs": (P(), P("data")), "out_specs": P("data"), "check_vma": check_vma}
    sharded = jax.shard_map(lambda params, x: nn.apply(params, x, 2).out, **specs)

    def with_gradient(f):
        return jax.jit(jax.value_and_grad(lambda params: (f(params, x) * target).sum()))(params)

    wanted = with_gradient(lambda params, x: nn.apply(params, x, 2).out)
    jax.tree.map(close, with_gradient(sharded), wanted)


@pytest.mark.parametrize("params", [PARAMS, PARAMS | SHARED], ids=["routed", "shared"])
def test_explicit_mesh_axes(params):
    """Tokens that a mesh divides are gathered where they are sorted; their gradients are divided as they are."""
    x, target = random(8, SHAPE.width, seed=3), random(8, SHAPE.width, seed=4)
    gradient = jax.jit(jax.grad(lambda params, x: (nn.apply(params, x, 2).out * target).sum(), (0, 1)))
    wanted = gradient(params, x)
    mesh = jax.make_mesh((4,), ("data",), axis_types=(AxisType.Explicit,))
    with jax.set_mesh(mesh):
        got = gradient(params, jax.device_put(x, NamedSharding(mesh, P("data"))))
    jax.tree.map(close, got, wanted)
    assert got[1].sharding.spec == P("data", None)


def test_errors():
    with pytest.raises(TypeError, match=r"^x: dtype is int32"):
        nn.apply(PARAMS, X.astype(np.int32), 2)
    with pytest.raises(ValueError, match=r"^top_k is 6, must be in"):
        nn.apply(PARAMS, X, 6)
    without = {name: x for name, x in PARAMS.items() if name != "w_down"}
    up = np.asarray(PARAMS["w_up"])
    wide = PARAMS | {"router": np.ones((X.shape[-1], 9), np.float32)}
    for params, options, message in (
        (without, {}, "^params: has no 'w_down', but"),
        (PARAMS | {"b_router": X}, {}, "^params: 'b_router' is no array of this layer, which are"),
        (PARAMS | {1: X}, {}, "^params: 1 is no array of this layer, which are"),
        (without | {1: X}, {}, "^params: has no 'w_down', but"),
        (PARAMS, {"row_slots": X}, "^row_slots: is no argument of apply"),
        (PARAMS, {"expert_bias": X[0]}, "^expert_bias: is no argument of apply, but an array of params"),
        (PARAMS | {"w_up": up[0]}, {}, rf"^params\['w_up'\]: shape is .*, must be \[G,{X.shape[-1]},I\]"),
        (PARAMS | {"w_up": up.swapaxes(1, 2)}, {}, rf"^params\['w_up'\]: shape is .*, must be \[G,{X.shape[-1]},I\]"),
        (PARAMS | {"w_down": up}, {}, rf"^params\['w_down'\]: shape is .*, must be \[G,I,{X.shape[-1]}\]"),
        (wide | {"w_up": raggemm.quantize(up, np.int8)}, {}, "^params: router has 9 experts, but w_up has"),
        (wide | {"w_up": raggemm.prepack(up)}, {}, "^params: router has 9 experts, but w_up has"),
        (wide, {}, f"^params: router has 9 experts, but w_up has {PARAMS['w_up'].shape[0]}"),
        (
            PARAMS | {"router": PARAMS["router"][1:]},
            {},
            r"^x: shape is .*, must end with the rows of params\['router'\]",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            nn.apply(params, X, 2, **options)
    with pytest.raises(TypeError, match=r"^dtype: .*float64, must be float16, bfloat16 or float32"):
        nn.init(jax.random.key(0), nn.Shape(4, 4, 2), np.float64)
