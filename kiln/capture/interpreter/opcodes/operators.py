"""Arithmetic, comparison, subscripts and attributes."""

from __future__ import annotations

import operator

import torch

from kiln.capture.interpreter.alternatives import open_truth
from kiln.capture.interpreter.breaks import DataDependentBranch, ItemInPython
from kiln.capture.interpreter.changed_numbers import has_many_values
from kiln.capture.interpreter.chosen_texts import chosen_text, compared_text
from kiln.capture.interpreter.core import DISCARD, PUSH, CaptureState, Value, read_attr
from kiln.capture.interpreter.frame import SymbolicFrame, opcode, push_callable
from kiln.capture.interpreter.number_branches import chosen_item, contained
from kiln.capture.interpreter.operations import Function2, binary, compare, contains, same, truth_value, unary
from kiln.capture.interpreter.variables.constant import Constant
from kiln.capture.interpreter.variables.mapping import Dict
from kiln.capture.interpreter.variables.sequence import Sequence, Slice
from kiln.capture.interpreter.variables.symbolic import Symbolic
from kiln.capture.interpreter.variables.tensor import record

TRUE, FALSE = Constant(True), Constant(False)


@opcode("BINARY_OP", pops=2)
def binary_op(frame: SymbolicFrame, function: Function2) -> None:
    right = frame.pop()
    left = frame.pop()
    frame.stack.append(binary(frame.state, function, left, right))


@opcode("COMPARE_OP", pops=2)
def compare_op(frame: SymbolicFrame, function: Function2) -> None:
    right = frame.pop()
    left = frame.pop()
    text = compared_text(frame.state, function, left, right)
    frame.stack.append(compare(frame.state, function, left, right) if text is None else text)


@opcode("IS_OP", pops=2)
def is_op(frame: SymbolicFrame, inverted: bool) -> None:
    right = frame.pop()
    left = frame.pop()
    lasting = frame.state.counters.lasting
    if left is not right and id(left) in lasting and id(right) in lasting:  # which may be one object of a cache
        raise lasting[id(right)][1]()
    frame.stack.append(TRUE if same(frame.state, left, right) != inverted else FALSE)


@opcode("CONTAINS_OP", pops=2)
def contains_op(frame: SymbolicFrame, inverted: bool) -> None:
    container = frame.pop()
    item = frame.pop()
    found = contained(frame.state, container, item)
    if found is not None:
        frame.stack.append(negated(frame.state, found) if inverted else found)
        return
    frame.stack.append(TRUE if contains(frame.state, container, item) != inverted else FALSE)


@opcode("UNARY_NOT", pops=1)
def unary_not(frame: SymbolicFrame, arg: int) -> None:
    frame.stack.append(negated(frame.state, frame.pop()))


def negated(s: CaptureState, value: Value) -> Value:
    if isinstance(value, Symbolic) and value.python_type() is bool:
        number = None if value.number is None else Symbolic(1 - value.number.node)
        return Symbolic(torch.SymBool(value.node.node.sym_not()), number=number)
    try:
        return FALSE if truth_value(s, value, "not") else TRUE
    except DataDependentBranch as stop:
        return negated(s, open_truth(s, value, stop))


@opcode("UNARY_NEGATIVE", pops=1)
def unary_negative(frame: SymbolicFrame, arg: int) -> None:
    frame.stack.append(unary(frame.state, operator.neg, frame.pop()))


@opcode("UNARY_INVERT", pops=1)
def unary_invert(frame: SymbolicFrame, arg: int) -> None:
    frame.stack.append(unary(frame.state, operator.invert, frame.pop()))


@opcode("BINARY_SUBSCR", pops=2)
def binary_subscr(frame: SymbolicFrame, arg: int) -> None:
    key = frame.pop()
    container = frame.pop()
    frame.stack.append(subscript(frame, container, key))


def refuse_many_items(s: CaptureState, container: Value, key: Value) -> None:
    """Break where each call selects another item: a variant would be for one of them."""
    if not isinstance(key, Symbolic) or container.source is None:
        return
    of_class = getattr(container.python_type(), "__getitem__", None)
    of_torch = getattr(of_class, "__module__", None) == torch.nn.modules.container.__name__
    if (of_torch or isinstance(container, Sequence | Dict)) and has_many_values(s, key):
        raise ItemInPython(type=container.type_name())


def subscript(frame: SymbolicFrame, container: Value, key: Value) -> Value:
    plain = isinstance(container, Sequence) or container.is_constant
    if plain and key.is_torch and key.python_type() is not int:  # asks the tensor for its `__index__`
        return record(frame.state, operator.getitem, [container, key], {})
    if (text := chosen_text(frame.state, container, key)) is not None:
        return text
    refuse_many_items(frame.state, container, key)
    found = chosen_item(frame.state, container, key)
    return found if found is not None else container.get_item(frame.state, key, PUSH)


@opcode("STORE_SUBSCR", pops=3, pushes=0)
def store_subscr(frame: SymbolicFrame, arg: int) -> None:
    key = frame.pop()
    container = frame.pop()
    value = frame.pop()
    refuse_many_items(frame.state, container, key)
    container.set_item(frame.state, key, value, DISCARD)


@opcode("DELETE_SUBSCR", pops=2, pushes=0)
def delete_subscr(frame: SymbolicFrame, arg: int) -> None:
    key = frame.pop()
    container = frame.pop()
    container.del_item(frame.state, key, DISCARD)


@opcode("BINARY_SLICE", pops=3)
def binary_slice(frame: SymbolicFrame, arg: int) -> None:
    parts = frame.pop_many(2)
    container = frame.pop()
    frame.stack.append(subscript(frame, container, Slice(parts)))


@opcode("STORE_SLICE", pops=4, pushes=0)
def store_slice(frame: SymbolicFrame, arg: int) -> None:
    parts = frame.pop_many(2)
    container = frame.pop()
    container.set_item(frame.state, Slice(parts), frame.pop())


@opcode("LOAD_ATTR", pops=1)
def load_attr(frame: SymbolicFrame, name: str) -> None:
    frame.stack.append(read_attr(frame.state, frame.pop(), name, PUSH))


@opcode("LOAD_METHOD", pops=1, pushes=2)
def load_method(frame: SymbolicFrame, name: str) -> None:
    """The method is bound, so the slot of `self` is NULL."""
    push_callable(frame, read_attr(frame.state, frame.pop(), name))


@opcode("LOAD_SUPER_ATTR", pops=3)
def load_super_attr(frame: SymbolicFrame, name: str) -> None:
    super_, cls, self_ = frame.pop_many(3)
    frame.push(super_.call(frame.state, [cls, self_], {}).get_attr(frame.state, name, PUSH))


@opcode("LOAD_SUPER_METHOD", pops=3, pushes=2)
def load_super_method(frame: SymbolicFrame, name: str) -> None:
    super_, cls, self_ = frame.pop_many(3)
    push_callable(frame, super_.call(frame.state, [cls, self_], {}).get_attr(frame.state, name))


@opcode("STORE_ATTR", pops=2, pushes=0)
def store_attr(frame: SymbolicFrame, name: str) -> None:
    target = frame.pop()
    value = frame.pop()
    target.set_attr(frame.state, name, value, DISCARD)


@opcode("DELETE_ATTR", pops=1, pushes=0)
def delete_attr(frame: SymbolicFrame, name: str) -> None:
    frame.pop().set_attr(frame.state, name, None, DISCARD)
