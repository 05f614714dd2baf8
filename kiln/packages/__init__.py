"""Programs as files of machine code and weights, which run without the compiler.

program.package("m.kiln"); kiln.load("m.kiln")(x)

`programs/package_writer.py` writes them, `loader.py` reads them; `manifest.py` describes the format.
"""

from kiln.packages.loader import PackagedProgram
from kiln.packages.loader import load_package as load

__all__ = ["PackagedProgram", "load"]
