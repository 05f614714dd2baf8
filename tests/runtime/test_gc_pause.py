"""What is loaded counts as old for the cycle collector; the program's garbage and what it froze do not change."""

from __future__ import annotations

import os
import subprocess
import sys

from tests.child import search_path

PROGRAM = """
import gc, weakref
from kiln.support.gc_pause import FEW, GC_PAUSE

class Node:
    def __init__(self):
        self.own = self

{before}
gc.collect()
garbage = weakref.ref(Node())
with GC_PAUSE(), GC_PAUSE.loading():
    made = [Node() for _ in range(1000)]
old = {{id(found) for found in gc.get_objects(2)}}
print(gc.isenabled(), sum(id(node) in old for node in made), garbage() is None, gc.get_freeze_count() >= FEW)
"""


def outcome(before: str) -> list[str]:
    """Is the collector on; how many of 1000 objects are old; is earlier garbage gone; are objects frozen?"""
    program = PROGRAM.format(before=before)
    environment = {**os.environ, "PYTHONPATH": search_path()}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    return done.stdout.split()


def test_what_is_loaded_counts_as_old() -> None:
    assert outcome("") == ["True", "1000", "True", "False"]


def test_what_the_program_froze_stays_frozen() -> None:
    is_on, old, _, is_frozen = outcome("gc.freeze()")
    assert (is_on, old, is_frozen) == ("True", "0", "True")


def test_who_turned_the_collector_off_collects_himself() -> None:
    assert outcome("gc.disable()") == ["False", "0", "False", "False"]
