"""Complete list of a runtime, read object by object, for a list that is too large for one message.

containerd 1.6 does not stream the lists of CRI, and a filter does not divide a list, since the ids are unknown. All
ids are found by their prefixes: containerd accepts a unique prefix instead of an id, and reports an ambiguous prefix
and a prefix without an object by different errors. An object that exists from the start to the end of the search is
found. If an answer has another form, the search fails, since an object that is missing in a list counts as deleted.

The search takes about seven calls per object. Rejected: the ids of containerd's container records. A sandbox without a
record, which is in the list of CRI, would be missing: the sandbox of another sandbox controller (containerd 2), of a
failed creation with a failed cleanup, or of a record deleted by an operator.

Source: containerd ``truncindex.TruncIndex.Get``, by which ``PodSandboxStatus``, ``ContainerStatus`` and the id filters
of the lists find an object; ``RunPodSandbox`` on a failed cleanup; ``util.GenerateID``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Generic, TypeVar

from google.protobuf.message import Message

from nodeagent.errors import RuntimeNotFoundError, RuntimeRequestError
from nodeagent.runtime.bounded_calls import run_bounded
from nodeagent.runtime.connection import MAX_ANSWER_BYTES

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Sequence

Response = TypeVar("Response", bound=Message)

_SEARCH: Final = "search by prefixes"
_DIGITS: Final = "0123456789abcdef"
_ID_DIGITS: Final = 64
_ABSENT: Final = "error occurred when try to find"
"""Text of the error for an unknown id. Other errors with the status NOT_FOUND are about parts of an existing object."""

_AMBIGUOUS: Final = "multiple ids found with provided prefix"


class PrefixList(Generic[Response]):
    """List of all objects of one kind, one answer per object."""

    def __init__(
        self,
        find: Callable[[str], Awaitable[str]],
        list_one: Callable[[str], Awaitable[Response]],
        ids_of: Callable[[Response], Iterable[str]],
    ) -> None:
        """Create a list.

        Args:
            find: returns the id of the only object with a prefix, by the status of the object.
            list_one: lists the only object with a prefix, without objects if there is none or several.
            ids_of: returns the ids in an answer of ``list_one``.
        """
        self._find = find
        self._list_one = list_one
        self._ids_of = ids_of

    async def read(self) -> list[Response]:
        """Return the answers, ordered by the lengths of the unique prefixes, then by id.

        Raises:
            RuntimeUnavailableError: no connection to the runtime.
            RuntimeRequestError: the list cannot be completed, or exceeds ``MAX_ANSWER_BYTES``.
        """
        found: list[Response] = []
        prefixes: Sequence[str] = _DIGITS
        size_bytes = 0
        while prefixes:
            longer: list[str] = []
            for answer, ambiguous in await run_bounded(self._visit, prefixes):
                longer += [ambiguous + digit for digit in _DIGITS] if ambiguous else []
                if answer is not None:
                    found.append(answer)
                    size_bytes += answer.ByteSize()
            if size_bytes > MAX_ANSWER_BYTES:
                raise RuntimeRequestError(
                    _SEARCH, "", "RESOURCE_EXHAUSTED", f"list larger than {MAX_ANSWER_BYTES} bytes"
                )
            prefixes = longer
        return found

    async def _visit(self, prefix: str) -> tuple[Response | None, str]:
        """Return the answer of the only object with a prefix, and the prefix if it is ambiguous, empty otherwise."""
        try:
            found = await self._find(prefix)
        except RuntimeRequestError as error:
            if isinstance(error, RuntimeNotFoundError) and _ABSENT in error.detail:
                return None, ""
            if _AMBIGUOUS in error.detail.lower() and len(prefix) < _ID_DIGITS:
                return None, prefix
            answer = await self._list_one(prefix)  # an object without a readable status
            if not self._has_one(answer, prefix):
                raise
            return answer, ""
        answer = await self._list_one(found)
        is_removed = not any(self._ids_of(answer))
        if not found.startswith(prefix) or not (is_removed or self._has_one(answer, found)):
            raise RuntimeRequestError(_SEARCH, prefix, "INTERNAL", f"the answer contains other objects than {prefix}")
        return answer, ""

    def _has_one(self, answer: Response, prefix: str) -> bool:
        ids = list(self._ids_of(answer))
        return len(ids) == 1 and ids[0].startswith(prefix)
