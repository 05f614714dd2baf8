"""An ONNX model as a file: a protocol buffer, whose fields have fixed numbers.

Files of protocol buffers end at 2 GB. Larger weights go to a file `<name>.data` beside the model, each at a multiple of
4096 bytes, so that a reader can map it.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Mapping
from pathlib import Path

import torch

from kiln.onnx.dtypes import ONNX_DTYPES
from kiln.onnx.model import Attribute, OnnxModel, OnnxNode, OnnxValue

IR_VERSION = 8  # of the format that belongs to opset 18
LARGEST = 2**31 - 2**24
"""Of a file with its weights, with room for the rest of it."""
ALIGNMENT = 4096
FLOAT, INT, STRING, TENSOR, GRAPH, FLOATS, INTS = 1, 2, 3, 4, 5, 6, 7
"""`AttributeProto.AttributeType`."""
EXTERNAL = 1
"""`TensorProto.DataLocation`."""


def write_model(model: OnnxModel, path: str | os.PathLike[str], largest: int = LARGEST) -> None:
    """Write `path`, and `<path>.data` if the weights take more than `largest` bytes."""
    place = Path(path)
    if sum(size_of(tensor) for tensor in model.weights.values()) <= largest:
        place.write_bytes(model_bytes(model))
        return
    beside = place.with_name(place.name + ".data")
    offsets = {}
    with open(beside, "wb") as file:
        for name, tensor in model.weights.items():
            file.write(b"\0" * (-file.tell() % ALIGNMENT))
            offsets[name] = file.tell()
            file.write(contents(tensor))
    place.write_bytes(model_bytes(model, (beside.name, offsets)))


def model_bytes(model: OnnxModel, external: tuple[str, Mapping[str, int]] | None = None) -> bytes:
    """`ModelProto`. `external`: the file with the weights, and where each of them begins."""
    opset = message(number(2, model.opset))
    return b"".join([number(1, IR_VERSION), text(2, "kiln"), piece(8, opset), piece(7, graph(model, external))])


def graph(model: OnnxModel, external: tuple[str, Mapping[str, int]] | None) -> bytes:
    """`GraphProto`."""
    weights = [tensor_proto(tensor, name, external) for name, tensor in model.weights.items()]
    numbers = [tensor_proto(tensor, name) for name, tensor in model.numbers.items()]
    return message(
        *[piece(1, node_proto(node)) for node in model.nodes],
        text(2, model.name),
        *[piece(5, tensor) for tensor in (*weights, *numbers)],
        *[piece(11, value_proto(value)) for value in model.inputs],
        *[piece(12, value_proto(value)) for value in model.outputs],
    )


def node_proto(node: OnnxNode) -> bytes:
    """`NodeProto`; the name is that of its first result."""
    return message(
        *[text(1, name) for name in node.inputs],
        *[text(2, name) for name in node.outputs],
        text(3, node.outputs[0]),
        text(4, node.op),
        *[piece(5, attribute(name, value)) for name, value in node.attrs.items()],
    )


def attribute(name: str, value: Attribute) -> bytes:
    """`AttributeProto`."""
    match value:
        case torch.Tensor():
            return message(text(1, name), piece(5, tensor_proto(value, "")), number(20, TENSOR))
        case OnnxModel():
            return message(text(1, name), piece(6, graph(value, None)), number(20, GRAPH))
        case str():
            return message(text(1, name), text(4, value), number(20, STRING))
        case int():
            return message(text(1, name), number(3, int(value)), number(20, INT))
        case float():
            return message(text(1, name), real(2, value), number(20, FLOAT))
    if all([isinstance(item, int) for item in value]):
        return message(text(1, name), *[number(8, int(item)) for item in value], number(20, INTS))
    return message(text(1, name), *[real(7, item) for item in value], number(20, FLOATS))


def tensor_proto(tensor: torch.Tensor, name: str, external: tuple[str, Mapping[str, int]] | None = None) -> bytes:
    """`TensorProto`."""
    head = [number(1, size) for size in tensor.shape] + [number(2, ONNX_DTYPES[tensor.dtype]), text(8, name)]
    if external is None:
        return message(*head, piece(9, contents(tensor)))
    file, offsets = external
    entries = {"location": file, "offset": str(offsets[name]), "length": str(size_of(tensor))}
    rows = [piece(13, message(text(1, key), text(2, value))) for key, value in entries.items()]
    return message(*head, *rows, number(14, EXTERNAL))


def value_proto(value: OnnxValue) -> bytes:
    """`ValueInfoProto`."""
    sizes = [piece(1, number(1, size) if isinstance(size, int) else text(2, size)) for size in value.sizes]
    kind = message(number(1, ONNX_DTYPES[value.dtype]), piece(2, message(*sizes)))
    return message(text(1, value.name), piece(2, piece(1, kind)))


def contents(tensor: torch.Tensor) -> bytes:
    """The elements in row-major order."""
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return bytes(flat.view(torch.uint8).numpy()) if flat.numel() else b""


def size_of(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.itemsize


# The wire format.


def varint(value: int) -> bytes:
    """Seven bits a byte, the lowest first; negative numbers as 64 bits."""
    value &= 2**64 - 1
    found = bytearray()
    while value > 127:
        found.append(value & 127 | 128)
        value >>= 7
    found.append(value)
    return bytes(found)


def number(field: int, value: int) -> bytes:
    return varint(field << 3) + varint(value)


def real(field: int, value: float) -> bytes:
    return varint(field << 3 | 5) + struct.pack("<f", value)


def piece(field: int, data: bytes) -> bytes:
    return varint(field << 3 | 2) + varint(len(data)) + data


def text(field: int, value: str) -> bytes:
    return piece(field, value.encode())


def message(*fields: bytes) -> bytes:
    return b"".join(fields)
