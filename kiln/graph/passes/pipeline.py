"""The passes, in order, and why in this order."""

from __future__ import annotations

from kiln.graph.ir.graph import Graph
from kiln.graph.passes.add_embedding import AddEmbedding
from kiln.graph.passes.align_products import AlignProducts
from kiln.graph.passes.arithmetic import ARITHMETIC
from kiln.graph.passes.channels_last import ChannelsLast
from kiln.graph.passes.constant_fold import ConstantFold
from kiln.graph.passes.cse import Cse
from kiln.graph.passes.dead_code import DeadCode
from kiln.graph.passes.manager import Checks, GraphPass, apply_passes
from kiln.graph.passes.one_hot import OneHotSums
from kiln.graph.passes.pool_channels_last import PoolChannelsLast
from kiln.graph.passes.separate_outputs import SeparateOutputs
from kiln.graph.passes.simplify import Simplify
from kiln.graph.passes.unfuse_bias import UnfuseBias
from kiln.graph.passes.view_rules import VIEWS
from kiln.support.events import EventSink
from kiln.support.passes import before, check_order
from kiln.symbolic import ShapeEnv

JOINT_PASSES: tuple[GraphPass, ...] = (
    ConstantFold(),
    Simplify((ARITHMETIC, VIEWS)),
    Cse(),
    ChannelsLast(),
    DeadCode(),
)
"""On the joint graph, before it is cut."""

CUT_PASSES: tuple[GraphPass, ...] = (UnfuseBias(), AlignProducts())
"""On a forward that was just cut: what lays out values that may be saved."""

GRAPH_PASSES: tuple[GraphPass, ...] = (
    ConstantFold(),
    Simplify((ARITHMETIC, VIEWS)),
    Cse(),
    OneHotSums(),
    AddEmbedding(),
    UnfuseBias(),
    AlignProducts(),
    ChannelsLast(),
    PoolChannelsLast(),
    DeadCode(),
    SeparateOutputs(),
)
"""On each graph that is lowered."""

# fmt: off
check_order(
    GRAPH_PASSES,
    before("constant-fold", "simplify",         because="rules look for numbers"),
    before("simplify",      "cse",              because="two chains of views may become one"),
    before("cse",           "one-hot-sums",     because="it looks for one index and one condition"),
    before("one-hot-sums",  "dead-code",        because="the rows have no reader"),
    before("cse",           "add-embedding",    because="it looks at all readers of a table"),
    before("add-embedding", "dead-code",        because="the replaced table has no reader"),
    before("cse",           "unfuse-bias",      because="it looks at all readers of a product"),
    before("unfuse-bias",   "dead-code",        because="the replaced product has no reader"),
    before("cse",           "align-products",   because="products that share an operand share its padding"),
    before("unfuse-bias",   "align-products",   because="a bias that is added in a loop needs no padding"),
    before("align-products", "dead-code",       because="a value that exists padded may have no other reader"),
    before("align-products", "separate-outputs", because="a result that it copies has memory of its own"),
    before("cse",           "channels-last",    because="one value is copied once"),
    before("simplify",      "channels-last",    because="a rule may drop a view that would become a copy"),
    before("channels-last", "pool-channels-last", because="pools between convolutions follow them"),
    before("pool-channels-last", "dead-code",   because="the replaced call has no reader"),
    before("channels-last", "dead-code",        because="what stays in the old layout leaves unread copies"),
    before("channels-last", "separate-outputs", because="an output that it copies has memory of its own"),
    before("dead-code",     "separate-outputs", because="it must see what is left"),
)
# fmt: on


def run_passes(
    graph: Graph,
    events: EventSink,
    *,
    env: ShapeEnv | None = None,
    checks: Checks = "structure",
    passes: tuple[GraphPass, ...] = GRAPH_PASSES,
) -> Graph:
    """The graph that is lowered. `env` tells what is known of symbols; without it rules that ask do not apply."""
    return apply_passes(passes, graph, events, env=env, checks=checks)
