"""Frozen dataclasses that are made in a third of the time.

For each class, the standard library before Python 3.13 compiles six functions. This takes half a millisecond, and a
command imports 30 to 200 classes: a sixth of its time. Here one function is compiled, ``__init__``, and the others are
the same for all classes. Type checkers see the standard library's decorator, and its functions work on these classes.
"""

from __future__ import annotations

import dataclasses
from dataclasses import MISSING, FrozenInstanceError, asdict, field, fields, replace
from operator import attrgetter
from typing import TYPE_CHECKING, Any

__all__ = ["asdict", "dataclass", "field", "fields", "replace"]

if TYPE_CHECKING:
    from dataclasses import dataclass
else:

    def dataclass(cls: type[Any] | None = None, /, **options: bool) -> Any:
        """The decorator ``dataclasses.dataclass``, with its options. It is faster if ``frozen`` is the only option."""
        return _frozen if options == {"frozen": True} else dataclasses.dataclass(cls, **options)


def _frozen(cls: type[Any]) -> type[Any]:
    if any(map(dataclasses.is_dataclass, cls.__bases__)):  # few, and the library wants all of them to be frozen
        return dataclasses.dataclass(frozen=True)(cls)
    made: Any = dataclasses.dataclass(init=False, repr=False, eq=False)(cls)
    made.__dataclass_params__.frozen = True
    values = attrgetter("__class__", *(each.name for each in fields(made) if each.compare))

    def is_equal(self: Any, other: Any) -> Any:
        return values(self) == values(other) if other.__class__ is self.__class__ else NotImplemented

    methods = {
        "__init__": _initializer(made),
        "__repr__": _text,
        "__eq__": is_equal,
        "__hash__": lambda self: hash(values(self)),
        "__setattr__": _refuse,
        "__delattr__": _refuse,
    }
    for name, method in methods.items():
        if made.__dict__.get(name) is None:  # of the class itself; Python sets a hash of None beside an own __eq__
            setattr(made, name, method)
    return cls


def _initializer(made: Any) -> Any:
    names: dict[str, Any] = {"_MISSING": MISSING}
    parameters, lines = [], ["own = self.__dict__"]
    for each in fields(made):
        parameter = value = each.name
        if each.default is not MISSING:
            names[f"_{each.name}"] = each.default
            parameter = f"{each.name}=_{each.name}"
        elif each.default_factory is not MISSING:
            names[f"_{each.name}"] = each.default_factory
            parameter, value = f"{each.name}=_MISSING", f"_{each.name}() if {each.name} is _MISSING else {each.name}"
        parameters.append(parameter)
        lines.append(f"own[{each.name!r}] = {value}")
    if hasattr(made, "__post_init__"):
        lines.append("self.__post_init__()")
    exec(f"def __init__(self, {', '.join(parameters)}):\n    " + "\n    ".join(lines), names)  # noqa: S102 (as dataclasses does)
    return names["__init__"]


def _text(self: Any) -> str:
    shown = (f"{each.name}={getattr(self, each.name)!r}" for each in fields(self) if each.repr)
    return f"{type(self).__qualname__}({', '.join(shown)})"


def _refuse(self: Any, name: str, _value: object = None) -> None:
    raise FrozenInstanceError(f"the field {name!r} of {type(self).__qualname__} cannot be changed")
