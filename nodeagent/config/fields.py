"""Value types of the settings, with their form in the configuration reference."""

from __future__ import annotations

from typing import Annotated, Final

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from nodeagent.units import DURATION_FORM, QUANTITY_FORM, parse_bytes, parse_duration_s

_MAX_TEXT_LENGTH: Final = 64
_MAX_DURATION_S: Final = 100 * 365 * 86_400.0
_MAX_SIZE_BYTES: Final = 2**63 - 1
_MAX_SOCKET_PATH_BYTES: Final = 107
"""Source: unix(7), ``sun_path`` with its final zero."""


def _duration(value: object) -> object:
    if value == 0 and not isinstance(value, bool):
        return "0s"
    if not isinstance(value, str):
        raise ValueError(f"a duration needs a unit: write {DURATION_FORM}")  # noqa: TRY004 - pydantic's contract
    if len(value) > _MAX_TEXT_LENGTH or parse_duration_s(value) > _MAX_DURATION_S:
        raise ValueError("longer than 100 years")
    return value.strip()


def _period(value: object) -> object:
    text = _duration(value)
    if parse_duration_s(str(text)) < 1:
        raise ValueError("must be at least 1s")
    return text


def _size(value: object) -> object:
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise ValueError(f"not a size: write {QUANTITY_FORM}")  # noqa: TRY004 - pydantic's contract
    text = str(value)
    if len(text) > _MAX_TEXT_LENGTH or parse_bytes(text) > _MAX_SIZE_BYTES:
        raise ValueError("larger than 8Ei")
    return text.strip()


def _absolute(value: str) -> str:
    if not value.startswith("/") or "\0" in value:
        raise ValueError("must be an absolute path, such as /var/log/pods")
    return value


def _absolute_or_empty(value: str) -> str:
    return _absolute(value) if value else value


def _socket_path(value: str) -> str:
    if len(value.encode()) > _MAX_SOCKET_PATH_BYTES:
        raise ValueError(f"longer than the maximum of a socket path ({_MAX_SOCKET_PATH_BYTES} bytes)")
    return value


Duration = Annotated[str, BeforeValidator(_duration), Field(json_schema_extra={"form": "duration"})]
Period = Annotated[str, BeforeValidator(_period), Field(json_schema_extra={"form": "duration, at least 1s"})]
Size = Annotated[str, BeforeValidator(_size), Field(json_schema_extra={"form": "size"})]
Percent = Annotated[int, Field(ge=0, le=100, strict=True, json_schema_extra={"form": "percent, 0 to 100"})]
Count = Annotated[int, Field(ge=0, strict=True, json_schema_extra={"form": "count"})]
Limit = Annotated[int, Field(ge=-1, strict=True, json_schema_extra={"form": "count, -1 for no limit"})]
Seconds = Annotated[float, Field(ge=0, le=7 * 86_400, strict=True, allow_inf_nan=False)]
Switch = Annotated[bool, Field(strict=True, json_schema_extra={"form": "true or false"})]
OptionalPath = Annotated[
    str, AfterValidator(_absolute_or_empty), Field(json_schema_extra={"form": "absolute path, or empty"})
]
Directory = Annotated[str, AfterValidator(_absolute), Field(json_schema_extra={"form": "absolute path"})]
SocketPath = Annotated[OptionalPath, AfterValidator(_socket_path)]


class Section(BaseModel):
    """A table of the file: unknown keys are rejected, values are frozen, defaults are validated.

    Validators are built at their first use, since those of the whole configuration include those of its sections.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True, defer_build=True)
