"""Tests raggemm.nn with the options of known models against the formulas of their layers in float64."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import raggemm
import routing_oracle as oracle
from arrays import random, sampled
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from raggemm import Activation, nn
from routing_oracle import best, sigmoid, softmax

H, INNER, S, E, T = 6, 10, 12, 8, 7
X = random(T, H)
close = functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5)


def silu(x):
    return x * sigmoid(x)


def arrays(*names, experts=E):
    shapes = {
        "router": (H, experts),
        "w_gate": (experts, H, INNER),
        "w_up": (experts, H, INNER),
        "w_down": (experts, INNER, H),
        "b_up": (experts, 2 * INNER),
        "b_down": (experts, H),
        "router_bias": (experts,),
        "expert_bias": (experts,),
        "shared_gate": (H, S),
        "shared_up": (H, S),
        "shared_down": (S, H),
        "shared_router": (H, 1),
    }
    every = {name: random(*shape, seed=i) for i, (name, shape) in enumerate(shapes.items())}
    return {name: every[name] for name in ("router", "w_gate", "w_up", "w_down", *names)}


SHARED = ("shared_gate", "shared_up", "shared_down")


def expert(p, x, e=None):
    """Returns the result of expert e for a token x, or of the shared expert if e is None."""
    gate, up, down = (p[f"w_{w}"][e] if e is not None else p[f"shared_{w}"] for w in ("gate", "up", "down"))
    return (silu(x @ gate) * (x @ up)) @ down


def weighted(p, x, experts, weights):
    return sum(w * expert(p, x, e) for e, w in zip(experts, weights, strict=True))


def qwen3(p, x, top_k=4):
    scores = softmax(x @ p["router"])
    chosen = best(scores, top_k)
    return weighted(p, x, chosen, scores[chosen] / scores[chosen].sum())


def qwen2(p, x, top_k=3):
    scores = softmax(x @ p["router"])
    chosen = best(scores, top_k)
    return weighted(p, x, chosen, scores[chosen]) + sigmoid(x @ p["shared_router"]) * expert(p, x)


def deepseek_v3(p, x, top_k=3, groups=4, group_top_k=2, factor=2.5):
    scores = sigmoid(x @ p["router"])
    biased = (scores + p["expert_bias"]).reshape(groups, -1)
    kept = best(np.sort(biased, 1)[:, -2:].sum(1), group_top_k)
    masked = np.where(np.isin(np.arange(groups), kept)[:, None], biased, -np.inf).reshape(-1)
    chosen = best(masked, top_k)
    return weighted(p, x, chosen, factor * scores[chosen] / scores[chosen].sum()) + expert(p, x)


def llama_4(p, x):
    logits = x @ p["router"]
    (e,) = best(logits, 1)
    return expert(p, sigmoid(logits[e]) * x, e) + expert(p, x)


def gpt_oss(p, x, top_k=3):
    """Computes the layer for a token x. Columns of gate and up alternate in w_up and b_up."""
    logits = x @ p["router"] + p["router_bias"]
    chosen = best(logits, top_k)
    out = np.zeros(H)
    for e, weight in zip(chosen, softmax(logits[chosen]), strict=True):
        gate_up = x @ p["w_up"][e] + p["b_up"][e]
        gate, up = np.minimum(gate_up[::2], 7), np.clip(gate_up[1::2], -7, 7)
        out += weight * (((up + 1) * gate * sigmoid(1.702 * gate)) @ p["w_down"][e] + p["b_down"][e])
    return out


def gpt_oss_arrays():
    """Returns arrays with which some values of gate and up exceed the limit of 7."""
    params = arrays("b_up", "b_down", "router_bias")
    gate_up = np.stack([params.pop("w_gate"), params.pop("w_up")], 3).reshape(E, H, 2 * INNER)
    return params | {"w_up": 3 * gate_up}


def relu2(x):
    return np.maximum(x, 0) ** 2


def nemotron_3(p, x, top_k=3, factor=2.5):
    """Computes the layer for a token x. Experts have no gate."""
    scores = sigmoid(x @ p["router"])
    chosen = best(scores + p["expert_bias"], top_k)
    out = relu2(x @ p["shared_up"]) @ p["shared_down"]
    for e, weight in zip(chosen, factor * scores[chosen] / scores[chosen].sum(), strict=True):
        out += weight * (relu2(x @ p["w_up"][e]) @ p["w_down"][e])
    return out


def nemotron_3_arrays():
    params = arrays("expert_bias", "shared_up", "shared_down")
    del params["w_gate"]
    return params


def clamped(p, x, top_k=4, limit=0.75):
    scores = softmax(x @ p["router"])
    out = np.zeros(H)
    for e in (chosen := best(scores, top_k)):
        a = silu(np.minimum(x @ p["w_gate"][e], limit)) * np.clip(x @ p["w_up"][e], -limit, limit)
        out += scores[e] / scores[chosen].sum() * (a @ p["w_down"][e])
    return out


shared_arrays = functools.partial(arrays, *SHARED)
GROUPS = {"num_groups": 4, "group_top_k": 2}
# {model: (function that makes params of nn.apply, further arguments, options, formula for one token)}
FAMILIES = {
    "Qwen3-MoE": (arrays, (4,), {"pre_softmax": True, "renormalize": True}, qwen3),
    "Qwen2-MoE": (functools.partial(shared_arrays, "shared_router"), (3,), {"pre_softmax": True}, qwen2),
    "DeepSeek-V3": (functools.partial(shared_arrays, "expert_bias"), (3,),
        {"score": "sigmoid", "scaling_factor": 2.5, **GROUPS}, deepseek_v3),
    "Llama 4": (shared_arrays, (1,), {"score": "sigmoid", "weight_on": "input"}, llama_4),
    "gpt-oss": (gpt_oss_arrays, (3, "swiglu_oai"), {"merged": "interleaved"}, gpt_oss),
    "Nemotron-3": (nemotron_3_arrays, (3, "relu2"), {"score": "sigmoid", "scaling_factor": 2.5}, nemotron_3),
    "clamped SwiGLU": (arrays, (4, Activation("swiglu_clamped", limit=0.75)),
        {"pre_softmax": True, "renormalize": True}, clamped),
}  # fmt: skip


def reference_layer(formula, params, x):
    p = {name: np.asarray(w, np.float64) for name, w in params.items()}
    return np.array([formula(p, token) for token in np.asarray(x, np.float64)])


def family(name):
    make, arguments, options, formula = FAMILIES[name]
    run = lambda params, x: nn.apply(params, x, *arguments, **options)  # noqa: E731
    return make(), run, functools.partial(reference_layer, formula)


@pytest.mark.parametrize("name", FAMILIES)
def test_values_match_the_formula(name):
    params, run, want = family(name)
    out, logits, _ = jax.jit(run)(params, X)
    close(out, want(params, X))
    close(logits, X @ params["router"] + params.get("router_bias", 0))


@pytest.mark.parametrize("name", sampled(FAMILIES, 3))
def test_gradients(name):
    params, run, want = family(name)
    ct = random(T, H, seed=20)
    got, dx = jax.jit(jax.grad(lambda params, x: (run(params, x).out * ct).sum(), (0, 1)))(params, X)
    near = functools.partial(close, rtol=1e-3, atol=1e-3)
    near(dx, oracle.gradient(lambda x: (want(params, x) * ct).sum(), X))
    for key in params.keys() - {"w_gate", "w_up", "w_down"}:
        want_gradient = oracle.gradient(lambda w, key=key: (want(params | {key: w}, X) * ct).sum(), params[key])
        near(got[key], 0 * want_gradient if key == "expert_bias" else want_gradient, err_msg=key)


# Storage of matrices.

V3 = FAMILIES["DeepSeek-V3"][2]


def change_matrices(params, change, keys=None):
    return params | {
        key: change(w) for key, w in params.items() if key.rpartition("_")[2] in (keys or ("gate", "up", "down"))
    }


def transpose(w):
    return np.ascontiguousarray(w.swapaxes(-1, -2))


def merge_gates(params, layout):
    """Merges w_gate into w_up and shared_gate into shared_up, as `merged` of moe_mlp describes.

    layout: "halves" or "interleaved".
    """
    out = {key: w for key, w in params.items() if not key.endswith("gate")}
    for kind in ("w", "shared"):
        gate, up = params[f"{kind}_gate"], params[f"{kind}_up"]
        gate_up = (
            np.concatenate([gate, up], -1)
            if layout == "halves"
            else np.stack([gate, up], -1).reshape(*up.shape[:-1], -1)
        )
        out[f"{kind}_up"] = gate_up
    return out


def pack(w):
    w = w if w.ndim == 3 else w[None]
    return raggemm.prepack(w)


STORAGES = {
    "transposed": (lambda p: change_matrices(p, transpose), {"transpose_up": True, "transpose_down": True}),
    "up transposed": (lambda p: change_matrices(p, transpose, ("gate", "up")), {"transpose_up": True}),
    "halves": (lambda p: merge_gates(p, "halves"), {"merged": "halves"}),
    "interleaved": (lambda p: merge_gates(p, "interleaved"), {"merged": "interleaved"}),
    "halves transposed": (lambda p: change_matrices(merge_gates(p, "halves"), transpose),
        {"merged": "halves", "transpose_up": True, "transpose_down": True}),
    "packed": (lambda p: change_matrices(p, pack), {}),
}  # fmt: skip


@pytest.mark.parametrize("storage", sampled(STORAGES, 3))
def test_storage_of_matrices(storage):
    change, options = STORAGES[storage]
    params, _, want = family("DeepSeek-V3")
    run = jax.jit(lambda params, x: nn.apply(params, x, 3, **V3, **options).out)
    close(run(change(params), X), want(params, X))


def test_no_tokens_and_batches_of_tokens():
    params, run, want = family("Qwen2-MoE")
    run = jax.jit(run)
    assert run(params, X[:0]).out.shape == (0, H)
    batch = random(2, T, H, seed=3)
    for got in (run(params, batch).out, jax.vmap(lambda x: run(params, x).out)(batch)):
        close(got, [want(params, x) for x in batch])


ERRORS = [
    ({"shared_up": None}, {}, "params: 'shared_up' is missing, 'shared_gate' is given"),
    ({"shared_down": None}, {}, "params: 'shared_down' is missing, 'shared_up' is given"),
    ({key: None for key in SHARED} | {"shared_router": X[:H, :1]}, {},
     "params: 'shared_up' is missing, 'shared_router' is given"),
    ({"shared_router": X[0]}, {}, r"params\['shared_router'\]: shape is \(6,\), must be \(6, 1\)"),
    ({"router_bias": X[0]}, {}, r"params\['router_bias'\]: shape is \(6,\), must be \(8,\)"),
    ({"b_up": X}, {}, r"b_up: shape is \(7, 6\), must be \(8, 10\)"),
    ({"shared_up": X[None]}, {}, r"params\['shared_up'\]: shape is \(1, 7, 6\), must be \[6,I\]"),
    ({"shared_up": X}, {}, r"params\['shared_up'\]: shape is \(7, 6\), must be \[6,I\]"),
    ({"shared_down": X.T}, {}, r"params\['shared_down'\]: shape is \(6, 7\), must be \[I,6\]"),
    ({"shared_down": X}, {}, r"params\['shared_up'\]: has 12 columns, must have 7 to match shared_down"),
    ({"shared_up": raggemm.prepack(random(2, H, S))}, {}, r"params\['shared_up'\]: has 2 experts, must have one"),
    ({}, {"transpose_up": True}, r"params\['w_up'\]: shape is \(8, 6, 10\), must be \[G,I,6\]"),
    ({}, {"transpose_down": True}, r"params\['w_down'\]: shape is \(8, 10, 6\), must be \[G,6,I\]"),
    ({"w_gate": None}, {"merged": "halves"}, r"params\['shared_gate'\]: must not be given with merged"),
]  # fmt: skip


SHAPE = nn.Shape(width=6, hidden=8, num_experts=5)
PARAMS = {name: np.asarray(x) for name, x in nn.init(jax.random.key(0), SHAPE).items()}
NN_X = random(7, SHAPE.width)
NN_SHARED = {
    "shared_up": random(6, 4, seed=5),
    "shared_down": random(4, 6, seed=6),
    "shared_router": random(6, 1, seed=7),
}
nn_close = functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-5)


def test_init(x64):
    params = nn.init(jax.random.key(1), nn.Shape(64, 32, 16), jnp.bfloat16)
    shapes = {"router": (64, 16), "w_gate": (16, 64, 32), "w_up": (16, 64, 32), "w_down": (16, 32, 64)}
    assert {name: x.shape for name, x in params.items()} == shapes
    assert {name: x.dtype for name, x in params.items()} == dict.fromkeys(shapes, jnp.bfloat16) | {"router": np.float32}
    for name, x in params.items():
        fan_in = 32 if name == "w_down" else 64
        nn_close(np.std(np.asarray(x, np.float64)), fan_in**-0.5, rtol=0.1)


LAYERS = sampled([PARAMS | NN_SHARED, PARAMS], 2)


@pytest.mark.parametrize("params", LAYERS, ids=["shared", "routed"])
def test_explicit_mesh_axes(params):
    """Gradients have the values of one device. The gradient of tokens is sharded like the tokens."""
    x, target = random(8, SHAPE.width, seed=3), random(8, SHAPE.width, seed=4)
    gradient = jax.jit(jax.grad(lambda params, x: (nn.apply(params, x, 2).out * target).sum(), (0, 1)))
    want_gradient = gradient(params, x)
    mesh = jax.make_mesh((4,), ("data",), axis_types=(AxisType.Explicit,))
    with jax.set_mesh(mesh):
        got = gradient(params, jax.device_put(x, NamedSharding(mesh, P("data"))))
    jax.tree.map(nn_close, got, want_gradient)
    assert got[1].sharding.spec == P("data", None)


UP = np.asarray(PARAMS["w_up"])
WRONG_ROUTER = {"router": np.ones((6, 9), np.float32)}
MORE_ERRORS = [
    ({"w_down": None}, {}, "params: 'w_down' is missing, the keys are"),
    ({"b_router": NN_X}, {}, "params: 'b_router' is unknown, keys must be among"),
    ({1: NN_X}, {}, "params: 1 is unknown, keys must be among"),
    ({}, {"row_slots": NN_X}, "row_slots: is neither an argument of apply nor of route"),
    ({}, {"expert_bias": NN_X[0]}, "expert_bias: must be given in params, not as an argument of apply"),
    ({"w_up": UP[0]}, {}, r"params\['w_up'\]: shape is .*, must be \[G,6,I\]"),
    ({"w_down": UP}, {}, r"params\['w_down'\]: shape is .*, must be \[G,I,6\]"),
    (WRONG_ROUTER, {}, "params: router has 9 experts, but w_up has 5"),
    ({"router": PARAMS["router"][1:]}, {}, r"x: shape is .*, must end with the rows of params\['router'\]"),
]


CALLS = [(shared_arrays(), X, *row) for row in ERRORS] + [(PARAMS, NN_X, *row) for row in MORE_ERRORS]


@pytest.mark.parametrize(("params", "x", "change", "options", "message"), CALLS, ids=range(len(CALLS)))
def test_errors(params, x, change, options, message):
    params = {name: w for name, w in (params | change).items() if w is not None}
    with pytest.raises(ValueError, match=f"^{message}"):
        nn.apply(params, x, 2, **options)


def test_rounded_rows_need_quantized_matrices():
    for params in (PARAMS, {n: raggemm.quantize(x, "int8") if n[0] == "w" else x for n, x in shared_arrays().items()}):
        name = "w_up" if params is PARAMS else "shared_up"
        with pytest.raises(TypeError, match=rf"^params\['{name}'\]: is an array of float32, must be a QuantizedTensor"):
            nn.apply(params, NN_X if params is PARAMS else X, 2, lhs_quantize="int8")


def test_wrong_types_and_numbers():
    with pytest.raises(TypeError, match=r"^x: dtype is int32"):
        nn.apply(PARAMS, NN_X.astype(np.int32), 2)
    with pytest.raises(ValueError, match=r"^top_k is 6, must be in"):
        nn.apply(PARAMS, NN_X, 6)
    with pytest.raises(TypeError, match=r"^dtype: .*float64, must be float16, bfloat16 or float32"):
        nn.init(jax.random.key(0), nn.Shape(4, 4, 2), np.float64)


def test_second_scales_of_quantized_experts():
    params, alphas = arrays(), {f"alpha_{part}": random(E, seed=i) for i, part in enumerate(("gate", "up", "down"), 30)}
    matrices = {name: raggemm.quantize(w, "int8") for name, w in params.items() if name[0] == "w"}
    wide = {n: raggemm.dequantize(w) * alphas[f"alpha{n[1:]}"][:, None, None] for n, w in matrices.items()}
    close(nn.apply(params | matrices | alphas, X, 4).out, nn.apply(params | wide, X, 4).out)
    with pytest.raises(TypeError, match=r"^alpha_up: w_up has dtype float32, must be quantized"):
        nn.apply(params | {"alpha_up": alphas["alpha_up"]}, X, 4)
