"""Ahead-of-time autograd: the joint graph of forward and backward, and its partition."""

from kiln.graph.autograd.joint import JointGraph, make_joint
from kiln.graph.autograd.partition import Partition, Saved, partition

__all__ = ["JointGraph", "Partition", "Saved", "make_joint", "partition"]
