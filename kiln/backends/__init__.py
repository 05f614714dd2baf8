"""Other compilers behind Kiln's capture.

A backend takes a `torch.fx.GraphModule` and example inputs and returns a callable of the same inputs; or it is a
`GraphBackend`, which takes parts of Kiln's graphs (`"onnxrt"`). `"kiln"` is Kiln's own compiler; `"eager"` runs the
captured graph; `"inductor"` passes it to torch's compiler. docs/backends.md lists them all.

    @kiln.register_backend
    def my_compiler(gm, example_inputs):
        return gm.forward
"""

from typing import TYPE_CHECKING

from kiln.backends.registry import BACKENDS, find_backend, list_backends, register_backend
from kiln.graph.offload.part import Backend
from kiln.support.late import late

if TYPE_CHECKING:
    from kiln.backends.aten_graphs import aot
else:
    aot = late("kiln.backends.aten_graphs", "aot")

__all__ = ["BACKENDS", "Backend", "aot", "find_backend", "list_backends", "register_backend"]
