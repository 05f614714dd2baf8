"""`sys.intern` gives its argument; `zlib.crc32` may be run while tracing."""

RECIPE = "A builtin function"
EDITS = [
    (
        "kiln/capture/interpreter/builtins/functions.py",
        "",
        """

@handles(sys.intern)
def intern(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    return args[0]
""",
    ),
    (
        "kiln/capture/interpreter/builtins/functions.py",
        "from __future__ import annotations\n",
        "from __future__ import annotations\n\nimport sys\n",
    ),
    (
        "kiln/capture/interpreter/pure.py",
        "PURE_FUNCTIONS: tuple[object, ...] = (\n",
        "PURE_FUNCTIONS: tuple[object, ...] = (\n    zlib.crc32,\n",
    ),
    (
        "kiln/capture/interpreter/pure.py",
        "from __future__ import annotations\n",
        "from __future__ import annotations\n\nimport zlib\n",
    ),
]


def check() -> None:
    import sys
    import zlib

    import torch

    import kiln

    def named(x, name):
        return x + len(sys.intern(name)) + zlib.crc32(name.encode())

    x = torch.ones(3)
    torch.testing.assert_close(kiln.compile(named, fullgraph=True)(x, "abc"), named(x, "abc"))
