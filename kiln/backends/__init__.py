"""Other compilers behind Kiln's capture.

A backend takes a `torch.fx.GraphModule` and example inputs and returns a callable of the same inputs; or it is a
`GraphBackend`, which takes parts of Kiln's graphs (`"onnxrt"`). `"kiln"` is Kiln's own compiler; `"eager"` runs the
captured graph; `"inductor"` passes it to torch's compiler. docs/backends.md lists them all.

    @kiln.register_backend
    def my_compiler(gm, example_inputs):
        return gm.forward
"""

from kiln.backends.aot import aot
from kiln.backends.registry import BACKENDS, find_backend, list_backends, register_backend
from kiln.graph.offload.part import Backend

__all__ = ["BACKENDS", "Backend", "aot", "find_backend", "list_backends", "register_backend"]
