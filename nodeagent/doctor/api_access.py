"""Read-only check of the API server for ``nodeagent doctor``: server trust, credentials and access rules."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime
from typing import TYPE_CHECKING, Final

import msgspec

from nodeagent.cluster.facts import compare_with_machine, read_foreign
from nodeagent.cluster.plan.conditions import trial_patch
from nodeagent.cluster.plan.rules import access_reviews
from nodeagent.doctor.plan.node import TAINT_RULE
from nodeagent.errors import ApiServerError, ApiServerRefusedError
from nodeagent.kube.api_client import ApiClient, ApiRequest, NodeApi
from nodeagent.kube.api_credentials import ApiCredentials
from nodeagent.kube.certificate import expiry
from nodeagent.pods.pod_api import PodApi
from nodeagent.record import Record

if TYPE_CHECKING:
    from nodeagent.model.kubernetes import ApiAccess, Node

REVIEWS: Final = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"


class _ReviewStatus(msgspec.Struct, frozen=True):
    allowed: bool = False


class _Review(msgspec.Struct, frozen=True):
    status: _ReviewStatus = _ReviewStatus()


class ApiAccessFacts(Record):
    """Result of an access check at the API server.

    Attributes:
        error: cause of a failed request; empty otherwise.
        expires_at: end of validity of the client certificate; ``None`` without a client certificate.
        has_node: whether the Node object exists.
        foreign: reason that the Node object is not proven to be of this machine; empty with proof.
        missing: rules that the identity lacks, for display.
    """

    error: str = ""
    expires_at: datetime | None = None
    has_node: bool = False
    foreign: str = ""
    missing: tuple[str, ...] = ()


async def read_pod_access(access: ApiAccess, node: str) -> tuple[int, str]:
    """Return the number of pods that the API server lists for a node, and the reason that the list is not usable.

    The reason is a failed request, or a Node object that is not proven to be of this machine; empty for a usable list.
    """
    client = ApiClient(access, ApiCredentials(access))
    try:
        pods, _, _ = await PodApi(client, node).list()
        foreign = await read_foreign(NodeApi(client, node))
    except ApiServerError as error:
        return 0, str(error)
    finally:
        client.close()
    return len(pods), foreign


async def read_api_access(access: ApiAccess, node: str, settings: Collection[str]) -> ApiAccessFacts:
    """Check the server certificate, the credentials and every access rule that ``settings`` require.

    With ``condition_taints``, a dry run at the API server checks that the taints may be changed: no rule states the
    refusal of a node certificate by the admission plugin NodeRestriction.

    Source: Kubernetes ``SelfSubjectAccessReview``, allowed to every identity by ``system:basic-user``.
    """
    credentials = ApiCredentials(access)
    client = ApiClient(access, credentials)
    expires_at = None
    try:
        expires_at = expiry(credentials.read().certificate)
        missing = []
        for rule, verb, body in access_reviews(node, settings):
            review = await client.send(ApiRequest("POST", REVIEWS, msgspec.json.encode(body)), _Review)
            if not review.status.allowed:
                missing.append(rule.text(verb))
        nodes = NodeApi(client, node)
        found = None if "get nodes" in missing else await nodes.get_node()
        foreign = await compare_with_machine(found)
        if (
            "condition_taints" in settings
            and found is not None
            and "patch nodes" not in missing
            and not await _may_taint(nodes, found)
        ):
            missing.append(TAINT_RULE)
    except ApiServerError as error:
        return ApiAccessFacts(str(error), expires_at)
    finally:
        client.close()
    return ApiAccessFacts("", expires_at, found is not None, foreign, tuple(missing))


async def _may_taint(nodes: NodeApi, found: Node) -> bool:
    """Return false if a change of the taints is forbidden; other failures, such as a conflict, are inconclusive."""
    patch = trial_patch(found)
    try:
        if patch is not None:
            await nodes.patch_node(patch, dry_run=True)
    except ApiServerRefusedError as error:
        return error.status != 403
    return True
