"""Digests of messages, to compare them later without keeping them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from google.protobuf.message import Message

_DIGEST_BYTES = 16


def message_digest(message: Message) -> str:
    """Return the same digest for equal messages, in whichever order their map entries were received."""
    import hashlib  # noqa: PLC0415 - loads OpenSSL, not for commands that list once

    encoded = message.SerializeToString(deterministic=True)
    return hashlib.blake2b(encoded, digest_size=_DIGEST_BYTES).hexdigest()
