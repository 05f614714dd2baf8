"""A text of several, chosen by a number that data decide: it is looked up behind the region.

text += letters[token.item()]        the region checks that the number is an index; transformed code takes the item
words.append(names[best.item()])
"""

from __future__ import annotations

import operator

from kiln.capture.interpreter.core import CaptureState, Value
from kiln.capture.interpreter.data_values import assume_integer, is_needed
from kiln.capture.interpreter.variables.constant import Constant
from kiln.capture.interpreter.variables.deferred_text import Deferred, text_of
from kiln.capture.interpreter.variables.sequence import List, Tuple
from kiln.capture.interpreter.variables.symbolic import Symbolic
from kiln.symbolic.expr import Expr
from kiln.symbolic.node import SymNode, to_sym
from kiln.symbolic.relation import rel_eq, rel_le, rel_lt
from kiln.symbolic.values import invert

MOST_TEXTS = 256
"""Each text of a list from outside is guarded."""


def chosen_text(s: CaptureState, container: Value, key: Value) -> Value | None:
    """`container[key]`; None where that is no text, or where Python needs it."""
    if not isinstance(key, Symbolic) or key.python_type() is not int or is_needed(s) or not s.policy.assumes:
        return None
    node: SymNode = key.node.node
    count = number_of_texts(s, container)
    if count < 2 or node.has_hint() or not isinstance(node.value, Expr):
        return None
    text = text_of(s, operator.getitem, [container, key])
    if text is None:
        return None
    for bound in (rel_le(0, node.value), rel_lt(node.value, count)):
        assume_integer(s, bound)
    return text


def compared_text(s: CaptureState, function: object, left: Value, right: Value) -> Value | None:
    """`==` or `!=` of such a text with one that is known, as that of the number; None for others, and where several of
    the texts are equal to it."""
    if not isinstance(left, Deferred):
        left, right = right, left
    if not isinstance(left, Deferred) or function not in (operator.eq, operator.ne) or not right.is_constant:
        return None
    if left.make is not operator.getitem or type(right.real()) is not str:
        return None
    texts, number = left.args[0], left.args[1]
    assert isinstance(texts, Constant | List | Tuple) and isinstance(number, Symbolic)
    known = texts.constant(s) if isinstance(texts, Constant) else [item.real() for item in texts.items(s)]
    found = [index for index, text in enumerate(known) if text == right.constant(s)]
    if len(found) > 1:
        return None
    truth = rel_eq(number.node.node.value, found[0]) if found else False
    return s.wrap(to_sym(invert(truth) if function is operator.ne else truth, s.recorder.env), None)


def number_of_texts(s: CaptureState, container: Value) -> int:
    """Of a text, its letters; of a list or tuple of texts, those; 0 for anything else."""
    if container.is_constant and type(container.real()) is str:
        return len(str(container.constant(s)))
    if not isinstance(container, List | Tuple) or container.python_type() not in (list, tuple):
        return 0
    count = container.length(s)
    items = container.items(s) if 1 < count <= MOST_TEXTS else []
    is_text = [item.is_constant and type(item.real()) is str for item in items]
    return count if items and all(is_text) else 0
