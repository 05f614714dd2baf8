"""Two plans as one: the second gets the inputs of the first, then some of its outputs.

    first(%0, %1): ... return %5, %6         second(%0, %1, %2 = %6): launch k1(%2, %1); return %3
        =>  (%0, %1): ...  launch k1(%6, %1);  free %6;  return %5, %7

Outputs of the first that only the second reads become temporaries, which are freed after their last use.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from kiln.plan.plan import Plan, PlanOutput, Slot, Step
from kiln.plan.steps import ConstantStep, FreeStep, ViewStep


def joined(first: Plan, second: Plan, kept: Sequence[int], outputs: Sequence[tuple[int, int]]) -> Plan | None:
    """`kept`: the outputs of `first` that follow the inputs in `second`; `outputs`: (plan, number) of each result.

    None if such an output is no tensor of its own.
    """
    passed = [first.outputs[number] for number in kept]
    slots = [output.slot for output in passed]
    if any(output.alias_input is not None or output.alias_output is not None for output in passed) or None in slots:
        return None
    rename = renaming(first, second, slots)
    moved = [moved_constant(step.renamed(rename), len(first.constants)) for step in second.steps]
    numbers = {place: number for number, place in enumerate(outputs)}
    results = [
        moved_output((first, second)[half].outputs[number], rename if half else None, half, numbers)
        for half, number in outputs
    ]
    returned = {result.slot for result in results}
    ending = [slot for slot in dict.fromkeys(slots) if slot is not None and slot not in returned]
    known = {binding.name for binding in first.symbols}
    symbols = [replace(binding, slot=rename(binding.slot)) for binding in second.symbols if binding.name not in known]
    symbols_of_first = {kernel.symbol for kernel in first.kernels}
    count = len(first.inputs)
    return Plan(
        second.name,
        first.inputs,
        (*first.symbols, *symbols),
        (*first.steps, *with_frees_of(moved, ending)),
        tuple(results),
        (*first.kernels, *[kernel for kernel in second.kernels if kernel.symbol not in symbols_of_first]),
        first.num_slots + second.num_slots - len(second.inputs),
        (*first.constants, *second.constants),
        tuple(sorted({*first.mutated, *[number for number in second.mutated if number < count]})),
    )


def renaming(first: Plan, second: Plan, kept: Sequence[Slot | None]) -> Callable[[Slot], Slot]:
    count, shift = len(first.inputs), first.num_slots - len(second.inputs)

    def rename(slot: Slot) -> Slot:
        if slot < count:
            return slot
        if slot >= len(second.inputs):
            return slot + shift
        found = kept[slot - count]
        assert found is not None
        return found

    return rename


def moved_constant(step: Step, shift: int) -> Step:
    return replace(step, index=step.index + shift) if isinstance(step, ConstantStep) else step


def moved_output(
    output: PlanOutput, rename: Callable[[Slot], Slot] | None, half: int, numbers: dict[tuple[int, int], int]
) -> PlanOutput:
    if rename is not None and output.slot is not None:
        output = replace(output, slot=rename(output.slot))
    return output if output.alias_output is None else replace(output, alias_output=numbers[half, output.alias_output])


def with_frees_of(steps: Sequence[Step], ending: Sequence[Slot]) -> list[Step]:
    """`steps`, each of the slots `ending` freed after the last one that reads it or a view of it."""
    owner = {slot: slot for slot in ending}
    last = dict.fromkeys(ending, -1)
    for position, step in enumerate(steps):
        if isinstance(step, ViewStep) and step.base in owner:
            owner[step.out] = owner[step.base]
        last.update((owner[slot], position) for slot in step.reads() if slot in owner and type(step) is not FreeStep)
    made: list[Step] = []
    for position in range(-1, len(steps)):
        made += steps[position : position + 1] if position >= 0 else ()
        if freed := tuple([slot for slot, end in last.items() if end == position]):
            made.append(FreeStep(freed))
    return made
