"""A finished recording: the log of torch calls, the inputs, and the functional graph of primitives.

trace.graph.inputs      the nodes of `trace.used_inputs`, in order
trace.torch_graph()     the log as an fx graph, for user backends
"""

from __future__ import annotations

from dataclasses import field, replace
from typing import final

import torch

from kiln.graph.ir.graph import Graph
from kiln.graph.trace.fake import FakeTensor
from kiln.graph.trace.inputs import InputRecord
from kiln.graph.trace.log import TorchCall
from kiln.graph.trace.torch_graph import torch_graph
from kiln.support.records import dataclass
from kiln.symbolic import ShapeEnv

PLAIN_TYPES = (torch.Tensor, torch.nn.Parameter, type(None))


@final
@dataclass(slots=True)
class Trace:
    """`fake_outputs`: the outputs passed to `finish`."""

    calls: list[TorchCall]
    inputs: list[InputRecord]
    graph: Graph
    fake_outputs: list[FakeTensor]
    env: ShapeEnv
    leaves: tuple[bool, ...]
    """For each output, whether it has no gradient function."""
    creations: tuple[tuple[int, int], ...] = ()
    """The outputs that are views which eager forbids to change in place, with torch's reason (`CreationMeta`)."""
    constants: dict[str, torch.Tensor] = field(default_factory=dict)
    freed: dict[int, str] = field(default_factory=dict)
    """The outputs that a backward in the region has differentiated and freed, with the error of another one."""
    ending: dict[int, bool] = field(default_factory=dict)
    """The outputs whose gradients end in the region (`own_leaves.py`), and whether a second backward raises."""
    ending_together: bool = False
    """Whether a backward of one of them frees what another one needs."""

    @property
    def used_inputs(self) -> list[InputRecord]:
        """The records of `graph.inputs`, in that order."""
        return [record for record in self.inputs if record.used]

    def renumber_inputs(self) -> None:
        """After the graph was built inputs were marked: as used, as only the backward reads them, or as not used."""
        order = [record.node for record in self.used_inputs]
        numbers = {old: order.index(node) for old, node in enumerate(self.graph.inputs) if node in order}
        outputs = tuple([output.renumbered(numbers) for output in self.graph.outputs])
        self.graph = replace(self.graph, inputs=tuple(order), outputs=outputs)

    @property
    def carried_inputs(self) -> list[int]:
        """Numbers of written inputs whose new contents have a gradient function."""
        written = {write.target for write in self.graph.writes}
        return [index for index, record in enumerate(self.used_inputs) if record.node in written and record.has_history]

    @property
    def needs_grad(self) -> bool:
        """Whether a result of the region has a gradient function."""
        pairs = zip(self.graph.outputs, self.leaves, strict=True)
        return any(output.requires_grad and not leaf for output, leaf in pairs) or bool(self.carried_inputs)

    @property
    def views_without_history(self) -> bool:
        """Whether a result is a view, made where gradients were off, of an input with one: a leaf."""
        pairs = zip(self.graph.outputs, self.leaves, strict=True)
        return any(
            leaf and output.requires_grad and output.alias is not None and output.alias.view is not None
            for output, leaf in pairs
        )

    def torch_graph(self) -> torch.fx.GraphModule:
        """The log as a torch-level fx graph, with placeholders for the inputs in use."""
        inputs = [(record.name, record.fake) for record in self.inputs]
        others = [record for record in self.inputs if type(record.real) not in PLAIN_TYPES]
        subclasses = {record.name for record in others if not getattr(record.fake, "is_outer", False)}
        return torch_graph(self.calls, inputs, self.fake_outputs, self.env.checks, subclasses)
