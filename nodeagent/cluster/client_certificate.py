"""Client certificate of a node: request with the bootstrap token, renewal, and the task of the daemon.

A new certificate is written beside the one in use and replaces it after the first successful request with it, so that
a certificate that the API server does not accept changes nothing. All clients of the API server read the file again
when it changes.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from nodeagent.cluster import CLIENT_CERTIFICATE
from nodeagent.cluster.plan import client_certificate as plan
from nodeagent.cluster.plan.client_certificate import CertificateRequest, RequestState, SigningRequest, Step
from nodeagent.cluster.session_task import RegistrationReporter, SessionTask
from nodeagent.errors import ApiServerError, ApiServerRefusedError, ApiServerUnavailableError
from nodeagent.files import replace_file
from nodeagent.record import Record, replace
from nodeagent.telemetry.logging import StateLog
from nodeagent.units import format_time

if TYPE_CHECKING:
    from nodeagent.kube.api_client import ApiRequest
    from nodeagent.model.kubernetes import ApiAccess, Certificate
    from nodeagent.settings.settings import Settings
    from nodeagent.units import Clock

REQUESTS: Final = "/apis/certificates.k8s.io/v1/certificatesigningrequests"
_MAX_WAIT_S: Final = 600.0
"""Maximum seconds between two readings of the files and the wall clock, which an operator can change."""
_SLACK_S: Final = 60.0
_CONFLICT, _NOT_FOUND, _UNAUTHORIZED = 409, 404, 401
_PART: Final = "client certificate"


class ClientFiles(Record):
    """Files of the client certificate in the state directory, readable by their owner only; methods block.

    Attributes:
        certificate: certificate in use and its key.
    """

    certificate: Path

    @property
    def issued(self) -> Path:
        """Issued certificate that no request has proven yet, and its key."""
        return self.certificate.with_stem(f"{self.certificate.stem}-next")

    @property
    def request(self) -> Path:
        """Request in progress, with its key."""
        return self.certificate.with_name(f"{self.certificate.stem}-request.json")

    def read_pem(self) -> bytes | None:
        """Return the certificate in use and its key; ``None`` if there is none.

        Raises:
            OSError: the file cannot be read.
        """
        return _read(self.certificate)

    def read_request(self) -> CertificateRequest | None:
        """Return the request in progress; ``None`` without one, and for a damaged file: a new key is then made.

        Raises:
            OSError: the file cannot be read.
        """
        content = _read(self.request)
        try:
            return None if content is None else msgspec.json.decode(content, type=CertificateRequest)
        except (msgspec.MsgspecError, UnicodeError):
            return None

    def write_request(self, request: CertificateRequest) -> None:
        """Store the request in progress.

        Raises:
            OSError: the file cannot be written.
        """
        replace_file(self.request, msgspec.json.encode(request).decode())

    def clear_request(self) -> None:
        """Remove the request in progress and its unproven certificate."""
        self.issued.unlink(missing_ok=True)
        self.request.unlink(missing_ok=True)


def _read(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None


def read_usable(pem: bytes | None, node: str, clock: Clock) -> tuple[Certificate | None, str]:
    """Return the certificate of a node, and the reason why it is not usable; empty if it is, or if there is none."""
    # imported here, since a daemon without an API server does not need h11 and ssl
    import ssl  # noqa: PLC0415

    from nodeagent.kube.api_client import load_certificate  # noqa: PLC0415
    from nodeagent.kube.api_credentials import ApiIdentity  # noqa: PLC0415
    from nodeagent.kube.certificate import parse_certificate  # noqa: PLC0415

    if pem is None:
        return None, ""
    found = parse_certificate(pem)
    problem = plan.certificate_problem(found, node, clock.now())
    if not problem:
        try:
            load_certificate(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), ApiIdentity("", certificate=pem))
        except ApiServerUnavailableError as error:
            problem = str(error)
    return found, problem


def jitter_of(pem: bytes) -> float:
    """Return a number from 0 to 1 that differs between certificates and is the same after a restart."""
    return int.from_bytes(hashlib.sha256(pem).digest()[:4]) / 0xFFFFFFFF


class ClientCertificate:
    """Requests and renews the client certificate of a node, step by step."""

    def __init__(
        self, access: ApiAccess, node: str, clock: Clock, reporter: RegistrationReporter, states: StateLog
    ) -> None:
        """Prepare the steps.

        Args:
            access: access with the bootstrap token and the certificate file.
            node: name of the Node object.
            clock: wall time of certificates.
            reporter: logs and counts failed requests.
            states: log of refused certificates.

        Raises:
            ValueError: ``access`` has no certificate file or no bootstrap token.
        """
        if access.certificate_file is None or access.bootstrap_token_file is None:
            raise ValueError("no certificate to request")
        self._files = ClientFiles(access.certificate_file)
        self._access = access
        self._token_access = replace(
            access, certificate_file=None, bootstrap_token_file=None, token_file=access.bootstrap_token_file
        )
        self._node = node
        self._clock = clock
        self._reporter = reporter
        self._states = states

    async def step(self) -> float:
        """Carry out the next step; return the seconds until the one after it. No error of a request is raised."""
        try:
            return await self._step()
        except ApiServerError as error:
            return self._reporter.failed(_PART, error)
        except (OSError, ValueError) as error:
            if isinstance(error, ValueError):  # a damaged key, which is replaced, or a too long name of the node
                await asyncio.to_thread(self._files.clear_request)
            failure = ApiServerUnavailableError(f"cannot request the client certificate: {error}")
            return max(plan.POLL_S, self._reporter.failed(_PART, failure))

    async def _step(self) -> float:
        pem, request = await asyncio.to_thread(self._files.read_pem), await asyncio.to_thread(self._files.read_request)
        found, problem = await asyncio.to_thread(read_usable, pem, self._node, self._clock)
        if problem:
            notice = f"{self._files.certificate} is not used: {problem}"
            self._states.log_once("store_notice", {"notice": notice}, state=notice)
        usable = None if problem else found
        jitter = 0.0 if pem is None else jitter_of(pem)
        step, wait_s = plan.next_step(usable, request, self._clock.now(), jitter=jitter)
        if usable is not None and step is Step.WAIT:
            self._reporter.succeeded(_PART, f"valid until {format_time(usable.not_after)}")
            return min(wait_s, _MAX_WAIT_S)
        if request is None:
            request = await asyncio.to_thread(self._create)
        if step is Step.POLL:
            return await self._poll(request, wait_s, is_usable=usable is not None)
        try:
            await self._post(request, is_usable=usable is not None)
        except ApiServerError as error:
            await self._store(request, RequestState.UNSENT, str(error))
            raise
        await self._store(request, RequestState.PENDING, "")
        return 0.0

    def _create(self) -> CertificateRequest:
        """Store a new request with a new key, before it is sent: a lost response must not lose the key."""
        from nodeagent.kube.certificate import new_key  # noqa: PLC0415 - imports the TLS library

        request = CertificateRequest(f"nodeagent-{os.urandom(16).hex()}", new_key(), self._clock.now())
        self._files.clear_request()
        self._files.write_request(request)
        return request

    async def _post(self, request: CertificateRequest, *, is_usable: bool) -> None:
        from nodeagent.kube.api_client import ApiRequest  # noqa: PLC0415 - as above
        from nodeagent.kube.certificate import signing_request  # noqa: PLC0415 - as above

        pem = await asyncio.to_thread(signing_request, request.key, plan.ORGANIZATION, plan.node_user(self._node))
        body = {
            "apiVersion": "certificates.k8s.io/v1",
            "kind": "CertificateSigningRequest",
            "metadata": {"name": request.name},
            "spec": {
                "request": base64.b64encode(pem).decode("ascii"),
                "signerName": plan.SIGNER,
                "usages": list(plan.USAGES),
            },
        }
        try:
            await self._send(ApiRequest("POST", REQUESTS, msgspec.json.encode(body)), is_usable=is_usable)
        except ApiServerRefusedError as error:
            if error.status != _CONFLICT:  # else an earlier attempt, whose response was lost, created it
                raise
        self._states.logger.info("client_certificate_requested", request=request.name)

    async def _poll(self, request: CertificateRequest, wait_s: float, *, is_usable: bool) -> float:
        from nodeagent.kube.api_client import ApiRequest  # noqa: PLC0415 - as above
        from nodeagent.kube.certificate import certificates_only  # noqa: PLC0415 - as above

        try:
            found = await self._send(ApiRequest("GET", f"{REQUESTS}/{request.name}"), is_usable=is_usable)
        except ApiServerError as error:
            if isinstance(error, ApiServerRefusedError) and error.status == _NOT_FOUND:
                deleted = ApiServerUnavailableError(f"certificate request {request.name} was deleted")
                self._reporter.failed(_PART, deleted)
                left_s = plan.replacement_wait_s(request, self._clock.now())
                if not left_s:
                    await asyncio.to_thread(self._files.clear_request)
                return left_s
            if request.state is RequestState.PENDING:
                await self._store(request, RequestState.PENDING, str(error))
            raise
        state, detail = plan.judge_answer(found)
        if state is RequestState.UNPROVEN:
            pem = certificates_only(found.status.certificate) + request.key.encode("ascii")
            _, detail = await asyncio.to_thread(read_usable, pem, self._node, self._clock)
            if not detail:
                await self._adopt(request, pem)
                return 0.0
            state = RequestState.REFUSED
        await self._store(request, state, detail)
        text = f"certificate request {request.name} {state}"
        if state is RequestState.PENDING:
            self._reporter.succeeded(_PART, text)
        else:
            self._reporter.failed(_PART, ApiServerUnavailableError(f"{text}: {detail}"))
        return wait_s

    async def _adopt(self, request: CertificateRequest, pem: bytes) -> None:
        """Use a certificate after a successful request with it."""
        from nodeagent.kube.api_client import ApiClient, NodeApi  # noqa: PLC0415 - as above
        from nodeagent.kube.api_credentials import ApiCredentials  # noqa: PLC0415 - as above

        await asyncio.to_thread(replace_file, self._files.issued, pem.decode("ascii"))
        access = replace(self._access, certificate_file=self._files.issued, bootstrap_token_file=None)
        client = ApiClient(access, ApiCredentials(access))
        try:
            await NodeApi(client, self._node).get_node()
        except ApiServerError as error:
            await self._store(request, RequestState.UNPROVEN, str(error))
            raise
        finally:
            client.close()
        await asyncio.to_thread(self._files.issued.replace, self._files.certificate)
        await asyncio.to_thread(self._files.clear_request)
        self._states.end("store_notice")
        self._states.logger.info("client_certificate_changed", request=request.name)

    async def _send(self, request: ApiRequest, *, is_usable: bool) -> SigningRequest:
        """Send a request about the CertificateSigningRequest, with the certificate if it is accepted, else the token.

        Raises:
            ApiServerError: the request failed; the text states a refusal of the bootstrap token.
        """
        if is_usable:
            try:
                return await _send_once(replace(self._access, bootstrap_token_file=None), request)
            except ApiServerRefusedError as error:
                if error.status != _UNAUTHORIZED:  # else revoked, or of a CA that was replaced
                    raise
        try:
            return await _send_once(self._token_access, request)
        except ApiServerRefusedError as error:
            if error.status != _UNAUTHORIZED:
                raise
            raise ApiServerRefusedError(f"{plan.TOKEN_REJECTED}: {error}", error.status, error.reason) from error

    async def _store(self, request: CertificateRequest, state: RequestState, detail: str) -> None:
        if (request.state, request.detail) != (state, detail):
            changed = replace(request, state=state, detail=detail)
            await asyncio.to_thread(self._files.write_request, changed)


async def _send_once(access: ApiAccess, request: ApiRequest) -> SigningRequest:
    """Send a request over a new connection; requests are rare, and credentials differ between them."""
    from nodeagent.kube.api_client import ApiClient  # noqa: PLC0415 - as above
    from nodeagent.kube.api_credentials import ApiCredentials  # noqa: PLC0415 - as above

    client = ApiClient(access, ApiCredentials(access))
    try:
        return await client.send(request, SigningRequest)
    finally:
        client.close()


class ClientCertificateTask(SessionTask):
    """Requests and renews the client certificate while a bootstrap token is configured."""

    name = CLIENT_CERTIFICATE

    def _off_because(self, settings: Settings) -> str:
        access = settings.kubernetes.access
        return self._not_written(
            enabled=access is not None and access.bootstrap_token_file is not None, settings=settings
        )

    async def _run_session(self, settings: Settings, stop: asyncio.Event) -> None:
        from nodeagent.host.node import node_name  # noqa: PLC0415 - as above

        access, statuses, clock = settings.kubernetes.access, self._context.loop_statuses, self._context.clock
        if access is None:
            return
        states = StateLog(self._logger, clock)
        reporter = RegistrationReporter(states, statuses, self.name)
        certificate = ClientCertificate(access, node_name(settings.kubelet.node_name), clock, reporter, states)
        while self._continues(settings, stop) and not self._off_because(settings):  # a dry run may start meanwhile
            wait_s = await certificate.step()
            statuses.waiting(self.name, wait_s, _SLACK_S)
            await self._wait(wait_s, settings, stop)
