"""Image protection rules: by glob, regular expression or digest, and for the newest images of each repository.

Protection does not depend on pins in the runtime, since pins can be lost. The rules are compiled once per set of rules,
and all patterns are matched together, so that matching 100,000 images takes a fraction of a second.
"""

from __future__ import annotations

import re
from collections import defaultdict
from datetime import UTC, datetime
from enum import StrEnum
from functools import lru_cache
from heapq import nlargest
from operator import itemgetter
from typing import TYPE_CHECKING, Final

from nodeagent.gc.plan.image_origin import Irreplaceable
from nodeagent.gc.plan.image_users import bare_id, digest_of, repository_of
from nodeagent.linear_expression import NO_MATCH, ExpressionError, ExpressionSet, check_expression, expression_of_glob
from nodeagent.model.decision import Reason, ReasonCode
from nodeagent.record import Record

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from nodeagent.model import Image, ImageUsage

EXPRESSION_PREFIX: Final = "regex:"
DIGEST_PREFIXES: Final = ("sha256:", "sha512:", "digest:")
RULE_FORM: Final = (
    "a pattern such as registry.example/team/*, regex: and an expression of RE2, or sha256: and 64 hexadecimal digits"
)
_SHOWN: Final = 80
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}|sha512:[0-9a-f]{128}")
_NEVER: Final = datetime.min.replace(tzinfo=UTC)
_LATEST: Final = datetime.max.replace(tzinfo=UTC)


class RuleKind(StrEnum):
    """Match type of a protection rule."""

    GLOB = "glob"
    REGEX = "regex"
    DIGEST = "digest"


class ProtectionRule(Record):
    """A configured pattern, expression or digest that protects images.

    Attributes:
        text: the rule as configured, for display.
        kind: match type.
        value: the pattern, the expression or the digest.
    """

    text: str
    kind: RuleKind
    value: str


def parse_rule(text: str) -> ProtectionRule:
    """Return the protection rule parsed from ``text``, in one of three forms.

    - ``regex:EXPRESSION``, in RE2 syntax, is searched in every reference as listed by the runtime; ``^`` and ``$``
      anchor the expression.
    - ``sha256:DIGEST`` or ``digest:sha256:DIGEST`` matches an image by its id or by the digest of one of its
      references.
    - Any other text is a case-sensitive glob with ``*``, ``?`` and ``[...]``; ``*`` also matches slashes. The glob must
      match the complete reference (``registry.k8s.io/pause:3.9``) or the reference without tag and digest
      (``registry.k8s.io/pause``). For Docker Hub, the short form of the reference matches too (``nginx:1.27``,
      ``nginx``). Therefore ``registry.k8s.io/pause`` and ``*/pause`` protect all tags, and ``pause`` protects only the
      image on Docker Hub.

    Raises:
        ValueError: the rule is not valid; the message lists the allowed forms.
    """
    stripped = text.strip()
    if stripped.startswith(EXPRESSION_PREFIX):
        return _regex_rule(stripped)
    if stripped.startswith(DIGEST_PREFIXES):
        digest = stripped.removeprefix("digest:")
        if _DIGEST.fullmatch(digest) is None:
            raise ValueError(f"{text!r} is not a full digest: write {RULE_FORM}")
        return ProtectionRule(stripped, RuleKind.DIGEST, digest)
    if not stripped:
        raise ValueError(f"empty rule: write {RULE_FORM}")
    try:
        expression_of_glob(stripped)
    except ExpressionError as error:
        raise ValueError(f"{stripped[:_SHOWN]!r} is not a pattern: {error}: write {RULE_FORM}") from error
    return ProtectionRule(stripped, RuleKind.GLOB, stripped)


def length_from_wildcard(text: str) -> int:
    """Return the characters of a pattern from its first wildcard on, to which its run time is proportional."""
    return len(text) - len(re.split(r"[*?[]", text, maxsplit=1)[0])


def _regex_rule(text: str) -> ProtectionRule:
    expression = text.removeprefix(EXPRESSION_PREFIX)
    if not expression:
        raise ValueError(f"{text!r} has no expression: write {RULE_FORM}")
    try:
        check_expression(expression)
    except ExpressionError as error:
        raise ValueError(f"{expression!r} is not a regular expression: {error}: write {RULE_FORM}") from error
    return ProtectionRule(text, RuleKind.REGEX, expression)


class ProtectionPolicy(Record):
    """Configured protection of images, independent of their age.

    Attributes:
        rules: protection rules in order; the first matching rule is reported in the reason.
        keep_last_n_tags_per_repository: number of newest images to keep per repository; 0 disables the rule.
        irreplaceable: treatment of images that cannot be pulled again.
        unreachable_registries: registries without access; see ``irreplaceable_images``.
    """

    rules: tuple[ProtectionRule, ...] = ()
    keep_last_n_tags_per_repository: int = 0
    irreplaceable: Irreplaceable = Irreplaceable.LAST
    unreachable_registries: tuple[str, ...] = ()

    def reasons(self, images: Sequence[Image], usage: Mapping[str, ImageUsage]) -> dict[str, Reason]:
        """Return the reason for every protected image, by image id; rules precede the newest images of a repository."""
        found = self._newest(images, usage) if self.keep_last_n_tags_per_repository > 0 else {}
        if self.rules:
            first = Matcher.of(self.rules).first
            for image in images:
                matched = first(image)
                if matched is not None:
                    rule, reference = self.rules[matched[0]], matched[1]
                    found[image.id] = Reason(ReasonCode.PROTECTED, {"rule": rule.text, "matched": reference})
        return found

    def _newest(self, images: Sequence[Image], usage: Mapping[str, ImageUsage]) -> dict[str, Reason]:
        """Return the reason to keep the newest images of each repository, by image id.

        An image counts for the repositories of all its tags and digests. Images are compared by first detection, then
        by pull, then by last use, then by id.
        """
        keep = self.keep_last_n_tags_per_repository
        members: defaultdict[str, list[Image]] = defaultdict(list)
        for image in images:
            named: list[str] = []
            for reference in image.references:
                repository = repository_of(reference)
                if repository not in named:
                    named.append(repository)
                    members[repository].append(image)

        def age(image: Image) -> tuple[datetime, datetime, datetime, str]:
            known = usage.get(image.id)
            if known is None:
                return _LATEST, _NEVER, _NEVER, image.id
            return known.first_detected, known.pulled_at or _NEVER, known.last_used or _NEVER, image.id

        found: dict[str, Reason] = {}
        for repository in sorted(members):
            newest = members[repository]
            if len(newest) > keep:
                newest = nlargest(keep, newest, key=age)
            reason = Reason(ReasonCode.NEWEST_TAGS, {"keep": keep, "repository": repository})
            for image in newest:
                found.setdefault(image.id, reason)
        return found


class Matcher:
    """Matcher compiled from a sequence of protection rules."""

    def __init__(self, rules: tuple[ProtectionRule, ...]) -> None:
        """Compile the rules."""
        self._expressions = ExpressionSet([_expression(rule) for rule in rules])
        self._digests: dict[str, int] = {}
        for place, rule in enumerate(rules):
            if rule.kind is RuleKind.DIGEST:
                for form in _both_forms(rule.value):
                    self._digests.setdefault(form, place)

    @staticmethod
    @lru_cache(maxsize=8)
    def of(rules: tuple[ProtectionRule, ...]) -> Matcher:
        """Return the cached matcher for ``rules``."""
        return Matcher(rules)

    def first(self, image: Image) -> tuple[int, str] | None:
        """Return the position of the first rule that matches ``image``, and the matched reference or id."""
        found = [(place, each) for each in image.references for place in self._expressions.matches(each)]
        if self._digests:
            forms = ((image.id, image.id), *((each, digest_of(each)) for each in image.repo_digests))
            found += [(self._digests[digest], each) for each, digest in forms if digest in self._digests]
        return min(found, key=itemgetter(0), default=None)


def _expression(rule: ProtectionRule) -> str:
    """Return a rule as expression; a glob has an optional Docker Hub prefix and an optional tag and digest."""
    match rule.kind:
        case RuleKind.GLOB:
            glob = expression_of_glob(rule.value)
            return rf"\A(?:docker\.io/(?:library/)?)?{glob}(?::[^/@:]*)?(?:@[^/]*)?\z"
        case RuleKind.REGEX:
            return rule.value
        case RuleKind.DIGEST:
            return NO_MATCH


def _both_forms(digest: str) -> tuple[str, str]:
    """Return a digest with and without ``sha256:``, since runtimes list image ids in both forms."""
    return digest, bare_id(digest)
