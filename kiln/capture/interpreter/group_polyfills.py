"""Methods of exception groups, which are written in C, as Python functions that are interpreted in their place."""

from __future__ import annotations

from collections.abc import Callable, Sequence

Matcher = Callable[[BaseException], object]
Group = BaseExceptionGroup[BaseException]
Parts = tuple[BaseException | None, BaseException | None]


def derive(group: Group, exceptions: Sequence[BaseException], /) -> Group:
    return BaseExceptionGroup(group.message, exceptions)


def split(group: Group, condition: object, /) -> Parts:
    return parts_of(group, matcher_of(condition))


def subgroup(group: Group, condition: object, /) -> BaseException | None:
    return parts_of(group, matcher_of(condition))[0]


def matcher_of(condition: object) -> Matcher:
    """Whether an exception matches a class, a tuple of classes, or a predicate."""
    if isinstance(condition, type(matcher_of)):
        return condition
    classes = condition if isinstance(condition, tuple) else (condition,)
    if not all(isinstance(cls, type) and issubclass(cls, BaseException) for cls in classes):
        raise TypeError("expected a function, exception type or tuple of exception types")
    return lambda error: isinstance(error, classes)


def parts_of(error: BaseException, matches: Matcher) -> Parts:
    """What matches, and the rest."""
    if matches(error):
        return error, None
    if not isinstance(error, BaseExceptionGroup):
        return None, error
    matching, rest = [], []
    for inner in error.exceptions:
        match, other = parts_of(inner, matches)
        if match is not None:
            matching.append(match)
        if other is not None:
            rest.append(other)
    return part_of(error, matching), part_of(error, rest)


def part_of(group: Group, exceptions: list[BaseException]) -> Group | None:
    """A group of some of the exceptions, with what else the whole group holds."""
    if not exceptions:
        return None
    made = group.derive(exceptions)
    if not isinstance(made, BaseExceptionGroup):
        raise TypeError("derive must return an instance of BaseExceptionGroup")
    made.__traceback__ = group.__traceback__
    made.__context__ = group.__context__
    made.__cause__ = group.__cause__
    if hasattr(group, "__notes__"):
        made.__notes__ = list(group.__notes__)
    return made
