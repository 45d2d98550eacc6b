"""Tests raggemm with packages that bundle protobuf or Abseil, imported in any order."""

import subprocess
import sys

import pytest

RAGGEMM = """
import numpy as np, raggemm
assert float(raggemm.gmm(np.ones((2, 3), "f4"), np.ones((1, 3, 4), "f4"), np.array([2])).sum()) == 24
"""
NEIGHBOURS = {
    "protobuf": """
from google.protobuf import json_format, struct_pb2
from google.protobuf.internal import api_implementation
message = struct_pb2.Struct()
message["key"] = [1, "text"]
assert json_format.MessageToDict(struct_pb2.Struct.FromString(message.SerializeToString())) == {"key": [1, "text"]}
assert api_implementation.Type() == "upb"
""",
    "grpcio": """
import concurrent.futures, grpc
echo = grpc.unary_unary_rpc_method_handler(lambda request, context: request[::-1])
server = grpc.server(concurrent.futures.ThreadPoolExecutor(1))
server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("test", {"reverse": echo})])
port = server.add_insecure_port("127.0.0.1:0")
server.start()
with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
    assert channel.unary_unary("/test/reverse")(b"abc", timeout=20) == b"cba"
server.stop(None)
""",
    # This program writes an ONNX file as fields of protobuf's wire format. All lengths are below 128.
    "onnxruntime": """
import numpy as np, onnxruntime
def message(number, content): return bytes([number << 3 | 2, len(content)]) + content
def integer(number, value): return bytes([number << 3, value])
shape = message(2, message(1, integer(1, 3)))
value = message(2, message(1, integer(1, 1) + shape))
node = message(1, b"x") + message(2, b"y") + message(4, b"Neg")
graph = message(1, node) + message(2, b"graph")
graph += message(11, message(1, b"x") + value) + message(12, message(1, b"y") + value)
model = integer(1, 8) + message(7, graph) + message(8, integer(2, 13))
(y,) = onnxruntime.InferenceSession(model).run(None, {"x": np.arange(3, dtype=np.float32)})
assert y.tolist() == [0, -1, -2]
try:
    onnxruntime.InferenceSession(b"no model")
except Exception as error:
    assert "INVALID_PROTOBUF" in str(error), error
else:
    raise AssertionError
""",
}


def run(code, folder):
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("first", ["raggemm", "neighbour"])
@pytest.mark.parametrize("neighbour", NEIGHBOURS)
def test_both_work(neighbour, first, tmp_path):
    one, other = (RAGGEMM, NEIGHBOURS[neighbour]) if first == "raggemm" else (NEIGHBOURS[neighbour], RAGGEMM)
    run(f"{one}\n{other}\n{one}", tmp_path)


def test_all_together(tmp_path):
    run("\n".join([NEIGHBOURS["grpcio"], RAGGEMM, *NEIGHBOURS.values(), RAGGEMM]), tmp_path)
