"""Client certificate of a node: the next step of its bootstrap or renewal, and the check of an issued certificate.

At most one request of the node exists at the API server. A request that was denied, failed or was answered with a wrong
certificate is followed by a new one after its deletion, by an operator or by the control plane, which deletes such
requests after an hour and pending ones after a day. Rejected: a new request after each denial, as the kubelet makes
every 32 s; an approver of a fleet would read thousands of equal requests.
"""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Final

import msgspec

from nodeagent.model.kubernetes import ApiObject, Certificate
from nodeagent.record import Record, Time
from nodeagent.text import escape, shortened
from nodeagent.units import format_time

SIGNER: Final = "kubernetes.io/kube-apiserver-client-kubelet"
USAGES: Final = ("digital signature", "client auth")
"""Usages of an ECDSA key. Source: signer ``kubernetes.io/kube-apiserver-client-kubelet``, permitted key usages."""
ORGANIZATION: Final = "system:nodes"
RENEWAL_SHARE: Final = (0.7, 0.9)
"""Range of the share of the validity after which a certificate is renewed. Source: kubelet ``nextRotationDeadline``."""
MAX_NODE_NAME: Final = 52
"""Maximum length of a node name. Source: RFC 5280, ``ub-common-name`` of 64, minus ``system:node:``."""
TOKEN_REJECTED: Final = "bootstrap token rejected"
POLL_S: Final = 60.0
"""Maximum seconds between two readings of a request, and minimum seconds between two requests."""
_FIRST_POLL_S: Final = 1.0
_MAX_SHOWN: Final = 300


def node_user(node: str) -> str:
    """Return the user of a node, the common name of its certificate. Source: Kubernetes, Node authorization."""
    return f"system:node:{node}"


class RequestState(StrEnum):
    """State of a certificate request. The values are part of the state directory and of the log."""

    UNSENT = "unsent"
    PENDING = "pending"
    DENIED = "denied"
    FAILED = "failed"
    REFUSED = "refused"
    UNPROVEN = "unproven"


class CertificateRequest(Record):
    """A certificate request of this node, as stored.

    Attributes:
        name: name of the CertificateSigningRequest.
        key: key of the request, PEM.
        requested_at: time of creation, aware UTC.
        state: last known state.
        detail: message of the approver, or cause of a failure.
    """

    name: str
    key: str
    requested_at: Time
    state: RequestState = RequestState.UNSENT
    detail: str = ""

    def __repr__(self) -> str:
        """Return the text without the key."""
        return f"CertificateRequest({self.name}, {self.state})"


class Step(StrEnum):
    """Next step of the client certificate."""

    WAIT = "wait"
    CREATE = "create"
    SEND = "send"
    POLL = "poll"


def next_step(
    certificate: Certificate | None, request: CertificateRequest | None, now: datetime, *, jitter: float
) -> tuple[Step, float]:
    """Return the next step, and the seconds until its start for ``WAIT``, else until the step after it.

    Args:
        certificate: the usable certificate; ``None`` without one.
        request: the request in progress; ``None`` without one.
        now: aware UTC.
        jitter: number from 0 to 1, the same for each call with one certificate.
    """
    if request is None:
        left_s = 0.0 if certificate is None else (renewal_at(certificate, jitter) - now).total_seconds()
        return (Step.WAIT, left_s) if left_s > 0 else (Step.CREATE, 0.0)
    if request.state is RequestState.UNSENT:
        return Step.SEND, 0.0
    if request.state is not RequestState.PENDING:
        return Step.POLL, POLL_S
    age_s = (now - request.requested_at).total_seconds()
    if age_s < 0:  # the clock was set back
        return Step.POLL, POLL_S
    # An approver usually answers within a second; a fleet that waits for an absent one sends a request per minute each.
    return Step.POLL, min(POLL_S, max(_FIRST_POLL_S, age_s / 4))


def renewal_at(certificate: Certificate, jitter: float) -> datetime:
    """Return the time from which a certificate is renewed: after 70 to 90 % of its validity."""
    first, last = RENEWAL_SHARE
    return certificate.not_before + (certificate.not_after - certificate.not_before) * (first + (last - first) * jitter)


def replacement_wait_s(request: CertificateRequest, now: datetime) -> float:
    """Return the seconds until a new request may replace a deleted one; 0 at once, also after a clock set back."""
    age_s = (now - request.requested_at).total_seconds()
    return max(0.0, POLL_S - age_s) if age_s >= 0 else 0.0


def certificate_problem(found: Certificate | None, node: str, now: datetime) -> str:
    """Return the reason why a certificate is not usable for a node, for display; empty if it is usable."""
    if found is None:
        return "not a certificate in PEM form of at most 64 KiB"
    expected = (f"CN={node_user(node)}", f"O={ORGANIZATION}")
    if tuple(sorted(found.subject)) != expected:
        subject = shortened(escape(", ".join(found.subject)), _MAX_SHOWN)
        return f"the certificate is for {subject or 'an empty subject'}, expected {', '.join(expected)}"
    if found.not_after <= now:
        return f"the certificate expired at {format_time(found.not_after)}"
    return ""


class SigningCondition(ApiObject, frozen=True):
    """A condition of a CertificateSigningRequest: ``Approved``, ``Denied`` or ``Failed``."""

    type: str = ""
    reason: str = ""
    message: str = ""


class SigningStatus(ApiObject, frozen=True):
    """Status of a CertificateSigningRequest; ``certificate`` is the PEM text in base64, empty if none was issued."""

    certificate: bytes = b""
    conditions: tuple[SigningCondition, ...] = ()


class SigningRequest(ApiObject, frozen=True):
    """A CertificateSigningRequest, limited to its status. Source: Kubernetes API, ``certificates.k8s.io/v1``."""

    status: SigningStatus = msgspec.field(default_factory=SigningStatus)


def judge_answer(found: SigningRequest) -> tuple[RequestState, str]:
    """Return the state of a request at the API server, and the message of its approver or signer."""
    for kind, state in (("Denied", RequestState.DENIED), ("Failed", RequestState.FAILED)):
        for each in found.status.conditions:
            if each.type == kind:
                words = (shortened(escape(text), _MAX_SHOWN) for text in (each.reason, each.message) if text)
                return state, ": ".join(words)
    return (RequestState.UNPROVEN, "") if found.status.certificate else (RequestState.PENDING, "")
