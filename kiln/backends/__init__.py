"""Other compilers behind Kiln's capture.

A backend takes a `torch.fx.GraphModule` and example inputs and returns a callable of the same inputs. `"kiln"` is the
compiler itself; `"eager"` runs the captured graph as it is; `"inductor"` hands it to torch's compiler.

    @kiln.register_backend
    def my_compiler(gm, example_inputs):
        return gm.forward
"""

from kiln.backends.registry import BACKENDS, Backend, find_backend, list_backends, register_backend

__all__ = ["BACKENDS", "Backend", "find_backend", "list_backends", "register_backend"]
