"""The plans that compiling a function makes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest import mock

import kiln
from kiln.pipeline import stages
from kiln.plan.plan import Plan


def compiled_plans(function: Callable[..., Any], *args: Any, **options: Any) -> list[Plan]:
    """The plans of the regions of `function`, called once without the cache."""
    plans: list[Plan] = []
    original = stages.run_stages

    def noting(*given: Any, **options: Any) -> list[Any]:
        made = original(*given, **options)
        plans.append(made[-1])
        return made

    with mock.patch.object(stages, "run_stages", noting):
        kiln.compile(function, options={"cache": False, **options})(*args)
    return plans
