"""The passes in order, with the reason for each order.

run_passes(graph, events)                           GRAPH_PASSES, on a graph that is lowered
run_passes(joint, events, passes=JOINT_PASSES)      before the partition
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal

from kiln.graph.ir.graph import Graph
from kiln.graph.ir.size_oracle import GuardFreeOracle
from kiln.graph.ir.verify import RULES, STRUCTURE, verify
from kiln.graph.passes.add_embedding import AddEmbedding
from kiln.graph.passes.align_products import AlignProducts
from kiln.graph.passes.arithmetic import ARITHMETIC
from kiln.graph.passes.bucket_all_reduces import BucketAllReduces
from kiln.graph.passes.channels_last import ChannelsLast
from kiln.graph.passes.constant_fold import ConstantFold
from kiln.graph.passes.convolution_bias import ConvolutionBias
from kiln.graph.passes.cse import Cse
from kiln.graph.passes.dead_code import DeadCode
from kiln.graph.passes.depthwise_lines import DepthwiseLines
from kiln.graph.passes.lines_as_images import LinesAsImages
from kiln.graph.passes.lines_as_products import LinesAsProducts
from kiln.graph.passes.manager import GraphPass, KeepsStrides, PassContext
from kiln.graph.passes.one_hot import OneHotSums
from kiln.graph.passes.pool_slices import PoolSlices
from kiln.graph.passes.resample_in_steps import ResampleInSteps
from kiln.graph.passes.separate_outputs import SeparateOutputs
from kiln.graph.passes.simplify import Simplify
from kiln.graph.passes.sum_before_reduce import SumBeforeReduce
from kiln.graph.passes.unfuse_bias import UnfuseBias
from kiln.graph.passes.unused_states import UnusedStates
from kiln.graph.passes.unused_vectors import UnusedVectors
from kiln.graph.passes.view_rules import VIEWS
from kiln.graph.passes.wide_sums import WideSums
from kiln.support import passes as runner
from kiln.support.events import EventSink
from kiln.support.passes import before, check_order
from kiln.symbolic import ShapeEnv

Checks = Literal["none", "structure", "full"]

JOINT_PASSES: tuple[GraphPass, ...] = (
    ConstantFold(),
    Simplify((ARITHMETIC, VIEWS)),
    Cse(),
    LinesAsProducts(),
    LinesAsImages(),
    ChannelsLast(),
    ConvolutionBias(),
    UnusedStates(),
    DeadCode(),
)
"""On the joint graph, before the partition."""

OFFLOAD_PASSES: tuple[GraphPass, ...] = (
    ConstantFold(),
    Simplify((ARITHMETIC, VIEWS)),
    Cse(),
    UnusedStates(),
    DeadCode(),
)
"""Before parts of a graph go to another compiler: none that chooses a layout or a product's form for Kiln's kernels."""

FORWARD_PASSES: tuple[GraphPass, ...] = (UnfuseBias(), AlignProducts())
"""On a forward after the partition: passes that change the layout of values that may be saved."""

GRAPH_PASSES: tuple[GraphPass, ...] = (
    ConstantFold(),
    Simplify((ARITHMETIC, VIEWS)),
    Cse(),
    OneHotSums(),
    AddEmbedding(),
    UnfuseBias(),
    AlignProducts(),
    LinesAsProducts(),
    LinesAsImages(),
    ChannelsLast(),
    ConvolutionBias(),
    WideSums(),
    DepthwiseLines(),
    PoolSlices(),
    ResampleInSteps(),
    UnusedStates(),
    UnusedVectors(),
    DeadCode(),
    SumBeforeReduce(),
    BucketAllReduces(),
    SeparateOutputs(),
)
"""On each graph that is lowered."""

# fmt: off
check_order(
    GRAPH_PASSES,
    before("constant-fold", "simplify",         because="rules match numbers"),
    before("simplify",      "cse",              because="different chains of views may become equal"),
    before("cse",           "one-hot-sums",     because="it matches a single index and condition"),
    before("one-hot-sums",  "dead-code",        because="the rows have no reader"),
    before("cse",           "add-embedding",    because="it needs all readers of a table"),
    before("unused-states", "unused-vectors",   because="only it sees what branches and loops read"),
    before("unused-vectors", "dead-code",       because="the replaced call has no reader"),
    before("unused-states", "dead-code",        because="what dropped results were computed from has no reader"),
    before("add-embedding", "dead-code",        because="the replaced table has no reader"),
    before("cse",           "unfuse-bias",      because="it needs all readers of a product"),
    before("unfuse-bias",   "dead-code",        because="the replaced product has no reader"),
    before("cse",           "align-products",   because="products with a common operand share its padding"),
    before("unfuse-bias",   "align-products",   because="a bias added in a loop needs no padding"),
    before("align-products", "dead-code",       because="a padded value may have no other reader"),
    before("align-products", "separate-outputs", because="an output that it copies has its own memory"),
    before("cse",           "convolution-bias", because="it needs all readers of a convolution"),
    before("channels-last", "convolution-bias", because="sums read the gradient in the layout of the convolution"),
    before("convolution-bias", "dead-code",     because="the replaced convolution has no reader"),
    before("lines-as-products", "convolution-bias", because="the bias of a call without readers is a sum"),
    before("lines-as-products", "lines-as-images", because="the rest of a dilated backward is one of images"),
    before("lines-as-products", "dead-code",        because="the replaced convolution has no reader"),
    before("lines-as-images", "channels-last",  because="it lays out images only"),
    before("cse",           "channels-last",    because="each value is copied once"),
    before("simplify",      "channels-last",    because="a rule may drop a view that would become a copy"),
    before("one-hot-sums",  "wide-sums",        because="it matches sums of rows as they were"),
    before("wide-sums",     "dead-code",        because="the replaced sum has no reader"),
    before("cse",           "depthwise-lines", because="equal convolutions are one"),
    before("depthwise-lines", "dead-code",      because="the replaced call has no reader"),
    before("channels-last", "pool-slices", because="pools between convolutions take their layout"),
    before("pool-slices", "dead-code",   because="the replaced call has no reader"),
    before("channels-last", "resample-in-steps", because="images between convolutions take their layout"),
    before("resample-in-steps", "dead-code", because="the replaced call has no reader"),
    before("channels-last", "dead-code",        because="it leaves copies without readers"),
    before("channels-last", "separate-outputs", because="an output that it copies has its own memory"),
    before("dead-code",     "sum-before-reduce", because="it needs all readers of a gradient"),
    before("sum-before-reduce", "bucket-all-reduces", because="a sum of two is half of what a bucket of both sends"),
    before("dead-code",     "bucket-all-reduces", because="values without a reader do not move"),
    before("dead-code",     "separate-outputs", because="it must see only live values"),
)
# fmt: on


def run_passes(
    graph: Graph,
    events: EventSink,
    *,
    env: ShapeEnv | None = None,
    checks: Checks = "structure",
    passes: tuple[GraphPass, ...] = GRAPH_PASSES,
    without: Collection[str] = (),
) -> Graph:
    """The graph after `passes`, but those named in `without`.

    Without `env`, rules that need facts about symbols do not apply.
    Each pass is verified as `checks` says, and reports an event `pass` with its changes and the number of nodes.
    """
    rules = RULES if checks == "full" else STRUCTURE

    def check(graph: Graph, name: str) -> None:
        verify(graph, name, env, rules)

    return runner.run_passes(
        list(map(KeepsStrides, passes)), graph, PassContext(GuardFreeOracle(env), without), events,
        size=lambda graph: len(graph.nodes), verify=None if checks == "none" else check,
        without=without,
    )  # fmt: skip
