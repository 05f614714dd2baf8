"""`json.dumps` of numbers that data decide: the text is made behind the region, as that of an f-string is.

log.append(json.dumps({"loss": round(loss.item(), 4), "step": step}))
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from kiln.capture.interpreter.core import NOT_RESUMABLE, Args, CallSite, CaptureState, Kwargs, Value, handles_at_site
from kiln.capture.interpreter.variables.deferred_text import text_of
from kiln.capture.interpreter.variables.function import Function, inline
from kiln.capture.interpreter.variables.mapping import Dict

OPTIONS = frozenset(("skipkeys", "ensure_ascii", "check_circular", "indent", "separators", "sort_keys"))
"""Those with which no number raises: without `allow_nan`, NaN does, perhaps in a `try` of the program."""


@handles_at_site(json.dumps)
def dumps(s: CaptureState, args: Args, kwargs: Kwargs, site: CallSite = NOT_RESUMABLE) -> Value:
    if len(args) == 1 and kwargs.keys() <= OPTIONS:
        options = Dict({key.key(s): (key, value) for name, value in kwargs.items() for key in [s.const(name)]})
        if (text := text_of(s, json_text, [args[0], options])) is not None:
            return text
    function = s.wrap(json.dumps, None)
    assert isinstance(function, Function)
    return inline(s, function, args, kwargs, site)


def json_text(value: object, options: Mapping[str, object]) -> str:
    """Called by transformed code."""
    return json.dumps(value, **options)  # type: ignore[arg-type]
