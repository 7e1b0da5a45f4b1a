"""``nodeagent manifest``: objects for a cluster, printed for kubectl."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import yaml

from nodeagent.errors import UsageError
from nodeagent.plan.kubernetes.rules import RULES, role_documents
from nodeagent.text import escape

if TYPE_CHECKING:
    from collections.abc import Sequence


def print_rbac(nodes: Sequence[str]) -> None:
    """Print service account, roles and bindings, with a comment on the purpose of each rule.

    Raises:
        UsageError: a node name is empty or not printable.
    """
    for each in nodes:
        if not each or escape(each) != each or " " in each:
            raise UsageError(f"--node {escape(each)!r}: not a name of a node")
    parts = ["\n".join(_lines(document)) for document in role_documents(nodes)]
    sys.stdout.write("---\n".join(parts))


def _lines(document: dict[str, Any]) -> list[str]:
    namespace = document["metadata"].get("namespace", "")
    comments = []
    if "rules" in document:
        comments = [
            f"# {', '.join(rule.verbs)} {rule.resource}: {rule.purpose}"
            for rule in RULES
            if rule.namespace == namespace
        ]
    return [*comments, yaml.safe_dump(document, sort_keys=False)]
