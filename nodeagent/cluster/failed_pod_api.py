"""The failed pods of one node at the API server."""

from __future__ import annotations

from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Final

import msgspec

from nodeagent.cluster.plan.failed_pods import FAILED, FailedPod
from nodeagent.kube.api_client import MANAGER
from nodeagent.model.runtime import ANNOTATION_SOURCE
from nodeagent.pods.plan.facts import ANNOTATION_MIRROR
from nodeagent.pods.pod_api import decode_object, list_page

if TYPE_CHECKING:
    from nodeagent.kube.api_client import ApiClient

_MAX_PAGES: Final = 20
_STATUS: Final = "status"


class _Object(msgspec.Struct, frozen=True, rename="camel"):
    """A part of a pod; unknown fields are ignored."""


class _Owner(_Object, frozen=True):
    kind: str = ""
    controller: bool = False


class _Write(_Object, frozen=True):
    """An entry of ``managedFields``; its time is that of the API server."""

    manager: str = ""
    subresource: str = ""
    time: datetime | None = None


class _Meta(_Object, frozen=True):
    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    deletion_timestamp: str | None = None
    annotations: dict[str, str] | None = None
    finalizers: list[str] | None = None
    owner_references: list[_Owner] | None = None
    managed_fields: list[_Write] | None = None


class _Spec(_Object, frozen=True):
    node_name: str = ""


class _Terminated(_Object, frozen=True):
    finished_at: datetime | None = None


class _State(_Object, frozen=True):
    running: _Object | None = None
    terminated: _Terminated | None = None


class _Container(_Object, frozen=True):
    state: _State = _State()


class _Condition(_Object, frozen=True):
    last_transition_time: datetime | None = None


class _Status(_Object, frozen=True):
    phase: str = ""
    reason: str = ""
    conditions: list[_Condition] | None = None
    init_container_statuses: list[_Container] | None = None
    container_statuses: list[_Container] | None = None
    ephemeral_container_statuses: list[_Container] | None = None


class _Pod(_Object, frozen=True):
    metadata: _Meta = _Meta()
    spec: _Spec = _Spec()
    status: _Status = _Status()


async def list_failed_pods(client: ApiClient, node: str) -> tuple[tuple[FailedPod, ...], datetime | None]:
    """Return the readable failed pods of a node, at most 1000, and the time of the answer by the API server.

    The time is ``None`` for an answer without one.

    Raises:
        ApiServerError: as :meth:`ApiClient.send`.
    """
    pods: list[FailedPod] = []
    next_page, now = "", None
    for _ in range(_MAX_PAGES):
        page, headers = await list_page(client, f"spec.nodeName={node},status.phase={FAILED}", next_page)
        now = _date(headers.get("date", ""))
        pods += (pod for each in page.items or () if (pod := _failed_pod(each)) is not None)
        next_page = page.metadata.next_page
        if not next_page:
            break
    return tuple(pods), now


def _failed_pod(document: msgspec.Raw) -> FailedPod | None:
    """Return the facts of a pod; ``None`` for a malformed one, which is kept."""
    found = decode_object(document, _Pod)
    if found is None:
        return None
    metadata, status = found.metadata, found.status
    annotations, owners = metadata.annotations or {}, metadata.owner_references or []
    containers = [
        *(status.init_container_statuses or ()),
        *(status.container_statuses or ()),
        *(status.ephemeral_container_statuses or ()),
    ]
    writes = [each for each in metadata.managed_fields or () if each.subresource == _STATUS]
    ended = [each.last_transition_time for each in status.conditions or ()]
    ended += [each.state.terminated.finished_at for each in containers if each.state.terminated is not None]
    return FailedPod(
        uid=metadata.uid,
        namespace=metadata.namespace,
        name=metadata.name,
        resource_version=metadata.resource_version,
        node=found.spec.node_name,
        phase=status.phase,
        reason=status.reason,
        controller=next((each.kind for each in owners if each.controller), ""),
        is_static=(
            ANNOTATION_MIRROR in annotations
            or annotations.get(ANNOTATION_SOURCE, "api") != "api"
            or any(each.kind == "Node" for each in owners)
        ),
        finalizers=tuple(metadata.finalizers or ()),
        deleting=metadata.deletion_timestamp is not None,
        # the agent publishes a status after all containers have exited, and keeps the former kubelet's list of them
        has_running_container=MANAGER not in {each.manager for each in writes}
        and any(each.state.running is not None for each in containers),
        written_at=_latest([each.time for each in writes]),
        ended_at=_latest(ended),
    )


def _latest(times: list[datetime | None]) -> datetime | None:
    aware = [each if each.tzinfo else each.replace(tzinfo=UTC) for each in times if each is not None]
    return max(aware, default=None)


def _date(text: str) -> datetime | None:
    """Return the time in the header ``Date``; ``None`` for another form."""
    try:
        found = parsedate_to_datetime(text)
    except ValueError:
        return None
    return found if found.tzinfo else None
