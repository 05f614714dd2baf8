"""What becomes of the results of a region before the program gets them: what a plan does not know of tensors.

y = x * 2                      outputs = region(x)
d = y.data             =>      d = with_own_version(outputs[1], 0)      same memory, another counter of changes
i = y + 1  # inference         i = as_inference_tensor(outputs[3])
v = leaf()                     v = outputs[2].detach().requires_grad_()
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from kiln.capture.bytecode.assemble import Assembler
from kiln.graph.trace.fake import FakeTensor, is_apart
from kiln.graph.trace.trace import Trace
from kiln.runtime.inference_results import as_inference_tensor
from kiln.runtime.leaf_gradients import with_freed_history, with_own_history
from kiln.runtime.own_version import with_own_version


def write_states(head: Assembler, trace: Trace, names: list[str], fakes: Sequence[FakeTensor]) -> None:
    """Bring the results, which are in the temporaries `names`, into the state that they have in eager."""
    for number, message in trace.freed.items():
        head.const(with_freed_history).op("LOAD_FAST", names[number]).const(message).call(2)
        head.op("STORE_FAST", names[number])
    write_own_histories(head, trace, names)
    for number in counted_apart(trace, fakes):
        head.const(with_own_version).op("LOAD_FAST", names[number]).const(fakes[number]._version).call(2)
        head.op("STORE_FAST", names[number])
    for name, method in leaf_methods(trace, names):
        head.op("LOAD_FAST", name).op("LOAD_ATTR", method).call(0).op("STORE_FAST", name)
    for name in made_in_inference_mode(names, fakes):
        head.const(as_inference_tensor).op("LOAD_FAST", name).call(1).op("STORE_FAST", name)


def made_in_inference_mode(names: Sequence[str], fakes: Sequence[FakeTensor]) -> list[str]:
    """The results of a mode that the program enters inside."""
    inside = not torch.is_inference_mode_enabled()
    return [name for name, fake in zip(names, fakes, strict=True) if inside and fake.is_inference()]


def counted_apart(trace: Trace, fakes: Sequence[FakeTensor]) -> Iterator[int]:
    """The results that share memory with another tensor, but not the counter of its changes."""
    aliases = [output.alias for output in trace.graph.outputs]
    bases = {alias.index for alias in aliases if alias is not None and alias.of == "output"}
    for number, (fake, alias) in enumerate(zip(fakes, aliases, strict=True)):
        shares = number in bases or alias is not None
        if shares and is_apart(fake) and (fake.is_leaf or not fake.requires_grad):
            yield number


def write_own_histories(head: Assembler, trace: Trace, names: list[str]) -> None:
    ending = [names[number] for number in trace.ending]
    if not ending:
        return
    head.const(with_own_history)
    for name in ending:
        head.op("LOAD_FAST", name)
    head.op("BUILD_TUPLE", len(ending)).const(tuple(trace.ending.values())).const(trace.ending_together).call(3)
    head.op("UNPACK_SEQUENCE", len(ending))
    for name in ending:
        head.op("STORE_FAST", name)


MULTI_OUTPUT = torch._C._autograd.CreationMeta.MULTI_OUTPUT_NODE.value
"""Why a result of `split` may not be changed in place."""


def leaf_methods(trace: Trace, names: list[str]) -> Iterator[tuple[str, str]]:
    """Methods to call on results: `detach` if they share memory but no autograd history, `requires_grad_` on leaves."""
    outputs = trace.graph.outputs
    # Views made without gradients stay views: autograd must see what is done to them.
    guarded = {number for number, creation in trace.creations if creation != MULTI_OUTPUT}
    sharing = {
        output.alias.index
        for output in outputs
        if output.requires_grad and output.alias and output.alias.of == "output"
    }
    for index, (name, output, leaf) in enumerate(zip(names, outputs, trace.leaves, strict=True)):
        alias = output.alias
        if not leaf or (alias is not None and (index in guarded or (alias.of == "input" and alias.view is None))):
            continue
        base = None
        if alias is not None:
            base = trace.used_inputs[alias.index] if alias.of == "input" else outputs[alias.index]
        if index in sharing or (base is not None and (base.requires_grad or not trace.fake_outputs[index]._is_view())):
            yield name, "detach"
        if output.requires_grad:
            yield name, "requires_grad_"
