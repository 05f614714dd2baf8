"""Ahead-of-time autograd: the joint graph of forward and backward, and its partition."""

from kiln.graph.autograd.alias_bases import with_alias_bases
from kiln.graph.autograd.joint import JointGraph, make_joint
from kiln.graph.autograd.partition import Partition, partition

__all__ = ["JointGraph", "Partition", "make_joint", "partition", "with_alias_bases"]
