"""Value types of the settings, with their form in the configuration reference."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from nodeagent.config import value_forms as forms

Duration = Annotated[str, BeforeValidator(forms.duration), Field(json_schema_extra={"form": "duration"})]
Period = Annotated[str, BeforeValidator(forms.period), Field(json_schema_extra={"form": "duration, at least 1s"})]
Size = Annotated[str, BeforeValidator(forms.size), Field(json_schema_extra={"form": "size"})]
Percent = Annotated[int, Field(ge=0, le=100, strict=True, json_schema_extra={"form": "percent, 0 to 100"})]
Count = Annotated[int, Field(ge=0, strict=True, json_schema_extra={"form": "count"})]
Limit = Annotated[int, Field(ge=-1, strict=True, json_schema_extra={"form": "count, -1 for no limit"})]
Seconds = Annotated[float, Field(ge=0, le=7 * 86_400, strict=True, allow_inf_nan=False)]
Switch = Annotated[bool, Field(strict=True, json_schema_extra={"form": "true or false"})]
OptionalPath = Annotated[
    str, AfterValidator(forms.absolute_or_empty), Field(json_schema_extra={"form": "absolute path, or empty"})
]
Directory = Annotated[str, AfterValidator(forms.absolute), Field(json_schema_extra={"form": "absolute path"})]
SocketPath = Annotated[OptionalPath, AfterValidator(forms.socket_path)]


class Section(BaseModel):
    """Table of the configuration file: unknown keys are rejected, values are frozen, defaults are validated.

    Validators are built at first use, since the validator of the whole configuration includes those of its sections.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True, defer_build=True)
