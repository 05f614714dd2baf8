"""Other compilers behind Kiln's capture.

A backend takes a `torch.fx.GraphModule` and example inputs and returns a callable of the same inputs. `"kiln"` is
Kiln's own compiler; `"eager"` runs the captured graph; `"inductor"` passes it to torch's compiler.

    @kiln.register_backend
    def my_compiler(gm, example_inputs):
        return gm.forward
"""

from kiln.backends.registry import BACKENDS, Backend, find_backend, list_backends, register_backend

__all__ = ["BACKENDS", "Backend", "find_backend", "list_backends", "register_backend"]
