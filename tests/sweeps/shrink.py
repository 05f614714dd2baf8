"""Programs as trees of statements, and the smallest tree that still fails.

for i in items:                        for i in items:
    t = t + i                 =>           n = n // i
    n = n // i
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Statement:
    """A line, or a header with a body; `rest` are the clauses that follow it, such as `else`."""

    text: str
    body: tuple[Statement, ...] = ()
    rest: tuple[Statement, ...] = ()

    def lines(self, indent: int = 0) -> Iterator[str]:
        yield "    " * indent + self.text
        if self.text.endswith(":"):
            for inner in self.body or (Statement("pass"),):
                yield from inner.lines(indent + 1)
        for clause in self.rest:
            yield from clause.lines(indent)


Block = tuple[Statement, ...]


def text_of(block: Block, indent: int = 0) -> str:
    return "".join(line + "\n" for statement in block for line in statement.lines(indent))


def smaller(block: Block) -> Iterator[Block]:
    """The block with something left out, the largest pieces first."""
    size = len(block)
    while size:
        for start in range(0, len(block), size):
            yield block[:start] + block[start + size :]
        size //= 2
    for n, statement in enumerate(block):
        before, after = block[:n], block[n + 1 :]
        if statement.body:
            yield before + statement.body + after
        for clause in statement.rest:
            yield before + clause.body + after
        for body in smaller(statement.body):
            yield (*before, Statement(statement.text, body, statement.rest), *after)
        for rest in smaller(statement.rest):
            yield (*before, Statement(statement.text, statement.body, rest), *after)


def shrunk(block: Block, fails: Callable[[Block], bool], most_trials: int = 400) -> Block:
    """A smaller block that still fails; each step is the first smaller one that does."""
    trials = 0
    progress = True
    while progress:
        progress = False
        for candidate in smaller(block):
            trials += 1
            if trials > most_trials:
                return block
            if fails(candidate):
                block, progress = candidate, True
                break
    return block
