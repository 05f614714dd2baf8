"""Passes over the graph IR; the list is in `pipeline.py`."""

from kiln.graph.passes.pipeline import FORWARD_PASSES, GRAPH_PASSES, JOINT_PASSES, OFFLOAD_PASSES, run_passes

__all__ = ["FORWARD_PASSES", "GRAPH_PASSES", "JOINT_PASSES", "OFFLOAD_PASSES", "run_passes"]
