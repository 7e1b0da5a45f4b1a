"""Report of ``nodeagent config import``: unconverted fields by reason, faults first."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Final

from nodeagent.settings.kubelet_fields import FieldGroup
from nodeagent.text import escape

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nodeagent.settings.kubelet_import import Imported

_ONE_BY_ONE: Final = (FieldGroup.INVALID, FieldGroup.MISSPELT, FieldGroup.UNKNOWN, FieldGroup.EXPLAINED)


def import_report(imported: Imported) -> Iterator[str]:
    """Yield the lines of the report: number of converted fields, unconverted fields with faults first, notes."""
    fields = {name for each in imported.taken for name in each.fields.split(" and ")}
    yield f"{len(fields)} fields imported as {len(imported.taken)} settings"
    for group in _ONE_BY_ONE:
        names: defaultdict[str, list[str]] = defaultdict(list)
        for each in imported.left:
            if each.group is group:
                names[each.reason].append(escape(each.field))
        for reason, fields_of_reason in names.items():
            yield f"not imported: {', '.join(fields_of_reason)}: {reason}"
    irrelevant = [escape(each.field) for each in imported.left if each.group is FieldGroup.IRRELEVANT]
    if irrelevant:
        yield f"{len(irrelevant)} fields without effect on the agent: {', '.join(irrelevant)}"
    yield from imported.notes
