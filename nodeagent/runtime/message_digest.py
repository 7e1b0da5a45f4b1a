"""Digests of protobuf messages, for later comparisons without keeping the messages."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from google.protobuf.message import Message

_DIGEST_BYTES = 16


def message_digest(message: Message) -> str:
    """Return the digest of a message, which does not depend on the order of map entries."""
    import hashlib  # noqa: PLC0415 - loads OpenSSL, which one-shot commands do not need

    encoded = message.SerializeToString(deterministic=True)
    return hashlib.blake2b(encoded, digest_size=_DIGEST_BYTES).hexdigest()
