"""A process that compiles Triton kernels for another one: `python -m kiln.runtime.triton_worker`.

    stdin:   one line of JSON per kernel {"source", "symbol", "meta"}
    stdout:  one line of JSON {"size", ...facts}, then `size` bytes of cubin; or {"error", "missing"}

Triton holds the interpreter lock for two fifths of its time, so that threads of one process do not get far. The process
imports no torch; it ends when its input ends, or after some time without work. What Triton puts into its own cache
goes into a folder that is removed again.
"""

from __future__ import annotations

import json
import os
import select
import sys
import tempfile
from typing import IO, Any

from kiln.runtime.triton_compile import compile_source
from kiln.support.optional import MissingPackage, load

IDLE_SECONDS = 60.0


def main() -> None:
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what Triton and its tools print is no answer
    with tempfile.TemporaryDirectory(prefix="kiln-triton-") as folder:
        os.environ["TRITON_CACHE_DIR"] = folder
        load("triton")
        serve(sys.stdin.buffer, answers)


def serve(requests: IO[bytes], answers: IO[bytes]) -> None:
    while select.select([requests], [], [], IDLE_SECONDS)[0]:
        line = requests.readline()
        if not line:
            return
        head, cubin = answer(json.loads(line))
        answers.write(json.dumps(head).encode() + b"\n" + cubin)
        answers.flush()


def answer(request: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
    """The facts of `compile_source` and the cubin, or the error and nothing."""
    try:
        made = compile_source(request["source"], request["symbol"], request["meta"])
    except MissingPackage as error:
        return {"error": str(error), "missing": True}, b""
    except Exception as error:  # whatever Triton, LLVM or ptxas raise
        return {"error": f"{type(error).__name__}: {error}", "missing": False}, b""
    cubin: bytes = made.pop("cubin")
    return {**made, "size": len(cubin)}, cubin


if __name__ == "__main__":
    main()
