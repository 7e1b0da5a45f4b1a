"""Images of one repository as one row, in ``images --group`` and in long plans."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Protocol, TypeVar

from nodeagent.cli.table import age

if TYPE_CHECKING:
    from nodeagent.model.decision import Verdict


class Item(Protocol):
    """An image with its decision: a row of a list, or a decision of a plan."""

    @property
    def verdict(self) -> Verdict: ...  # noqa: D102 - as in Decision

    @property
    def reason(self) -> Any: ...  # noqa: ANN401, D102 - two types with ``code``

    @property
    def frees_bytes(self) -> int | None: ...  # noqa: D102 - as in Decision

    @property
    def last_used(self) -> datetime | None: ...  # noqa: D102 - as in Decision


T = TypeVar("T", bound=Item)


class Group(NamedTuple, Generic[T]):
    """Items in one row of a table.

    Attributes:
        name: the repository; of a row with a single item, the key of the item.
        items: the items, in order; not empty.
    """

    name: str
    items: tuple[T, ...]

    @property
    def newest_use(self) -> datetime | None:
        """The latest observed use; ``None`` without observed use."""
        return max((each.last_used for each in self.items if each.last_used), default=None)

    @property
    def planned_bytes(self) -> int | None:
        """Bytes that the plan frees by removing items of the group; 0 without a removal, ``None`` if unknown.

        The plan counts a removal after the earlier removals, so that the sum has shared layers once.
        """
        sizes = [each.frees_bytes for each in self.items if str(each.verdict) == "remove"]
        known = [each for each in sizes if each is not None]
        return sum(known) if len(known) == len(sizes) else None

    @property
    def verdict(self) -> str:
        """The verdict of all items, or the number of items by verdict."""
        counts = Counter(str(each.verdict) for each in self.items)
        return next(iter(counts)) if len(counts) == 1 else ", ".join(f"{n} {each}" for each, n in counts.items())

    @property
    def reason(self) -> str:
        """The reason code of all items; empty if they have several."""
        codes = {str(each.reason.code) for each in self.items}
        return codes.pop() if len(codes) == 1 else ""

    def use_cell(self, now: datetime, unseen: str = "none seen") -> str:
        """Return the time since the last use, of several items from the newest to the oldest, such as ``2h-9d``."""
        known = [each.last_used for each in self.items if each.last_used]
        if not known:
            return unseen
        newest = age(max(known), now)
        oldest = age(min(known), now) if len(known) == len(self.items) else unseen
        return newest if newest == oldest else f"{newest}-{oldest}"


def in_groups(items: Sequence[T], key: Callable[[T], str], *, more_than: int = 0) -> list[Group[T]]:
    """Return the items as rows, in the order of their first items.

    More than ``more_than`` items with the same key are one row, any other item is a row of its own.
    """
    members: dict[str, list[T]] = {}
    for each in items:
        members.setdefault(key(each), []).append(each)
    rows = []
    for each in items:
        own = members[key(each)]
        if len(own) <= more_than:
            rows.append(Group(key(each), (each,)))
        elif own[0] is each:
            rows.append(Group(key(each), tuple(own)))
    return rows


def repository(name: str) -> str:
    """Return the repository of an image name; the id for an image without names."""
    from nodeagent.gc.plan.image_users import repository_of  # noqa: PLC0415 - needed only for groups

    return name if name.startswith("sha256:") else repository_of(name)
