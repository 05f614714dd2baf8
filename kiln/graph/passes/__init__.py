"""Passes over the graph IR; the list is in `pipeline.py`."""

from kiln.graph.passes.pipeline import GRAPH_PASSES, JOINT_PASSES, run_passes

__all__ = ["GRAPH_PASSES", "JOINT_PASSES", "run_passes"]
