"""Fake tensors, the recording mode and functionalisation: a trace of a region at two levels."""

from kiln.graph.trace.fake import FakeTensor
from kiln.graph.trace.inputs import InputRecord
from kiln.graph.trace.log import TorchCall
from kiln.graph.trace.recorder import Recorder
from kiln.graph.trace.trace import Trace

__all__ = ["FakeTensor", "InputRecord", "Recorder", "TorchCall", "Trace"]
