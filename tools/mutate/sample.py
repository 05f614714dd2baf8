"""The mutants of the sources, those that are written down, and a sample of all, even over folders by lines.

    sampled(root, all_mutants(root), count=400, seed=0)      18 of csrc/executor, 3 of kiln/plan/steps, ...

The first 100 of a sample are the sample of 100. Headers of csrc/ have no mutants (many files would have to be compiled
again), nor have the sources that need a GPU.
"""

from __future__ import annotations

import ast
import random
import tomllib
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

from tools.mutate.mutants import Mutant, mutants_of

HERE = Path(__file__).resolve().parent
LEFT_OUT = (
    "kiln/cli/", "kiln/native/", "kiln/report/", "csrc/executor/cuda_driver.cpp", "csrc/executor/cuda_runtime.cpp",
)  # fmt: skip
"""The benchmark, stubs, texts, and what needs a GPU."""


def sources(root: Path) -> list[Path]:
    paths = [*(root / "kiln").rglob("*.py"), *(root / "kiln" / "loops").rglob("*.h"), *(root / "csrc").rglob("*.cpp")]
    return [path for path in sorted(paths) if not str(path.relative_to(root)).startswith(LEFT_OUT)]


def all_mutants(root: Path, only: str = "") -> Iterator[Mutant]:
    for path in sources(root):
        if str(path.relative_to(root)).startswith(only):
            yield from mutants_of(path, root)


def sampled(root: Path, mutants: Sequence[Mutant], count: int, seed: int) -> list[Mutant]:
    lines: dict[str, int] = defaultdict(int)
    for path in sources(root):
        lines[str(path.parent.relative_to(root))] += path.read_bytes().count(b"\n")
    shuffled = list(mutants)
    random.Random(seed).shuffle(shuffled)
    ranks: dict[str, int] = defaultdict(int)
    ordered: list[tuple[float, Mutant]] = []
    for mutant in shuffled:
        folder = mutant.path.rpartition("/")[0]
        ordered.append(((ranks[folder] + 0.5) / lines[folder], mutant))
        ranks[folder] += 1
    return [mutant for _, mutant in sorted(ordered, key=lambda pair: pair[0])[:count]]


def known_mutants(root: Path) -> list[Mutant]:
    """Changes of text that are written down, with a name."""
    found = []
    for known in tomllib.loads((HERE / "known.toml").read_text())["mutant"]:
        source = (root / known["path"]).read_bytes()
        old, start = known["old"].encode(), source.find(known["old"].encode())
        if start < 0 or source.count(old) != 1:
            raise SystemExit(
                f"known.toml: {known['name']}: the text stands {source.count(old)} times in {known['path']}"
            )
        line = source.count(b"\n", 0, start) + 1
        found.append(
            Mutant(known["path"], line, function_at(source, line), "known", known["old"], known["new"], start,
                   start + len(old), known["name"])
        )  # fmt: skip
    return found


def function_at(source: bytes, line: int) -> str | None:
    """The innermost function around a line, named as `Mutant.function` is."""
    found: str | None = None
    pending: list[tuple[str, ast.AST]] = [("", ast.parse(source))]
    while pending:
        prefix, node = pending.pop()
        for child in ast.iter_child_nodes(node):
            named = isinstance(child, ast.FunctionDef | ast.ClassDef)
            name = f"{prefix}{child.name}" if named else prefix
            if named and child.lineno <= line <= (child.end_lineno or 0):
                found = name if isinstance(child, ast.FunctionDef) else found
            pending.append((f"{name}." if named else prefix, child))
    return found


def argued_survivors() -> dict[str, str]:
    """Mutant -> why no test can notice it, or need not."""
    return dict(tomllib.loads((HERE / "survivors.toml").read_text())["equivalent"])
