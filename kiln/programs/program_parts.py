"""What writers of files and of other tools' programs read of a program."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import torch

from kiln.graph.ir.graph import Graph
from kiln.programs.call.interface import CallInterface


class ProgramParts(Protocol):
    """A program without its methods, which use the writers."""

    @property
    def name(self) -> str: ...
    @property
    def level(self) -> str: ...
    @property
    def graph(self) -> Graph: ...
    @property
    def interface(self) -> CallInterface: ...
    @property
    def state(self) -> Mapping[str, torch.Tensor]: ...
    @property
    def constants(self) -> Mapping[str, torch.Tensor]: ...
    @property
    def tied(self) -> Mapping[str, str]: ...
