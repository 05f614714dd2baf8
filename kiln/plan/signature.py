"""How the two plans of a differentiable region fit together: data, saved with them.

    forward plan:   (x, w, b) -> (y, new contents of b, t)          backward plan:   (x, t, dy, db) -> (dx, dw)

    Signature(num_inputs=3, num_outputs=1, carried=(Carried(input=2, output=1),),
              saved=(SavedTensor("input", 0), SavedTensor("output", 2)),
              tangents=(Tangent(output=0, ...), Tangent(output=1, ...)), gradients=(0, 1),
              reached=(1, 0))

The forward returns the user's outputs, then the carried ones, then what is only saved. A carried output is the
new content of an input whose in-place change has a history: the caller copies it into the input, seen by autograd
(the plan itself writes inputs that change without a history). The backward takes the saved values, then a tangent per
entry of `tangents`, each copied into its layout (a backward for some tangents takes only those).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, final

from kiln.plan.plan import SymbolBinding
from kiln.support.records import dataclass
from kiln.tensor.spec import TensorSpec


@final
@dataclass(frozen=True, slots=True)
class SavedTensor:
    """Input or output number `index` of the forward plan.

    `readers`: the tangents whose backward reads it, None for all. A backward without these neither takes nor frees it.
    """

    of: Literal["input", "output"]
    index: int
    readers: tuple[int, ...] | None = None

    def read_with(self, given: Sequence[bool]) -> bool:
        """Whether the backward for these tangents reads it."""
        return self.readers is None or any(given[number] for number in self.readers)


@final
@dataclass(frozen=True, slots=True)
class Watched:
    """Input or output number `index` of the forward plan, which eager saves and the forward plan does not: it must not
    change before a backward for one of the tangents `readers` (None: for any) and one of the inputs `gradients`."""

    of: Literal["input", "output"]
    index: int
    readers: tuple[int, ...] | None
    gradients: tuple[int, ...]


@final
@dataclass(frozen=True, slots=True)
class Carried:
    """Output `output` of the forward plan is the new content of input `input`."""

    input: int
    output: int


@final
@dataclass(frozen=True, slots=True)
class Tangent:
    """The gradient that arrives for output `output` of the forward plan, in the layout the backward takes.

    `ends`: the tangents for which no backward can follow one for this that frees the graph, as both go through a
    formula that reads saved values. None: all.
    """

    output: int
    spec: TensorSpec
    ends: tuple[int, ...] | None = None


@final
@dataclass(frozen=True, slots=True)
class Signature:
    """See above. A `SymbolBinding` in `saved` is a number read off an input of the forward.

    `hidden_outputs`: how many leading outputs are bases of later ones (views); the user does not get them.
    `gradients`: the inputs of the forward that have a gradient, in the order of the outputs of a backward for all.
    `reached`: the same inputs, in the order in which eager gives leaves their gradients.
    `depends`: for each output and carried one those from which it is computed; empty if there are none.
    `parts`: for each input the part of the backward in which its gradient is handed over; empty: all at its end.
    """

    num_inputs: int
    num_outputs: int
    carried: tuple[Carried, ...]
    saved: tuple[SavedTensor | SymbolBinding, ...]
    tangents: tuple[Tangent, ...]
    gradients: tuple[int, ...]
    reached: tuple[int, ...]
    hidden_outputs: int = 0
    depends: tuple[tuple[int, ...], ...] = ()
    parts: tuple[int, ...] = ()
    watched: tuple[Watched, ...] = ()
