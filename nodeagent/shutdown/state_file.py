"""Shutdown state that survives a crash of the agent: the shutdown in progress, and the last record of the boot.

The state is in two small files instead of database tables: the files are written while pods are being stopped, are read
by the process that resumes the shutdown after a crash, and must not be lost with a quarantined database. Each file is
replaced atomically and synced; in a full filesystem it is overwritten in place.

If the state directory cannot store a stop, for example because it is read-only, the stop is written to the runtime
directory. Other processes of the boot read it there: without it, the stop hook would repeat a complete shutdown and
record wrong outcomes.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import time
from contextlib import contextmanager, suppress
from datetime import datetime
from typing import TYPE_CHECKING, Final, TypeVar

from nodeagent.errors import StoreError
from nodeagent.files import overwrite_file, read_file, replace_file
from nodeagent.model.stops import (
    BootRecord,
    LastActivity,
    NodeStop,
    PodOutcome,
    SentTerm,
    StopEnd,
    StopKind,
    StoppedPod,
)
from nodeagent.parsing import parse_json
from nodeagent.schemas import SchemaId

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

T = TypeVar("T")

STOP_FILE: Final = "shutdown.json"
BOOT_FILE: Final = "boot.json"
LOCK_FILE: Final = "shutdown.lock"
_STOP_SCHEMA: Final = SchemaId.SHUTDOWN_FILE.value
_BOOT_SCHEMA: Final = SchemaId.BOOT_FILE.value
_LOCK_POLL_S: Final = 0.25


class ShutdownFiles:
    """Files of the shutdown state of this node. Methods block and may be called from any thread or process."""

    def __init__(self, directory: Path, runtime_directory: Path | None = None) -> None:
        """Use files under the given directories.

        Args:
            directory: the state directory, created at the first write.
            runtime_directory: an existing directory that is kept until power-off, for a stop that the state directory
                cannot store; ``None`` for no such directory.
        """
        self._directory = directory
        self.runtime_directory = runtime_directory

    def read_stop(self) -> NodeStop | None:
        """Return the last node stop, finished or not; ``None`` if no file exists.

        A file in the runtime directory has precedence over the file in the state directory, since it is written only if
        the write to the state directory fails, and removed by the next successful write.

        Raises:
            StoreError: the file cannot be read, or its content is invalid.
        """
        if self.runtime_directory is not None:
            with suppress(StoreError):  # may be the file of an agent of another user with another state directory
                copy = _read_stop(self.runtime_directory / STOP_FILE)
                if copy is not None:
                    return copy
        return _read_stop(self._directory / STOP_FILE)

    def write_stop(self, stop: NodeStop) -> None:
        """Replace the stored node stop.

        Raises:
            StoreError: the file cannot be written to the state directory. The previous file is kept there, and the stop
                is written to the runtime directory if that is writable.
        """
        copy = self.runtime_directory / STOP_FILE if self.runtime_directory is not None else None
        try:
            self._write(STOP_FILE, _encode_stop(stop))
        except StoreError:
            if copy is not None:
                with suppress(OSError):
                    replace_file(copy, _text_of(_encode_stop(stop)))
            raise
        if copy is not None:
            with suppress(OSError):
                copy.unlink(missing_ok=True)

    def read_boot(self) -> BootRecord | None:
        """Return the last record of this or an earlier boot; ``None`` if the file does not exist.

        Raises:
            StoreError: as for :meth:`read_stop`.
        """
        path = self._directory / BOOT_FILE
        document = _read(path, _BOOT_SCHEMA)
        return None if document is None else _decoded(path, _boot, document)

    def write_boot(self, record: BootRecord) -> None:
        """Replace the record of the boot.

        Raises:
            StoreError: as for :meth:`write_stop`.
        """
        self._write(BOOT_FILE, _encode_boot(record))

    @contextmanager
    def claim(self, within_s: float = 0.0, take_over: Callable[[], bool] = lambda: False) -> Iterator[bool]:
        """Acquire the lock on stopping pods; yield whether it was acquired within ``within_s`` seconds.

        The kernel releases the lock when the process ends. If no lock file can be opened, the block runs as if the lock
        were acquired, since stopping pods is more important than the lock.

        Args:
            within_s: maximum wait in seconds.
            take_over: called at intervals while another process holds the lock; returns whether that process stops no
                further pods, so that the block runs as if the lock were acquired.
        """
        descriptor = self._open_lock()
        if descriptor is None:
            yield True
            return
        try:
            yield _lock(descriptor, time.monotonic() + within_s, take_over)
        finally:
            os.close(descriptor)

    def _open_lock(self) -> int | None:
        """Return a descriptor of the lock file; ``None`` if it cannot be opened.

        An existing file is opened even in a read-only state directory.
        """
        with suppress(OSError):
            self._directory.mkdir(mode=0o750, parents=True, exist_ok=True)
        created = os.O_RDWR | os.O_CREAT
        for directory, access in (
            (self._directory, created),
            (self._directory, os.O_RDONLY),
            (self.runtime_directory, created),
        ):
            if directory is not None:
                with suppress(OSError):
                    return os.open(directory / LOCK_FILE, access | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        return None

    def _write(self, name: str, document: Mapping[str, object]) -> None:
        path = self._directory / name
        try:
            self._directory.mkdir(mode=0o750, parents=True, exist_ok=True)
            replace_file(path, _text_of(document))
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                # An outdated record would be reported as an unclean stop at the next boot.
                with suppress(OSError):
                    overwrite_file(path, _text_of(document))
                    return
            raise StoreError(f"cannot write {path}: {error.strerror or error}") from error


def _read(path: Path, schema: str) -> Mapping[str, object] | None:
    try:
        document = parse_json(read_file(path))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise StoreError(f"cannot read {path}: {error}") from error
    if not isinstance(document, dict) or document.get("schema") != schema:
        raise StoreError(f"cannot read {path}: not a document of schema {schema}")
    return document


def _read_stop(path: Path) -> NodeStop | None:
    document = _read(path, _STOP_SCHEMA)
    return None if document is None else _decoded(path, _stop, document)


def _decoded(path: Path, decode: Callable[[Mapping[str, object]], T], document: Mapping[str, object]) -> T:
    try:
        return decode(document)
    except (KeyError, TypeError, ValueError) as error:
        raise StoreError(f"cannot decode {path}: {error!r}") from error


def _text_of(document: Mapping[str, object]) -> str:
    return json.dumps(document, ensure_ascii=False) + "\n"


def _lock(descriptor: int, until_s: float, take_over: Callable[[], bool]) -> bool:
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if take_over():
                return True
            if time.monotonic() >= until_s:
                return False
            time.sleep(_LOCK_POLL_S)  # polling, since a blocking flock has no timeout
        except OSError:
            return True
        else:
            return True


def _encode_stop(stop: NodeStop) -> dict[str, object]:
    return {
        "schema": _STOP_SCHEMA,
        "boot_id": stop.boot_id,
        "kind": stop.kind.value,
        "started_at": stop.started_at.isoformat(),
        "started_s": stop.started_s,
        "granted_ms": stop.granted_ms,
        "end": stop.end.value,
        "ended_at": stop.ended_at.isoformat() if stop.ended_at else None,
        "dry_run": stop.dry_run,
        "operation": stop.operation,
        "progress_s": stop.progress_s,
        "pods": [_encode_pod(each) for each in stop.pods],
    }


def _encode_boot(record: BootRecord) -> dict[str, object]:
    return {
        "schema": _BOOT_SCHEMA,
        "boot_id": record.boot_id,
        "presence": record.activity.value,
        "seen_at": record.recorded_at.isoformat(),
        "pods": [{"uid": each.uid, "namespace": each.namespace, "name": each.name} for each in record.pods],
    }


def _encode_pod(pod: StoppedPod) -> dict[str, object]:
    return {
        "uid": pod.uid,
        "namespace": pod.namespace,
        "name": pod.name,
        "phase": pod.phase,
        "why": pod.why,
        "outcome": pod.outcome.value if pod.outcome else None,
        "asked_ms": pod.requested_at_ms,
        "took_ms": pod.took_ms,
        "detail": pod.detail,
        "containers": list(pod.container_ids),
        "terms": {container_id: {"ms": each.at_ms, "direct": each.direct} for container_id, each in pod.terms.items()},
        "observed": pod.observed,
        "kill_sent": pod.kill_sent,
    }


def _stop(document: Mapping[str, object]) -> NodeStop:
    ended_at = document["ended_at"]
    return NodeStop(
        boot_id=_text(document, "boot_id"),
        kind=StopKind(_text(document, "kind")),
        started_at=_time(_text(document, "started_at")),
        started_s=_number(document, "started_s"),
        granted_ms=round(_number(document, "granted_ms")),
        end=StopEnd(_text(document, "end")),
        ended_at=None if ended_at is None else _time(_text(document, "ended_at")),
        dry_run=document["dry_run"] is True,
        pods=tuple(map(_pod, _rows(document))),
        operation=_text(document, "operation") if "operation" in document else "",
        progress_s=None if document.get("progress_s") is None else _number(document, "progress_s"),
    )


def _boot(document: Mapping[str, object]) -> BootRecord:
    return BootRecord(
        _text(document, "boot_id"),
        LastActivity(_text(document, "presence")),
        _time(_text(document, "seen_at")),
        tuple(StoppedPod(_text(row, "uid"), _text(row, "namespace"), _text(row, "name")) for row in _rows(document)),
    )


def _pod(row: Mapping[str, object]) -> StoppedPod:
    return StoppedPod(
        uid=_text(row, "uid"),
        namespace=_text(row, "namespace"),
        name=_text(row, "name"),
        phase=_text(row, "phase"),
        why=_text(row, "why"),
        outcome=None if row["outcome"] is None else PodOutcome(_text(row, "outcome")),
        requested_at_ms=round(_number(row, "asked_ms")),
        took_ms=None if row["took_ms"] is None else round(_number(row, "took_ms")),
        detail=_text(row, "detail"),
        container_ids=tuple(map(str, containers)) if isinstance(containers := row.get("containers"), list) else (),
        terms=_terms(row.get("terms")),
        observed=row.get("observed") is True,
        kill_sent=row.get("kill_sent") is True,
    )


def _terms(document: object) -> dict[str, SentTerm]:
    terms = document if isinstance(document, dict) else {}
    return {
        str(container_id): SentTerm(round(_number(each, "ms")), each.get("direct") is True)
        for container_id, each in terms.items()
        if isinstance(each, dict)
    }


def _rows(document: Mapping[str, object]) -> list[Mapping[str, object]]:
    rows = document["pods"]
    if not isinstance(rows, list) or not all(isinstance(each, dict) for each in rows):
        raise TypeError("pods is not a list of tables")
    return rows


def _text(document: Mapping[str, object], key: str) -> str:
    value = document[key]
    if not isinstance(value, str):
        raise TypeError(f"{key} is {value!r}, not a string")
    return value


def _number(document: Mapping[str, object], key: str) -> float:
    value = document[key]
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{key} is {value!r}, not a number")
    return value


def _time(text: str) -> datetime:
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        raise ValueError(f"{text} has no time zone")
    return moment
