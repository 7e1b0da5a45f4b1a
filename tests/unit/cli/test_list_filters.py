"""Maximum length of list filters."""

from __future__ import annotations

import pytest

from nodeagent.cli.listing import IMAGES, ListOptions
from nodeagent.cli.lists import ListRequest
from nodeagent.errors import UsageError


def test_filter_above_the_maximum_length_is_refused() -> None:
    ListRequest.of(IMAGES, ListOptions(filters=(f"name={'[' * 256}",)))
    with pytest.raises(UsageError, match="257 characters, more than 256"):
        ListRequest.of(IMAGES, ListOptions(filters=(f"name={'[' * 257}",)))
