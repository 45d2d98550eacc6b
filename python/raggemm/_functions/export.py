"""The operands of raggemm's own types in what jax.export serializes: functions that take or return them."""

import json
from typing import Any

import jax

from raggemm._functions.operands import GroupedTensor
from raggemm._functions.tensors import PackedWeights, QuantizedTensor


def _register(node: Any) -> None:
    jax.export.register_pytree_node_serialization(
        node,
        serialized_name=f"raggemm.{node.__name__}",  # is in what is serialized
        serialize_auxdata=lambda fields: json.dumps(fields).encode(),
        deserialize_auxdata=json.loads,
        from_children=lambda fields, children: node(*children, *fields),
    )


for _node in (GroupedTensor, QuantizedTensor, PackedWeights):
    _register(_node)
