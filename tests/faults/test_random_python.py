"""What random Python programs found (`python -m tests.sweeps python`): each body once differed from eager."""

from __future__ import annotations

import pytest

from tests.sweeps.python_programs import check, source_of
from tests.sweeps.shrink import Statement

BODIES = {
    "division by a plain zero": "l0.append(i0 // 0)",
    "remainder by a plain zero": "l0.append(divmod(i0, 0)[1])",
    "division by a zero that is computed": "i0 //= divmod(i0, -1)[1]",
    "dimension of a scalar tensor": "d0['q'] = t0.sum().size(-1)",
    "deleted attribute that never was": "del o0.w",
    "attribute deleted twice": "o0.w = 1; del o0.w; del o0.w",
    "deleted property without a deleter": "del o0.double",
    "order of a set of strings": "l0.extend(set(list(map(str, l0))))",
    "order of a set of numbers": "q = {*l0}; q.add(11); q.discard(1); q.add(8); q.add(3); l0 = list(q)",
    "order of a union": "l0.extend({'b', 'a', 'c'} | {'d'})",
    "tensor sizes by an integer in a condition": "i4 = o0.double\n    while torch.zeros(i4 % 3).sum() > 0: pass",
    "list times a string": "l0 = [1] * s0",
    "text of list.index": "try: l0.index(99)\n    except ValueError as e: l0.append(e.args)",
    "text of list.remove": "try: l0.remove(99)\n    except ValueError as e: l0.append(e.args)",
    "text of tuple.index": "try: (1, 2).index(99)\n    except ValueError as e: l0.append(e.args)",
    "text of max": "try: max([])\n    except ValueError as e: l0.append(e.args)",
    "key of set.remove": "try: {1}.remove(99)\n    except KeyError as e: l0.append(e.args)",
    "dict that grows in its loop": "for k in d0: d0[len(d0)] = 1",
    "values of a dict that shrinks": "for v in d0.values(): d0.popitem()",
    "set that grows in its loop": "q = {1}\n    for k in q: q.add(k + 1)",
    "dict that grows in its last round": "for k in {1: 2}: d0[k] = 1",
    "dict that grows in a loop with a break": "for k in d0: d0.setdefault('q', []); helper.extra = k",
    "dict that shrinks in a loop with a break": "for k in d0:\n        del d0['a']; i0 = t0.sum().item()",
    "set that grows in a loop with a break": "q = {1}\n    for k in q: q.add(t0.sum().item())",
    "items of a dict that grow in a loop with a break": "for k, v in d0.items(): d0[t0.sum().item()] = v",
    "variable of the enclosing function that is not set": (
        "if i0 < 0: i5 = 1\n    def g(t9): return t9.tolist() and i5\n    g(t0)"
    ),
    "bytearray": (
        "q = bytearray(b'ab'); q.append(i0); q += b'xy'; q[0:1] = q * 2; q.extend([1, 2]); del q[1]\n    "
        "l0.append((bytes(q), q.find(b'x'), list(q), b'x' in q, q == bytes(q), b'-' + q, q.upper(), q[-1]))\n    "
        "d0['q'] = q"
    ),
    "regular expressions": (
        "m = WORD.search(s0 + ' 12'); l0.append((m.group(), m[0], m.start(), bool(m), WORD.sub('x', s0)))\n    "
        "l0.append(WORD.sub(lambda m: m.group() + str(i0), s0)); l0.append(WORD.match('-') is None)"
    ),
    "errors of a bytearray": (
        "for v in (-1, 256, 'a', None):\n        try: bytearray([1]).append(v)\n"
        "        except Exception as e: l0.append((type(e).__name__, e.args))"
    ),
    "bytearray behind a break": "q = bytearray(3); q[1] = 7; import time; time.sleep(0); q.pop(); l0.append(q)",
    "surplus arguments": "try: len(l0, l0)\n    except TypeError as e: l0.append(e.args)",
    "surplus arguments of a method": "try: d0.get(1, 2, 3)\n    except TypeError as e: l0.append(e.args)",
    "missing arguments of a method": "try: l0.count()\n    except TypeError as e: l0.append(e.args)",
    "keywords of a builtin": "try: bool(x=1)\n    except TypeError as e: l0.append(e.args)",
    "surplus arguments of a type": "try: bool(1, 2)\n    except TypeError as e: l0.append(e.args)",
    "list that grows after its iterator ended": (
        "it = iter(l0)\n    for v in it: pass\n    l0.append(1)\n    l0.extend(it)"
    ),
    "long products of sums": (
        "for j in range(4):\n        i0 //= max(i0 - 1, 1)\n        "
        "l0 = [a * b for a, b in zip(list(itertools.accumulate(l0))[:6], l0)]"
    ),
    "format of a bytearray": "q = bytearray(b'ab'); l0.append((f'{q} {q!r:>20} {q!s}', str(q), repr(q)))",
    "format of another type": "for k in d0: s0 = f'{k:04d}'",
    "list.pop by a string": "l0.pop('a')",
    "list.insert at a string": "l0.insert('a', 2)",
    "text of an object with a number that changes": "try: s0 = str(sorted(str(o0)))\n    except Exception: t0 = t1",
    "text of list.index of a number that changes": "try: l0.index(i0)\n    finally: i0 = pause(1)",
    "text of list.index of an object": "l0.index(o0)",
    "variable of a closure that is not set": (
        "try:\n        if b0: t6 = t0\n        def g7(): yield t6\n        t0 = t6 + 1\n    finally: i0 = pause(1)"
    ),
    "variable of a closure that is not set, in the closure": "if i0 < 0: i5 = 1\n    def g(): return i5\n    g()",
    "variable of a closure deleted twice": "v = 1\n    def g():\n        nonlocal v\n        del v; del v\n    g()",
    "text of divmod of a string": "for k in d0: divmod(k, 1)",
    "divmod of a number that changes and a string": "try: divmod(i0, s0)\n    except TypeError as e: l0.append(e.args)",
    "rounding a tensor": "i0 = round(t0 / 3)",
    "return in a loop through a `finally` with a `match`": (
        "t1 = t1.view(-1)[:1] + t0; w3 = 0\n    while w3 < 2 and pause(t1).shape == t0.shape: w3 += 1\n"
        "    for i4 in range(COUNT % 4):\n        try: return o0\n"
        "        except Exception: return t1.mul(i0), max(i4, 7)\n"
        "        finally:\n            match l0:\n                case 2 | 7: o0.double = (i4 % i0)"
    ),
    "iteration over a scalar tensor": "try:\n        for v in t0.sum(): pass\n    finally: i0 = pause(1)",
}


@pytest.mark.parametrize("name", BODIES)
def test_like_eager(name: str) -> None:
    found = check(source_of((Statement(BODIES[name]),)))
    assert found is None, found
