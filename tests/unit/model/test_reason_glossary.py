"""The glossary explains every reason code, and names only commands and settings that exist."""

from __future__ import annotations

import re

import pytest

from nodeagent.config.validation import settings_of
from nodeagent.model.reason_codes import ReasonCode
from nodeagent.model.reason_glossary import GLOSSARY
from nodeagent.settings.settings import Config
from tests.unit.test_documents import unknown_part

_SETTING = re.compile(r"\b(?:image_gc|container_gc|protect|eviction|kubernetes|kubelet|runtime)\.[a-z_]+")


def test_every_reason_code_has_a_meaning_in_sentences() -> None:
    assert GLOSSARY.keys() == set(ReasonCode)
    for code, meaning in GLOSSARY.items():
        for text in filter(None, (meaning.text, meaning.advice)):
            assert text.endswith("."), code
            assert len(text) <= 110, code


@pytest.mark.parametrize("code", [each for each in GLOSSARY if GLOSSARY[each].advice])
def test_advice_names_only_existing_commands_and_settings(code: ReasonCode) -> None:
    keys = {each.key for each in settings_of(Config)}
    text = f"{GLOSSARY[code].text} {GLOSSARY[code].advice}"
    assert set(_SETTING.findall(text)) <= keys
    for command in re.findall(r"'nodeagent ([^']+)'", text):
        assert not unknown_part(command.split()), command
