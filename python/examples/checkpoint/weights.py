"""Loads the weights of a checkpoint layer by layer."""

import argparse
import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
import raggemm
from checkpoint.config import Config
from checkpoint.files import FLOATS, CheckpointError

Tree = Any  # a pytree of arrays, QuantizedTensors and PackedWeights


class Files(Protocol):
    def __contains__(self, name: str) -> bool: ...

    def read(self, names: Sequence[str], shape: Sequence[int], dtypes: Sequence[str]) -> np.ndarray: ...


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=("up", "down", "gate", "b_up", "b_down", "order"),
    meta_fields=("merged", "activation", "rows"),
)
@dataclasses.dataclass(frozen=True)
class Mlp:
    """Arguments of moe_mlp: the weights of E experts, or of one MLP for all tokens (E = 1). Matrices are [E,K,N]."""

    up: Tree
    down: Tree
    gate: Tree = None
    b_up: Tree = None
    b_down: Tree = None
    merged: str | None = None
    activation: str = "silu"
    rows: tuple[tuple[str, Any], ...] = ()  # arguments of moe_mlp that quantize the rows of tokens
    # int32 [E,width]: each expert multiplies x[order] instead of a token x. None: all multiply x.
    order: Tree = None

    def options(self) -> dict[str, Any]:
        own = {"w_gate": self.gate, "b_up": self.b_up, "b_down": self.b_down, "merged": self.merged}
        return own | {"activation": self.activation, "preferred_element_type": jnp.float32} | dict(self.rows)

    def with_rounded_rows(self, rows: tuple[tuple[str, Any], ...]) -> "Mlp":
        """Returns the MLP with `rows` as arguments of moe_mlp, if all its matrices are of CODES."""
        matrices = {name: w for name in ("up", "down", "gate") if (w := getattr(self, name)) is not None}
        if not rows or any(w.dtype not in CODES for w in matrices.values()):
            return self
        packed = {name: _pack_for_rounded_rows(w) for name, w in matrices.items()}
        return dataclasses.replace(self, rows=rows, **packed)


def parse_rows(text: str) -> tuple[tuple[str, Any], ...]:
    """Returns Mlp.rows for the value of --rows, such as "int8:64"."""
    dtype, _, block = text.partition(":")
    size = None if block == "row" else int(block or 32) if block.isdecimal() or not block else 0
    if dtype != "int8" or text.endswith(":") or size == 0 or (size or 0) % 32:
        raise argparse.ArgumentTypeError(f"{text!r}: must be int8, int8:N with a multiple N of 32, or int8:row")
    return ("lhs_quantize", dtype), ("lhs_block", size)


# Dtypes of weights that moe_mlp takes with lhs_quantize.
CODES = tuple(map(jnp.dtype, (jnp.int8, jnp.uint8, jnp.int4, jnp.uint4, jnp.int2, jnp.float4_e2m1fn)))


def _pack_for_rounded_rows(w: Tree) -> Tree:
    """Packs matrices for lhs_quantize. Returns `w` if its dtype or its blocks of scales cannot be packed so."""
    is_packed = isinstance(w, raggemm.PackedWeights)
    try:
        plain = raggemm.unprepack(w) if is_packed else w
        return raggemm.prepack(plain, transpose=is_packed and w.transposed, lhs_quantize=jnp.int8)
    except (TypeError, ValueError):
        return w


def _quantizer(dtype: Any, **options: Any) -> Callable[[jax.Array], Tree]:
    return jax.jit(functools.partial(raggemm.quantize, dtype=dtype, **options))


# Conversions of the experts' float matrices [E,N,K], by the value of --weights. Quantized matrices are not converted.
FORMATS: dict[str, Callable[[jax.Array], Tree]] = {
    "as-stored": lambda w: w,
    "int8": _quantizer(jnp.int8, axes=2),
    "int4": _quantizer(jnp.int4, axes=(), block=(2, 128), scale_dtype=jnp.bfloat16),
    "mxfp4": _quantizer(jnp.float4_e2m1fn, axes=(), block=(2, 32), scale_dtype=jnp.float8_e8m0fnu),
}


_pack = functools.partial(raggemm.prepack, transpose=True)


def _permute_columns(x: jax.Array, order: np.ndarray, axis: int) -> jax.Array:
    """Permutes the elements or the scales of matrices along `axis`, N, by order [E,N]. One scale for all N stays."""
    if x.shape[axis] == 1:
        return x
    wide = x.astype(jnp.int16) if jnp.issubdtype(x.dtype, jnp.integer) else x
    return jnp.take_along_axis(wide, jnp.expand_dims(order, 3 - axis), axis).astype(x.dtype)


@dataclasses.dataclass(frozen=True)
class Loader:
    files: Files
    config: Config
    dtype: Any  # dtype of float matrices
    weights: str = "as-stored"  # key of FORMATS for the matrices of experts
    share: tuple[int, int] = (0, 1)  # (i, n): loads part i of n equal parts of the experts; i starts at 0
    rows: tuple[tuple[str, Any], ...] = ()  # Mlp.rows of MLPs with quantized weights

    def vector(self, name: str, *shape: int) -> jax.Array:
        return jax.device_put(self.files.read([name], shape, FLOATS)[0]).astype(jnp.float32)

    def matrices(self, names: Sequence[str], n: int, k: int) -> tuple[Tree, bool, np.ndarray | None]:
        """Reads the matrices `names`, without transposing them.

        Returns [len(names),N,K] and True if they are stored as [N,K], else [len(names),K,N] and False. The third result
        is None, or with act order the order [len(names),K] of the elements along K.
        """
        stored = self.config.quantization

        def read(part: str, shape: Sequence[int], *dtypes: str) -> jax.Array:
            return jax.device_put(self.files.read([f"{name}.{part}" for name in names], shape, dtypes))

        if stored.method in ("awq", "gptq") and f"{names[0]}.qweight" in self.files:
            size, per_word = k if stored.size == -1 else stored.size, 32 // stored.bits
            scales, zeros = read("scales", (k // size, n), *FLOATS), None
            if f"{names[0]}.qzeros" in self.files or stored.method == "awq":
                zeros = read("qzeros", (k // size, n // per_word), "I32")
            if stored.method == "awq":
                return raggemm.int4_from_awq(read("qweight", (k, n // 8), "I32"), zeros, scales), False, None
            g_idx, order = self.act_order([f"{name}.g_idx" for name in names], k, size)
            options = {"zeros_less_one": stored.zeros_less_one, "bits": stored.bits, "g_idx": g_idx}
            words = read("qweight", (k // per_word, n), "I32")
            return raggemm.int4_from_gptq(words, zeros, scales, **options), False, order
        if stored.method == "compressed-tensors" and f"{names[0]}.weight_scale" in self.files:
            size = k if stored.block[1] == -1 else stored.block[1]
            g_idx, order = self.act_order([f"{name}.weight_g_idx" for name in names], k, size)
            return self._compressed(read, n, k, g_idx), True, order
        if stored.method == "fp8" and f"{names[0]}.weight_scale_inv" in self.files:
            rows, columns = stored.block
            weight = read("weight", (n, k), "F8_E4M3")
            scale = read("weight_scale_inv", (-(-n // rows), -(-k // columns)), *FLOATS)
            return raggemm.fp8_from_blocks(weight, scale, block=stored.block), True, None
        return read("weight", (n, k), *FLOATS).astype(self.dtype), True, None

    def act_order(self, names: Sequence[str], k: int, size: int) -> tuple[np.ndarray | None, np.ndarray | None]:
        """Reads the blocks of the elements along K. Returns them and the order that sorts them, or None if sorted.

        size: number of elements in a block.
        """
        if names[0] not in self.files:
            return None, None
        g_idx, in_order = self.files.read(names, (k,), ("I32",)), np.arange(k) // size
        if (g_idx == in_order).all():
            return None, None
        if (np.sort(g_idx, 1) != in_order).any():
            raise CheckpointError(f"{names[0]}: must have {size} elements in each block")
        return g_idx, np.argsort(g_idx, axis=1, kind="stable").astype(np.int32)

    def _compressed(self, read: Callable[..., jax.Array], n: int, k: int, g_idx: np.ndarray | None) -> Tree:
        """Reads matrices [N,K] of compressed-tensors. read: a function (part, shape, *dtypes) -> stacked tensors."""
        stored, per_word = self.config.quantization, 32 // self.config.quantization.bits
        rows, columns = (extent if size == -1 else size for size, extent in zip(stored.block, (n, k), strict=True))
        blocks = -(-n // rows), -(-k // columns)
        scale = read("weight_scale", (1,) if stored.block == (-1, -1) else blocks, *FLOATS)
        if stored.kind == "float":
            weight = read("weight", (n, k), "F8_E4M3")
            return raggemm.fp8_from_blocks(weight, scale.reshape(-1, *blocks), block=(rows, columns))
        zeros, from_parts = None, functools.partial(raggemm.from_compressed_tensors, weight_g_idx=g_idx)
        if not stored.packed:
            zeros = None if stored.symmetric else read("weight_zero_point", scale.shape[1:], "I8")
            return from_parts(read("weight", (n, k), "I8"), scale, zeros)
        if not stored.symmetric:
            zeros = read("weight_zero_point", (-(-n // per_word), blocks[1]), "I32")
        weight = read("weight_packed", (n, -(-k // per_word)), "I32")
        return from_parts(weight, scale, zeros, bits=stored.bits, weight_shape=(n, k))

    def load_weights(
        self, names: Sequence[str], n: int, k: int, weights: str = "as-stored", columns: np.ndarray | None = None
    ) -> tuple[Tree, np.ndarray | None]:
        """Returns matrices [len(names),K,N], and the order of elements along K that `matrices` returns.

        Converts floats by FORMATS[weights], and packs matrices stored as [N,K]. columns: a new order [len(names),N].

        The int4 experts of one token are computed in 1.0 ms if they are packed, and in 2.7 ms as [N,K] (Zen 4).
        """
        w, transposed, order = self.matrices(names, n, k)
        w = w if isinstance(w, raggemm.QuantizedTensor) else FORMATS[weights](w)
        if columns is not None:
            w = jax.tree.map(lambda x: _permute_columns(x, columns, 1 if transposed else 2), w)
        return _pack(w) if transposed else w, order

    def linear(self, name: str, n: int, k: int, bias: bool = False) -> dict[str, Tree]:
        """Loads a linear layer: its matrix "w" with a group axis of 1, and, if `bias`, its bias "b".

        "order" is the order in which w multiplies the elements of a row, if they are not in order.
        """
        w, order = self.load_weights([name], n, k)
        out = {"w": w} if order is None else {"w": w, "order": jnp.asarray(order[0])}
        return out | {"b": self.vector(f"{name}.bias", n)} if bias else out

    def mlp(self, prefixes: Sequence[str], hidden: int, weights: str = "as-stored") -> Mlp:
        names = ("w1", "w3", "w2") if self.config.family == "mixtral" else ("gate_proj", "up_proj", "down_proj")
        gates, ups, downs = ([f"{prefix}.{name}" for prefix in prefixes] for name in names)
        # Act order of down is an order of the hidden elements, which are the columns of gate and up.
        down, columns = self.load_weights(downs, self.config.width, hidden, weights)
        gate, order = self.load_weights(gates, hidden, self.config.width, weights, columns)
        up, order_of_up = self.load_weights(ups, hidden, self.config.width, weights, columns)
        if not np.array_equal(order, order_of_up):  # type: ignore[arg-type]
            raise CheckpointError(f"{gates[0]} and {ups[0]} have different act orders (g_idx)")
        return Mlp(up, down, gate, order=None if order is None else jnp.asarray(order)).with_rounded_rows(self.rows)

    def local_experts(self) -> slice:
        part, parts = self.share
        count = self.config.experts // parts
        return slice(part * count, (part + 1) * count)

    def read_experts(self, name: str, shape: Sequence[int], dtypes: Sequence[str] = FLOATS) -> jax.Array:
        """Reads the local experts of a tensor that holds those of all processes, [E,*shape]."""
        (whole,) = self.files.read([name], (self.config.experts, *shape), dtypes)
        return jax.device_put(whole[self.local_experts()])

    def merged_experts(self, at: str) -> Mlp:
        """Loads experts as Transformers v5 stores them: gate_up_proj [E,2*hidden,width], down_proj [E,width,hidden]."""
        c, sides = self.config, {}
        for side, name, n, k in (
            ("up", "gate_up_proj", 2 * c.hidden, c.width),
            ("down", "down_proj", c.width, c.hidden),
        ):
            w = self.read_experts(f"{at}.{name}", (n, k)).astype(self.dtype)
            sides[side] = _pack(FORMATS[self.weights](w))
        return Mlp(**sides, merged="halves").with_rounded_rows(self.rows)

    def gpt_oss_experts(self, at: str) -> Mlp:
        """Loads the experts of gpt-oss. In the file, floats are [E,K,N], and MXFP4 matrices are [E,N,K]."""
        c, is_mxfp4 = self.config, self.config.quantization.method == "mxfp4"

        def read(name: str, shape: Sequence[int], *dtypes: str) -> jax.Array:
            return self.read_experts(f"{at}.{name}", shape, dtypes)

        def side(name: str, n: int, k: int) -> tuple[Tree, jax.Array]:
            bias = read(f"{name}_bias", (n,), *FLOATS).astype(jnp.float32)
            if not is_mxfp4:
                w = read(name, (k, n), *FLOATS).astype(self.dtype)
                as_stored = self.weights == "as-stored"
                return w if as_stored else _pack(FORMATS[self.weights](w.swapaxes(1, 2))), bias
            blocks = read(f"{name}_blocks", (n, k // 32, 16), "U8")
            return _pack(raggemm.mxfp4_from_blocks(blocks, read(f"{name}_scales", (n, k // 32), "U8"))), bias

        (up, b_up), (down, b_down) = side("gate_up_proj", 2 * c.hidden, c.width), side("down_proj", c.width, c.hidden)
        experts = Mlp(up, down, None, b_up, b_down, merged="interleaved", activation="swiglu_oai")
        return experts.with_rounded_rows(self.rows)

    def latent_attention(self, at: str) -> dict[str, Tree]:
        c, latent = self.config, self.config.latent
        out = {"kv_a": self.linear(f"{at}.kv_a_proj_with_mqa", latent.rank + latent.rotary_dim, c.width)}
        out["kv_norm"] = self.vector(f"{at}.kv_a_layernorm.weight", latent.rank)
        if latent.query_rank:
            out["q_a"] = self.linear(f"{at}.q_a_proj", latent.query_rank, c.width)
            out["q_norm"] = self.vector(f"{at}.q_a_layernorm.weight", latent.query_rank)
        name = "q_b_proj" if latent.query_rank else "q_proj"
        out["q"] = self.linear(f"{at}.{name}", c.heads * c.head_dim, latent.query_rank or c.width)
        rows = latent.plain_dim + latent.value_dim
        w, transposed, order = self.matrices([f"{at}.kv_b_proj"], c.heads * rows, latent.rank)
        w = raggemm.dequantize(w, self.dtype) if isinstance(w, raggemm.QuantizedTensor) else w
        matrix = w[0] if transposed else w[0].T
        matrix = matrix if order is None else matrix[:, np.argsort(order[0])]
        heads = matrix.reshape(c.heads, rows, latent.rank)
        out["k_b"], out["v_b"] = heads[:, : latent.plain_dim], heads[:, latent.plain_dim :]
        return out | {"o": self.linear(f"{at}.o_proj", c.width, c.heads * latent.value_dim)}

    def grouped_attention(self, at: str) -> dict[str, Tree]:
        c, bias, out = self.config, self.config.family == "gpt_oss", {}
        for name, heads in (("q", c.heads), ("k", c.kv_heads), ("v", c.kv_heads)):
            out[name] = self.linear(f"{at}.{name}_proj", heads * c.head_dim, c.width, bias)
            if name != "v" and c.family in ("qwen3_moe", "olmoe"):
                dim = c.head_dim if c.family == "qwen3_moe" else heads * c.head_dim
                out[f"{name}_norm"] = self.vector(f"{at}.{name}_norm.weight", dim)
        if c.family == "gpt_oss":
            out["sinks"] = self.vector(f"{at}.sinks", c.heads)
        return out | {"o": self.linear(f"{at}.o_proj", c.width, c.heads * c.head_dim, bias)}

    def feed_forward(self, at: str, is_dense: bool) -> dict[str, Tree]:
        c = self.config
        if is_dense:
            return {"dense": self.mlp([at], c.dense_hidden)}
        router = f"{at}.{'router' if c.family == 'gpt_oss' else 'gate'}"
        out: dict[str, Tree] = {"router": self.linear(router, c.experts, c.width, c.family == "gpt_oss")}
        if c.family == "gpt_oss":
            return out | {"experts": self.gpt_oss_experts(f"{at}.experts")}
        if c.family == "deepseek_v3":
            out["expert_bias"] = self.vector(f"{router}.e_score_correction_bias", c.experts)
        if c.shared_hidden:
            out["shared"] = self.mlp([f"{at}.shared_experts"], c.shared_hidden)
        if f"{at}.experts.gate_up_proj" in self.files:
            return out | {"experts": self.merged_experts(f"{at}.experts")}
        prefixes = [f"{at}.experts.{e}" for e in range(c.experts)[self.local_experts()]]
        return out | {"experts": self.mlp(prefixes, c.hidden, self.weights)}

    def _check_rows(self, experts: Mlp) -> None:
        if self.rows and not experts.rows:
            raise CheckpointError(f"--rows: experts are {experts.up.dtype}, must be integers or float4_e2m1fn")

    def layer(self, i: int) -> dict[str, Tree]:
        c, at = self.config, f"model.layers.{i}"
        attention = self.latent_attention if c.latent else self.grouped_attention
        # Transformers v5 writes "mlp" for Mixtral, too.
        mlp = f"{at}.mlp"
        if c.family == "mixtral" and f"{at}.block_sparse_moe.gate.weight" in self.files:
            mlp = f"{at}.block_sparse_moe"
        out = self.feed_forward(mlp, i in c.dense_layers)
        if "experts" in out:
            self._check_rows(out["experts"])
        return out | {
            "attention": attention(f"{at}.self_attn"),
            "input_norm": self.vector(f"{at}.input_layernorm.weight", c.width),
            "post_norm": self.vector(f"{at}.post_attention_layernorm.weight", c.width),
        }

    def embedding_and_head(self) -> dict[str, Tree]:
        c = self.config
        shape = (c.vocabulary, c.width)
        (embedding,) = self.files.read(["model.embed_tokens.weight"], shape, FLOATS)
        embedding = jax.device_put(embedding).astype(self.dtype)
        head = {"w": _pack(embedding[None])} if c.tied else self.linear("lm_head", *shape)
        return {"embedding": embedding, "norm": self.vector("model.norm.weight", c.width), "head": head}
