"""Aliases of commands, and the examples of every command for its help and its manual page."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import typer
from typer.core import TyperGroup

from nodeagent.cli.pager import page
from nodeagent.errors import UsageError

ALIASES: Final[Mapping[str, tuple[str, ...]]] = {
    "df": ("du",),
    "prune": ("gc",),
    "ps": ("containers",),
    "undo": ("gc", "undo"),
}
"""Command words by alias."""

_READING: Final = frozenset(
    {
        *("status", "images", "containers", "pods", "explain", "history", "du", "top", "events", "logs", "report"),
        *("pressure", "trend", "node", "node describe", "doctor", "version", "completion", "help", "plan", "plan diff"),
        *("config", "config check", "config show", "config import", "config default", "config reference"),
        *("manifest", "manifest rbac", "manifest daemonset", "manifest static-pod", "hold list", "shutdown status"),
    }
)
"""Commands without an effect on the node or the agent unless an option names a file to write.

A group is included if all of its commands are."""


def expand_alias(words: Sequence[str]) -> list[str]:
    """Return the words of a command line with an alias in the first place replaced by the words of its command."""
    return [*ALIASES.get(words[0], words[:1]), *words[1:]] if words else []


def alias_text() -> str:
    """Return the aliases with their commands, such as ``ps (containers)``."""
    return ", ".join(f"{alias} ({' '.join(words)})" for alias, words in ALIASES.items())


def reads_only(words: Sequence[str]) -> bool:
    """Return whether a command changes nothing, so that an error message may suggest it for a mistyped command."""
    return " ".join(expand_alias(words)) in _READING


def command_help(program: str, tree: Any, words: Sequence[str]) -> str | None:  # noqa: ANN401 - typer has no public type for commands
    """Return the help text of a command; ``None`` for an unknown command.

    Args:
        program: name of the program in the usage line.
        tree: root of the command tree of the parser.
        words: names of the command and its subcommand, such as ``gc`` and ``images``; empty for the program itself.
    """
    command, words = tree, expand_alias(words)
    context = typer.Context(command, info_name=program, **command.context_settings)
    for name in words:
        command = command.get_command(context, name) if isinstance(command, TyperGroup) else None
        if command is None:
            return None
        context = typer.Context(command, info_name=name, parent=context, **command.context_settings)
    return str(command.get_help(context))


_DOCUMENTS: Final = Path(__file__).parents[1] / "docs"


def topics() -> dict[str, Path]:
    """Return the installed documents by topic, in alphabetical order."""
    return {each.stem: each for each in sorted(_DOCUMENTS.glob("*.md"))}


READERS: Final[Mapping[str, tuple[str, ...]]] = {
    "operators of a node": (
        *("installation", "free-space-now", "troubleshooting", "reason-codes", "commands", "configuration"),
        *("operations", "upgrade"),
    ),
    "operators, rules in detail": ("image-gc", "containers-and-logs", "eviction", "shutdown"),
    "administrators of a cluster": (
        *("beside-a-kubelet", "kubernetes", "differences-from-the-kubelet", "roll-out", "metrics", "threat-model"),
    ),
    "edge devices without Kubernetes": ("edge",),
    "developers": ("design", "tests", "performance", "control-api"),
}
"""Topics by reader, in reading order, as in the README; each topic once."""


def show_help(tree: object, words: Sequence[str]) -> None:
    """Print the list of topics, the document of a topic, or the help of a command; on a terminal through the pager.

    Args:
        tree: the whole command tree.
        words: a topic, or the names of a command and its subcommand; empty for the list of topics.

    Raises:
        UsageError: the words are neither a topic nor a command.
    """
    documents = topics()
    if not words:
        page(_list(documents))
    elif len(words) == 1 and words[0] in documents:
        page(_shown(documents[words[0]]))
    elif text := command_help("nodeagent", tree, words):
        page(f"{text}\n")
    else:
        name = " ".join(words)
        near = difflib.get_close_matches(name, documents, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise UsageError(f"no topic or command {name!r}{hint}; 'nodeagent help' lists the topics")


def _list(documents: Mapping[str, Path]) -> str:
    """Return the topics with the titles of their documents, by reader."""
    lines = [
        "Topics of 'nodeagent help TOPIC' and, where manual pages are installed, of",
        "'man nodeagent-TOPIC':",
    ]
    width = max(map(len, documents), default=0)
    for reader, names in READERS.items():
        lines += ["", f"For {reader}:"]
        for name in names:
            title = documents[name].read_text(encoding="utf-8").partition("\n")[0].lstrip("# ")
            lines.append(f"  {name:<{width}}  {title}")
    return "\n".join([*lines, "", "'nodeagent --help' lists the commands.", ""])


def _shown(document: Path) -> str:
    text = document.read_text(encoding="utf-8")
    if not sys.stdout.isatty():
        return text
    from nodeagent.cli.terminal import styled_markdown  # noqa: PLC0415 - needed only on a terminal

    return styled_markdown(text)


EXAMPLES: Final[Mapping[str, tuple[tuple[str, str], ...]]] = {
    "status": (
        ("Show the node, the loops and the last passes", "nodeagent status"),
        ("Show them live, until q or Ctrl-C", "nodeagent status -w"),
        ("Wait until the agent is running and ready", "until nodeagent status >/dev/null; do sleep 1; done"),
    ),
    "images": (
        ("List all images with verdict and reason", "nodeagent images"),
        ("List the removable images, largest first", "nodeagent images --filter verdict=remove --sort-by -size"),
        (
            "Print the names and sizes of removable images",
            "nodeagent images --filter verdict=remove -o custom-columns=NAME:.repo_tags[0],SIZE:.size_bytes",
        ),
    ),
    "containers": (
        ("List all containers with verdict and reason", "nodeagent containers"),
        (
            "List the dead containers of a namespace",
            "nodeagent containers -n shop --filter state=exited",
        ),
        (
            "Print the ids of the containers with exit code 137",
            "nodeagent containers -o jsonpath='{.items[?(@.exit_code==137)].id}'",
        ),
    ),
    "pods": (
        ("List the pods of the runtime", "nodeagent pods"),
        ("List the pods of a namespace", "nodeagent pods -n shop"),
        ("Print names only, one per line", "nodeagent pods -o name"),
    ),
    "node describe": (
        ("Show conditions, capacity and versions of this node", "nodeagent node describe"),
        ("Print the Node object that a cluster would receive", "nodeagent node describe -o yaml"),
    ),
    "manifest rbac": (
        (
            "Create the RBAC objects of the agent in a cluster",
            "nodeagent manifest rbac --watch-pods | kubectl apply -f -",
        ),
        ("Limit the rules to one node", "nodeagent manifest rbac --publish-conditions --node edge-7"),
    ),
    "manifest daemonset": (
        (
            "Run the agent on all nodes, in dry run",
            "nodeagent manifest daemonset --image registry.example.com/nodeagent:0.3 | kubectl apply -f -",
        ),
        (
            "Print a DaemonSet with removals, metrics and proofs of deletions at the API server",
            "nodeagent manifest daemonset --image registry.example.com/nodeagent:0.3 --no-dry-run --pod-monitor --api",
        ),
        (
            "Write a kustomization, for overlays with the configuration of each cluster",
            "nodeagent manifest daemonset --image registry.example.com/nodeagent:0.3 --kustomization base",
        ),
    ),
    "manifest static-pod": (
        (
            "Run the agent on this node only",
            "nodeagent manifest static-pod --image IMAGE > /etc/kubernetes/manifests/nodeagent.yaml",
        ),
        (
            "Print a pod for a node of k3s",
            "nodeagent manifest static-pod --image IMAGE --socket /run/k3s/containerd/containerd.sock",
        ),
    ),
    "explain": (
        ("Explain a reason code of a list or plan", "nodeagent explain --reason gain-too-small"),
        ("Explain why an image is kept or removed", "nodeagent explain docker.io/library/nginx:1.25"),
        ("Explain the containers, sandboxes and logs of a pod", "nodeagent explain shop/redis-0"),
    ),
    "history": (
        ("List the passes since yesterday 00:00", "nodeagent history --since yesterday"),
        (
            "Show which pass removed an image, and the reason",
            "nodeagent history --image registry.example.com/shop --details",
        ),
        ("Show one pass with its removals", "nodeagent history 20261122T012412Z-8e871c"),
    ),
    "du": (
        ("Show the usage of the image filesystem by category", "nodeagent du"),
        ("List more items of each category", "nodeagent du --details"),
        ("Find the items with the most files", "nodeagent du --inodes --details"),
    ),
    "top": (
        ("Watch the pods in eviction order", "nodeagent top"),
        ("Print the readings once, as JSON", "nodeagent top --once -o json"),
    ),
    "events": (
        ("Follow the events of the daemon", "nodeagent events"),
        ("Follow the removals as JSON lines", "nodeagent events -o json | grep '\"removal\"'"),
    ),
    "logs": (
        ("Show the last lines of the agent's journal", "nodeagent logs"),
        ("Follow the journal", "nodeagent logs -f"),
        ("Show the journal of the last two hours", "nodeagent logs --since 2h"),
    ),
    "report": (
        ("Print the state of this node as one line of JSON", "nodeagent report"),
        ("Sum up the reports of a fleet", "cat reports/*.jsonl | nodeagent report --merge"),
        ("Write a page about this node, such as for a ticket", "nodeagent report --html node.html"),
    ),
    "trend": (
        ("Show when the thresholds of the node will be met", "nodeagent trend"),
        ("Draw the last week of a filesystem", "nodeagent trend imagefs --since 7d"),
    ),
    "pressure": (
        ("Show signals against eviction thresholds", "nodeagent pressure"),
        ("Watch the distance to thresholds and its trend", "nodeagent pressure --watch"),
    ),
    "gc": (
        ("Free 10 GiB now, after a confirmation", "nodeagent gc --free 10Gi"),
        ("Preview the removals until imagefs is 70% full", "nodeagent gc --to 70% --dry-run"),
        ("Remove once although dry_run = true", "nodeagent gc --no-dry-run"),
    ),
    "gc images": (
        ("Preview the next pass of image GC", "nodeagent gc images --dry-run"),
        ("Remove unused images until imagefs is 60% full", "nodeagent gc images --high 61 --low 60"),
        ("Remove the unused images of a repository", "nodeagent gc images --only 'registry.example/team/app:*'"),
    ),
    "rmi": (
        ("Remove an image, after a confirmation", "nodeagent rmi nginx:1.25"),
        ("Print the reason that keeps an image", "nodeagent rmi --dry-run registry.example/team/app:v1"),
    ),
    "gc containers": (
        ("Preview the removal of dead containers", "nodeagent gc containers --dry-run"),
        ("Keep no dead container of a running pod", "nodeagent gc containers --max-per-pod-container 0"),
    ),
    "gc all": (
        ("Preview containers, sandboxes, logs and images", "nodeagent gc all --dry-run"),
        ("Remove without confirmation, as in a script", "nodeagent gc all --yes -o json"),
    ),
    "gc leaks": (
        ("List content that nothing uses", "nodeagent gc leaks"),
        ("Delete the leaks older than a week", "nodeagent gc leaks --minimum-age 7d --yes"),
        ("Delete a lease without expiry as well", "nodeagent gc leaks --include pull-1 --yes"),
    ),
    "gc undo": (
        ("List the passes that can be undone", "nodeagent gc undo --list"),
        ("Restore the images removed by the newest pass", "nodeagent gc undo"),
    ),
    "plan": (
        ("Save a plan for the next two hours", "nodeagent plan --out plan.json --expires 2h"),
        ("Save a plan for images only, and review the removals", "nodeagent plan --scope images | jq .decisions"),
    ),
    "plan diff": (
        ("Compare two saved plans", "nodeagent plan diff monday.json tuesday.json"),
        ("Fail if the decisions differ", "nodeagent plan diff a.json b.json >/dev/null || echo changed"),
    ),
    "apply": (
        ("Preview a saved plan on the current node", "nodeagent apply plan.json --dry-run"),
        ("Apply a saved plan without confirmation", "nodeagent apply plan.json --yes"),
    ),
    "hold add": (
        ("Keep an image for two hours", "nodeagent hold add nginx:1.25 --for 2h --why debugging"),
        ("Keep every image during a maintenance", "nodeagent hold add --all --for 30m"),
        ("Keep the images of a repository", "nodeagent hold add 'registry.example.com/shop/*' --for 1d"),
    ),
    "hold list": (
        ("List the holds in force", "nodeagent hold list"),
        ("List the holds without the daemon", "nodeagent hold list --direct"),
    ),
    "hold remove": (
        ("Remove a hold before its end", "nodeagent hold remove 3"),
        ("Remove all holds", "nodeagent hold list -q | xargs -n1 nodeagent hold remove"),
    ),
    "evict": (
        ("Preview the eviction that is due now", "nodeagent evict --dry-run"),
        ("Preview an eviction under memory pressure", "nodeagent evict --simulate memory.available=50Mi"),
        ("Preview an eviction on a full disk", "nodeagent evict --simulate nodefs.available=5%"),
    ),
    "shutdown": (
        ("Show the phases of a graceful shutdown", "nodeagent shutdown --dry-run"),
        ("Print the phases as JSON", "nodeagent shutdown --dry-run -o json"),
    ),
    "shutdown status": (
        ("Show inhibitor lock, limit and past stops", "nodeagent shutdown status"),
        ("Check in a script that the shutdown is delayed", "nodeagent shutdown status >/dev/null || echo not delayed"),
    ),
    "doctor": (
        ("Check the node", "sudo nodeagent doctor"),
        ("Fail on warnings too, as in a provisioning script", "sudo nodeagent doctor --strict"),
        ("List who acts first on which trigger beside a kubelet", "sudo nodeagent doctor -o wide"),
    ),
    "run": (
        ("Run the daemon, as the unit does", "nodeagent run"),
        ("Log removals only", "nodeagent run --dry-run"),
        ("Run one pass of every loop and exit", "nodeagent run --once"),
    ),
    "pause": (
        ("Pause removal and eviction for an hour", "nodeagent pause --for 1h --why 'disk migration'"),
        ("Pause for the default of 30 minutes", "nodeagent pause"),
    ),
    "resume": (
        ("End the pause", "nodeagent resume"),
        ("End the pause and run image GC", "nodeagent resume && nodeagent trigger images"),
    ),
    "trigger": (
        ("Run image GC now", "nodeagent trigger images"),
        ("Run container GC and wait for its result", "nodeagent trigger containers --wait"),
    ),
    "reload": (
        ("Preview changes and effect of a reload", "nodeagent reload --dry-run"),
        ("Reload the configuration", "nodeagent reload"),
    ),
    "install": (
        ("Install the agent with its unit, not started", "sudo nodeagent install"),
        ("Install or upgrade the agent, and start it", "sudo nodeagent install --enable"),
        ("Install into the root filesystem of an image", "nodeagent install --root /mnt/image"),
    ),
    "uninstall": (
        ("Remove the agent, keep configuration and state", "sudo nodeagent uninstall"),
        ("Remove configuration and state too", "sudo nodeagent uninstall --purge"),
    ),
    "version": (
        ("Show the versions of agent and runtime", "nodeagent version"),
        ("Print the version of the runtime", "nodeagent version -o json | jq -r .runtime.version"),
    ),
    "help": (
        ("List the topics", "nodeagent help"),
        ("Read about eviction", "nodeagent help eviction"),
        ("Show the help of a command", "nodeagent help gc images"),
    ),
    "completion": (
        ("Enable completion in this bash", "source <(nodeagent completion bash)"),
        ("Install the completion of fish", "nodeagent completion fish > ~/.config/fish/completions/nodeagent.fish"),
    ),
    "config check": (
        ("Check the configuration in force", "nodeagent config check"),
        ("Check a file before it is installed", "nodeagent config check new.toml"),
    ),
    "config show": (
        ("Show the configuration in force", "nodeagent config show"),
        ("Show the source of each value", "nodeagent config show --effective"),
        ("Show one setting", "nodeagent config show image_gc.high_threshold_percent"),
    ),
    "config import": (
        (
            "Convert the kubelet's configuration",
            "nodeagent config import /var/lib/kubelet/config.yaml --out /etc/nodeagent/config.toml",
        ),
        ("Show the result only", "nodeagent config import /var/lib/kubelet/config.yaml"),
    ),
    "config default": (
        ("Print a file with all defaults", "nodeagent config default"),
        ("Write a first file that removes nothing", "nodeagent config default --dry-run > config.toml"),
    ),
    "config reference": (
        ("Print all settings", "nodeagent config reference"),
        ("Print one setting", "nodeagent config reference image_gc.minimum_age"),
    ),
}
"""Examples by command: the title and the command line of each example."""


def example_text(command: str) -> str:
    """Return the examples of a command as text for its help, marked to be printed unwrapped; empty for a group."""
    blocks = [f"  # {title}\n  {line}" for title, line in EXAMPLES.get(command, ())]
    return "\b\nExamples:\n" + "\n".join(blocks) if blocks else ""
