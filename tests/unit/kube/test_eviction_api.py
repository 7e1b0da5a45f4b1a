"""Eviction and deletion requests over TLS to a fake API server."""

from __future__ import annotations

from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

import pytest

from nodeagent.errors import ApiServerRefusedError, ApiServerUnavailableError
from nodeagent.eviction.api_evictor import EvictionApi
from nodeagent.kube.api_client import ApiClient
from nodeagent.kube.api_credentials import ApiCredentials
from nodeagent.model.kubernetes import ApiAccess
from tests.support.api_pods import pod
from tests.support.api_server import ApiServer, Fault, serving_api

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.certificates import Authority

BUDGET = "The disruption budget webpdb needs 2 healthy pods and has 2 currently"
"""Message of a refusal by a disruption budget, recorded from Kubernetes 1.36."""


@contextmanager
def evictions(authority: Authority, token_file: Path, timeout_s: float = 20) -> Iterator[tuple[ApiServer, EvictionApi]]:
    server = ApiServer()
    server.pods.put(pod("web"))
    with serving_api(server, partial(authority.server_context, "server")) as url:
        access = ApiAccess(url=url, ca_file=authority.ca_file, token_file=token_file, timeout_s=timeout_s)
        api = EvictionApi(ApiClient(access, ApiCredentials(access)))
        try:
            yield server, api
        finally:
            api.close()


async def test_eviction_has_uid_version_and_grace_period(api_authority: Authority, token_file: Path) -> None:
    with evictions(api_authority, token_file) as (server, api):
        await api.evict("default", "web", "uid-web", "1001", 30)
    (request,) = server.requests
    assert (request.method, request.path) == ("POST", "/api/v1/namespaces/default/pods/web/eviction")
    assert request.body == {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": "web", "namespace": "default"},
        "deleteOptions": {
            "gracePeriodSeconds": 30,
            "preconditions": {"uid": "uid-web", "resourceVersion": "1001"},
        },
    }
    assert server.pods.ended == [("web", 30)]


async def test_deletion_has_uid_version_and_grace_period(api_authority: Authority, token_file: Path) -> None:
    with evictions(api_authority, token_file) as (server, api):
        await api.delete("default", "web", "uid-web", "1001", 0)
    (request,) = server.requests
    assert (request.method, request.path) == ("DELETE", "/api/v1/namespaces/default/pods/web")
    assert request.body["gracePeriodSeconds"] == 0
    assert request.body["preconditions"] == {"uid": "uid-web", "resourceVersion": "1001"}
    assert server.pods.pods == {}


@pytest.mark.parametrize(
    ("target", "expected", "words"),
    [
        (("uid-other", "1001"), (409, ()), "UID in precondition: uid-other"),
        (("uid-web", "17"), (409, ()), "ResourceVersion in precondition: 17"),
        (("uid-web", "1001"), (429, ("DisruptionBudget",)), BUDGET),
    ],
    ids=["another uid", "another version", "budget"],
)
async def test_refusal_has_status_cause_and_message(
    api_authority: Authority,
    token_file: Path,
    target: tuple[str, str],
    expected: tuple[int, tuple[str, ...]],
    words: str,
) -> None:
    with evictions(api_authority, token_file) as (server, api):
        if expected[0] == 429:  # a budget refuses the request before the version is checked
            server.pods.budgets["web"] = BUDGET
        with pytest.raises(ApiServerRefusedError) as refused:
            await api.evict("default", "web", *target, 1)
    assert (refused.value.status, refused.value.causes) == expected
    assert words in str(refused.value)
    assert server.pods.ended == []


async def test_refusal_of_a_missing_pod_differs_from_that_of_a_missing_endpoint(
    api_authority: Authority, token_file: Path
) -> None:
    with evictions(api_authority, token_file) as (server, api):
        with pytest.raises(ApiServerRefusedError) as refused:
            await api.evict("default", "other", "uid", "1", 1)
        assert (refused.value.status, refused.value.kind) == (404, "pods")
        server.faults = [Fault(404, '{"kind": "Status", "reason": "NotFound", "details": "malformed"}')]
        with pytest.raises(ApiServerRefusedError) as refused:
            await api.evict("default", "web", "uid-web", "1001", 1)
    assert (refused.value.status, refused.value.kind) == (404, "")


@pytest.mark.parametrize("behaviour", ["close", "close-after", "slow", "hang"])
async def test_answer_that_does_not_arrive_leaves_the_effect_unknown(
    api_authority: Authority, token_file: Path, behaviour: str
) -> None:
    timeout_s = 30 if behaviour.startswith("close") else 0.5  # the end of the connection is an answer
    with evictions(api_authority, token_file, timeout_s=timeout_s) as (server, api):
        server.faults = [Fault(behaviour=behaviour), Fault(behaviour=behaviour)]
        with pytest.raises(ApiServerUnavailableError):
            await api.evict("default", "web", "uid-web", "1001", 1)
    assert (server.pods.ended != []) is (behaviour == "close-after")


async def test_name_cannot_change_the_path(api_authority: Authority, token_file: Path) -> None:
    with evictions(api_authority, token_file) as (server, api), pytest.raises(ApiServerRefusedError):
        await api.evict("a/b", "../../nodes/node-1?x=", "uid", "1", 1)
    (request,) = server.requests
    assert request.path == "/api/v1/namespaces/a%2Fb/pods/..%2F..%2Fnodes%2Fnode-1%3Fx%3D/eviction"


async def test_missing_rule_is_named(api_authority: Authority, token_file: Path) -> None:
    with evictions(api_authority, token_file) as (server, api):
        server.denied.add(("POST", "pods/eviction"))
        with pytest.raises(ApiServerRefusedError) as refused:
            await api.evict("default", "web", "uid-web", "1001", 1)
    assert refused.value.status == 403
    assert "pods/eviction" in str(refused.value)
