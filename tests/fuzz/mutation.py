"""Mutations of seed inputs. Equal seed numbers result in equal inputs."""

from __future__ import annotations

import json
from copy import deepcopy
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from random import Random

MOST_BYTES: Final = 1 << 16
_TOKENS: Final = (
    *(b"\r\n", b"\n", b"\r\n\r\n", b" ", b"\t", b":", b"/", b"?", b"&", b"=", b"%", b"%00", b"%ff", b"%2f", b"+", b";"),
    *(b"{", b"}", b"[", b"]", b'"', b"\\", b"\\u0000", b"\\ud800", b",", b"null", b"true", b"false", b"NaN", b"-"),
    *(b"0", b"-1", b"1e309", b"18446744073709551616", b"0.1", b"9" * 5000, b"0x10", b"2026-13-40T25:61:61Z"),
    *(b"\x00", b"\x1b[2J", b"\x7f", b"\xff", b"\xc3\x28", b"\xed\xa0\x80", "\u202e".encode(), "\ufeff".encode()),
    *(b"Transfer-Encoding: chunked\r\n", b"Content-Length: 5\r\n", b"Expect: 100-continue\r\n", b"0\r\n\r\n"),
    *(b"HTTP/1.1", b"HTTP/1.0", b"HTTP/9.9", b"GET ", b"POST ", b"HEAD ", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
    *(b"*", b"?", b"[!", b"[a-", b"**", b"!=", b"regex:", b"sha256:", b"(a+)+$", b"[" * 2000, b'{"a":' * 2000),
)
_VALUES: Final[tuple[Any, ...]] = (
    *(None, True, False, 0, -1, 1, 2**63, 2**64, 10**400, 0.5, -0.0, 1e308, float("inf"), float("nan")),
    *("", "0", "-1", "a" * 5000, "\u202e\x1b[2J", "\udcff", "\x00", "9" * 5000, "regex:(a+)+$", "sha256:" + "f" * 64),
    *("2026-01-10T12:00:00Z", "9999-12-31T23:59:59-23:59", "0001-01-01T00:00:00+23:59", "remove", "image", "all"),
    *([], {}, [[]], {"": None}),
)


def mutations(seeds: Sequence[bytes], random: Random) -> Iterator[bytes]:
    """Yield the seeds, then an infinite sequence of their mutations."""
    yield from seeds
    pool = list(seeds)
    while True:
        text = random.choice(seeds if random.random() < 0.5 else pool)
        if random.random() < 0.5 and (changed := _changed_json(text, random)) is not None:
            yield changed[:MOST_BYTES]
            continue
        for _ in range(random.choice((1, 1, 2, 4, 16))):
            text = _mutated(text, pool, random)
        if len(pool) < len(seeds) * 8:
            pool.append(text)
        elif random.random() < 0.05:
            pool[random.randrange(len(seeds), len(pool))] = text
        yield text[:MOST_BYTES]


def _mutated(text: bytes, pool: Sequence[bytes], random: Random) -> bytes:
    start = random.randrange(len(text) + 1)
    end = min(len(text), start + random.choice((0, 1, 1, 2, 8, 64)))
    kind = random.randrange(7)
    if kind == 0:  # replace a part by random bytes
        return text[:start] + random.randbytes(end - start) + text[end:]
    if kind == 1:  # remove
        return text[:start] + text[end:]
    if kind == 2:  # repeat a part
        return text[:end] + text[start:end] * random.choice((1, 2, 100)) + text[end:]
    if kind == 3:  # splice: continue with the end of another seed
        other = random.choice(pool)
        return text[:start] + other[random.randrange(len(other) + 1) :]
    if kind == 4 and text:  # flip one bit
        place = random.randrange(len(text))
        return text[:place] + bytes([text[place] ^ 1 << random.randrange(8)]) + text[place + 1 :]
    return text[:start] + random.choice(_TOKENS) + text[end if kind == 5 else start :]


def _changed_json(text: bytes, random: Random) -> bytes | None:
    """Return the input with one to three changed values in its JSON object; ``None`` if it contains no JSON object."""
    start = text.find(b"{")
    try:
        document = json.loads(text[start:]) if start >= 0 else None
    except (ValueError, RecursionError):
        return None
    if not isinstance(document, dict):
        return None
    for _ in range(random.choice((1, 1, 3))):
        _change(document, random)
    return text[:start] + json.dumps(document).encode()


def _change(value: Any, random: Random) -> None:
    """Change, remove or add one value at a random depth."""
    while True:
        keys: list[Any] = list(value) if isinstance(value, dict) else list(range(len(value)))
        key = random.choice(keys) if keys else None
        if key is not None and isinstance(value[key], dict | list) and value[key] and random.random() < 0.8:
            value = value[key]
            continue
        break
    kind = random.randrange(4)
    if key is None or kind == 0:
        new = deepcopy(random.choice(_VALUES))
        if isinstance(value, dict):
            value[str(random.choice(_VALUES))] = new
        else:
            value.append(new)
    elif kind == 1:
        del value[key]
    elif kind == 2 and isinstance(value, list):
        value.extend([value[key]] * random.choice((1, 50)))
    else:
        value[key] = deepcopy(random.choice(_VALUES))
