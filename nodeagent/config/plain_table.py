"""Table of types, limits and defaults of settings for ``nodeagent.config.plain``, derived from the models."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, get_args, get_origin

from pydantic import AfterValidator, BaseModel, BeforeValidator

from nodeagent.config import value_forms
from nodeagent.config.models import Config

if TYPE_CHECKING:
    from collections.abc import Iterable

_WITH_RULES: Final = frozenset({"eviction.stall_window", "eviction.memory_stall", "eviction.io_stall", "kubelet.url"})
"""Settings validated by rules that only the models have, outside ``value_forms`` and the policies."""
_OF_MODELS: Final = frozenset({"kubernetes"})
"""Sections that only their models can convert to settings."""


def rendered() -> str:
    """Return the table of all settings as JSON text."""
    table = {}
    for name, setting in Config.model_fields.items():
        kind = setting.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            default = kind()
            for key, inner in kind.model_fields.items():
                dotted = f"{name}.{key}"
                left = name in _OF_MODELS or dotted in _WITH_RULES
                form = {"kind": None} if left else _form(inner.annotation, inner.metadata)
                table[dotted] = {**form, "default": getattr(default, key)}
        else:
            table[name] = {**_form(kind, setting.metadata), "default": getattr(Config(), name)}
    return json.dumps(table, indent=1, sort_keys=True) + "\n"


def _form(kind: Any, metadata: Iterable[object]) -> dict[str, Any]:  # noqa: ANN401 - a type expression
    """Return the form of a value; ``kind`` is ``None`` for a value that only the models can validate."""
    metadata = tuple(metadata)
    functions = [each.func for each in metadata if isinstance(each, AfterValidator | BeforeValidator)]
    names = [getattr(each, "__name__", "") for each in functions]
    if any(getattr(value_forms, name, None) is not each for name, each in zip(names, functions, strict=True)):
        return {"kind": None}
    if get_origin(kind) is Literal and all(isinstance(each, str) for each in get_args(kind)) and not names:
        return {"kind": "choice", "choices": list(get_args(kind))}
    if get_origin(kind) is tuple and get_args(kind)[1:] == (...,) and not names:
        item = get_args(kind)[0]
        form = _form(*((get_args(item)[0], get_args(item)[1:]) if get_origin(item) is Annotated else (item, ())))
        return {"kind": "list", "item": form} if form["kind"] == "text" else {"kind": None}
    if kind is str:
        return {"kind": "text", "forms": names}
    if kind is int and not names:
        least, most = ([getattr(each, name) for each in metadata if hasattr(each, name)] for name in ("ge", "le"))
        return {"kind": "int", "min": max(least, default=None), "max": min(most, default=None)}
    return {"kind": "switch" if kind is bool and not names else None}
