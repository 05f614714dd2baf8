"""Graphs as ONNX models, written without the package `onnx`.

model = to_onnx(graph, constants, names)      data
print(model.text())                           %2 = Gemm(x, weight, bias; transB=1)
write_model(model, "net.onnx")                the protocol buffer; weights beside it where they do not fit
"""

from kiln.onnx import random_rules as random_rules
from kiln.onnx import special_rules as special_rules
from kiln.onnx.errors import NoOnnxForm
from kiln.onnx.file import model_bytes, write_model
from kiln.onnx.model import OnnxModel, OnnxNode
from kiln.onnx.writer import OPSET, calls_of_node, to_onnx

__all__ = ["OPSET", "NoOnnxForm", "OnnxModel", "OnnxNode", "calls_of_node", "model_bytes", "to_onnx", "write_model"]
