"""llama.cpp's ggml and ik_llama.cpp through ctypes: a layer's experts in the graph that each library builds for them.

Both quantize rows to int8 in blocks of 32. As in llama.cpp, ggml repacks weights if it has kernels for the result.
"""

import ctypes
import functools
import os
import pathlib
from collections.abc import Callable
from typing import Any

import numpy as np
from layer import MATRICES, Call, Layer, Quantized, from_bf16

TYPES = {"int4-32": b"q4_0", "mxfp4": b"mxfp4", "int8-32": b"q8_0"}
LIBRARIES = {"ggml": ("libggml-base.so", "libggml-cpu.so", "libggml.so"), "ik_llama.cpp": ("libggml.so",)}
F32, I32 = 0, 26  # Numbers of ggml_type.
SILU = 10  # A number of ik_llama.cpp's ggml_unary_op.
BUFFER_OFFSET = 8  # Offset of the field `buffer` in ggml_tensor.
CONTEXT_BYTES = 64 << 20  # Enough for the graphs of all calls. ik_llama.cpp allows few contexts.


class _InitParams(ctypes.Structure):
    _fields_ = (("size", ctypes.c_size_t), ("memory", ctypes.c_void_p), ("no_alloc", ctypes.c_bool))


class Library:
    """The functions of ggml's shared libraries. Pointers are integers, and so is the result of each function."""

    def __init__(self, folder: pathlib.Path, names: tuple[str, ...]):
        # CDLL binds all symbols at once, but ik_llama.cpp's library lacks its symbols of flash attention.
        dlopen = ctypes.CDLL(None).dlopen
        dlopen.restype, dlopen.argtypes = ctypes.c_void_p, (ctypes.c_char_p, ctypes.c_int)
        self._libraries = []
        for name in names:
            if not (handle := dlopen(os.fsencode(folder / name), os.RTLD_LAZY | os.RTLD_GLOBAL)):
                raise OSError(f"{folder / name} cannot be loaded")
            self._libraries.append(ctypes.CDLL(name, handle=handle))

    @functools.cache  # noqa: B019  A process has one library.
    def _function(self, name: str) -> Any:
        function = next(getattr(library, name) for library in self._libraries if hasattr(library, name))
        function.restype = ctypes.c_int64
        return function

    def __call__(self, name: str, *arguments: Any) -> int:
        # Integers and pointers are passed alike. A callee ignores the upper half of a 32-bit argument.
        return self._function(name)(*(ctypes.c_int64(a) if isinstance(a, int) else a for a in arguments))

    def string(self, name: str, *arguments: Any) -> bytes:
        return ctypes.string_at(address) if (address := self(name, *arguments)) else b""

    def new_context(self) -> int:
        return self("ggml_init", _InitParams(CONTEXT_BYTES, None, True))


def pack(q: Quantized, form: str) -> np.ndarray:
    """Returns ggml's blocks, uint8 [...,rows,bytes]: the scale, then 32 codes, with code i + 16 above code i."""
    codes = q.codes.view(np.uint8).reshape(*q.scale.shape, 32)
    if form == "int4-32":
        codes = codes + np.uint8(8)
    if form != "int8-32":
        codes = codes[..., :16] | codes[..., 16:] << 4
    blocks = np.concatenate([q.scale[..., None].view(np.uint8), codes], -1)
    return blocks.reshape(*q.codes.shape[:-1], -1)


class Ggml:
    def __init__(self, system: str, folder: pathlib.Path, layer: Layer):
        self._library = call = Library(folder, LIBRARIES[system])
        self._fused, self._layer = system == "ik_llama.cpp", layer
        self._backend = call("ggml_backend_cpu_init")
        call("ggml_backend_cpu_set_n_threads", self._backend, len(os.sched_getaffinity(0)))
        wanted = TYPES[layer.form]
        self._type = next((t for t in range(256) if call.string("ggml_type_name", t) == wanted), -1)
        if self._type < 0:
            raise ValueError(f"{system} has no type {wanted.decode()}")
        buffer_type = None if self._fused else self._repacking_buffer_type()
        weights, self._inputs, self._graphs = (call.new_context() for _ in range(3))
        self._copies = [{name: self._new_matrix(weights, name) for name in MATRICES} for _ in range(layer.copies)]
        self._allocate(weights, buffer_type)
        for name in MATRICES:
            packed = pack(layer.matrices(name), layer.form)
            for copy in self._copies:
                self._set(copy[name], packed)
        self._allocators: dict[int, int] = {}
        buffer = call.string("ggml_backend_buft_name", buffer_type).decode() if buffer_type else "CPU"
        self.about = f"{wanted.decode()} in buffers of type {buffer}"

    def _new_matrix(self, context: int, name: str) -> int:
        m = self._layer.model
        extents = (m.intermediate, m.hidden) if name == "down" else (m.hidden, m.intermediate)
        return self._library("ggml_new_tensor_3d", context, self._type, *extents, m.experts)

    def _repacking_buffer_type(self) -> int | None:
        """Returns the first buffer type with kernels for the weights, in the order that llama.cpp tries them."""
        call, m = self._library, self._layer.model
        device = call("ggml_backend_get_device", self._backend)
        registry = call("ggml_backend_dev_backend_reg", device)
        address = call("ggml_backend_reg_get_proc_address", registry, b"ggml_backend_dev_get_extra_bufts")
        types = ctypes.CFUNCTYPE(ctypes.POINTER(ctypes.c_int64), ctypes.c_int64)(address)(device)
        for i in range(16):
            if not types or not types[i]:
                return None
            context = call.new_context()
            weights = self._new_matrix(context, "up")
            rows = call("ggml_new_tensor_3d", context, F32, m.hidden, 1, 512)
            experts = call("ggml_new_tensor_2d", context, I32, m.top_k, 512)
            product = call("ggml_mul_mat_id", context, weights, rows, experts)
            buffer = call("ggml_backend_buft_alloc_buffer", types[i], 0)
            ctypes.c_int64.from_address(weights + BUFFER_OFFSET).value = buffer
            supported = call("ggml_backend_dev_supports_op", device, product) & 0xFF
            call("ggml_backend_buffer_free", buffer)
            call("ggml_free", context)
            if supported:
                return types[i]
        return None

    def _allocate(self, context: int, buffer_type: int | None = None) -> None:
        """Allocates those tensors of a context that have no memory."""
        if buffer_type:
            buffer = self._library("ggml_backend_alloc_ctx_tensors_from_buft", context, buffer_type)
        else:
            buffer = self._library("ggml_backend_alloc_ctx_tensors", context, self._backend)
        if not buffer:
            raise MemoryError("ggml cannot allocate its tensors")

    def _set(self, tensor: int, values: np.ndarray) -> None:
        values = np.ascontiguousarray(values)
        self._library("ggml_backend_tensor_set", tensor, values.ctypes.data, 0, values.nbytes)

    def _build(self, context: int, w: dict[str, int], x: int, experts: int, shares: int, tokens: int) -> int:
        """Returns the result of the graph that llama.cpp and ik_llama.cpp build."""
        m = self._layer.model
        call = self._library
        if self._fused:
            h = call("ggml_moe_up_gate", context, w["up"], w["gate"], x, experts, SILU)
        else:
            up = call("ggml_mul_mat_id", context, w["up"], x, experts)
            h = call("ggml_swiglu_split", context, call("ggml_mul_mat_id", context, w["gate"], x, experts), up)
        y = call("ggml_mul", context, call("ggml_mul_mat_id", context, w["down"], h, experts), shares)
        row, token = 4 * m.hidden, 4 * m.hidden * m.top_k  # bytes
        slots = [call("ggml_view_2d", context, y, m.hidden, tokens, token, row * j) for j in range(m.top_k)]
        if self._fused:
            return call("ggml_multi_add", context, slots[0], m.top_k)
        return functools.reduce(lambda sum_, slot: call("ggml_add", context, sum_, slot), slots)

    def prepare(self, rows: str, x: np.ndarray, c: Call) -> Callable[[], tuple[int, int]]:
        call, m, tokens = self._library, self._layer.model, len(x)
        inputs, context = self._inputs, self._graphs
        x_ = call("ggml_new_tensor_3d", inputs, F32, m.hidden, 1, tokens)
        experts = call("ggml_new_tensor_2d", inputs, I32, m.top_k, tokens)
        shares = call("ggml_new_tensor_3d", inputs, F32, 1, m.top_k, tokens)
        self._allocate(inputs)
        for tensor, values in ((x_, from_bf16(x)), (experts, c.experts), (shares, c.shares)):
            self._set(tensor, values)
        graph = call("ggml_new_graph", context)
        out = self._build(context, self._copies[c.copy], x_, experts, shares, tokens)
        call("ggml_set_output", out)
        call("ggml_build_forward_expand", graph, out)
        # All graphs for a number of tokens have the same shape, so they can share the memory of their results.
        if tokens not in self._allocators:
            self._allocators[tokens] = call("ggml_gallocr_new", call("ggml_backend_cpu_buffer_type"))
        call("ggml_gallocr_alloc_graph", self._allocators[tokens], graph)

        def run() -> tuple[int, int]:
            if status := call("ggml_backend_graph_compute", self._backend, graph) & 0xFFFFFFFF:
                raise RuntimeError(f"ggml_backend_graph_compute returned {status}")
            return out, tokens

        return run

    def to_numpy(self, result: tuple[int, int]) -> np.ndarray:
        tensor, tokens = result
        out = np.empty((tokens, self._layer.model.hidden), np.float32)
        self._library("ggml_backend_tensor_get", tensor, out.ctypes.data, 0, out.nbytes)
        return out


def make(system: str, peers: pathlib.Path, layer: Layer) -> Ggml:
    return Ggml(system, peers / system / "build/src", layer)
