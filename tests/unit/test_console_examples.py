"""Console examples of README and documents: each command runs on a simulated node, or its arguments are checked.

A line of a ``console`` block starts with ``$`` (any user) or ``#`` (root); a line with ``>`` continues it. Commands of
the agent are executed, also inside ``kubectl exec``; node paths are replaced by paths of a simulated node. A command
that removes items is run with ``--yes --direct`` on a node of its own. An example with an unchecked program fails.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import tomllib
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Final

import pytest

from nodeagent.api.common import encode_line
from nodeagent.api.operations import OPERATIONS
from nodeagent.cluster.plan.workloads import Workload
from nodeagent.doctor.plan.kubelet import check_kubelet
from nodeagent.doctor.plan.triggers import AgentTasks, NodeSizes, compare_triggers
from nodeagent.gc.plan.policy import ImageGCPolicy
from nodeagent.model.node import KubeletConfig
from nodeagent.settings.loading import load
from nodeagent.telemetry.event_catalogue import EVENTS
from tests.sim.scenario import example_node
from tests.support.command import nodeagent
from tests.support.node_reports import fleet
from tests.unit.cli.served import served_in_thread

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from nodeagent.doctor.plan.node import Finding
    from tests.unit.control_node import Node

ROOT: Final = Path(__file__).parents[2]
DOCUMENTS: Final = (ROOT / "README.md", *sorted((ROOT / "nodeagent/docs").glob("*.md")))
_BLOCK: Final = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
_COMMENT: Final = re.compile(r"\s{2,}# .*$")
_OPERATORS: Final = frozenset({"|", "||", "&&", ";"})
_ASSIGNMENT: Final = re.compile(r"[A-Z_]+=.*")
_KEYWORDS: Final = frozenset({"do", "done"})
_EXPECTED: Final[Mapping[str, frozenset[int]]] = {
    "doctor": frozenset({0, 1, 3}),  # the test machine can have findings
    "status": frozenset({0, 1}),  # the daemon is not ready without a runtime network
    "gc": frozenset({0, 3}),  # the target may be unreachable
    "evict": frozenset({0, 3}),
    "shutdown": frozenset({0, 1}),  # fails without logind
}
_READ_ONLY: Final = frozenset({"--dry-run", "--list", "leaks"})
"""Words of commands ``gc`` and ``rmi`` that remove nothing."""
_NOT_RUN: Final = "reload"
"""Command that is run only with ``--dry-run``, since the test node has no reload task; other tests run it."""


def blocks(language: str) -> list[tuple[str, str]]:
    """Return document name and text of each code block in a language."""
    texts = [(each, each.read_text(encoding="utf-8")) for each in DOCUMENTS]
    return [(path.name, body) for path, text in texts for kind, body in _BLOCK.findall(text) if kind == language]


def lines(block: str) -> list[str]:
    """Return the commands of a console block, without output and comments."""
    found: list[str] = []
    for line in block.splitlines():
        if line.startswith(("$ ", "# ")):
            found.append(_COMMENT.sub("", line[2:]))
        elif line.startswith("> ") and found:
            found[-1] += f" {_COMMENT.sub('', line[2:]).strip()}"
    return found


def simple_commands(line: str) -> list[list[str]]:
    """Return each command of a shell line as words, without redirections, assignments, loops and substitutions."""
    text = re.sub(r"\bfor \w+ in \$\((.*?)\)", r"\1", line)
    lexer = shlex.shlex(text, posix=True, punctuation_chars=True)
    lexer.commenters = ""
    lexer.wordchars += "$[]{}%:=,@+"
    commands: list[list[str]] = [[]]
    skips = False
    for token in lexer:
        if token in _OPERATORS:
            commands.append([])
        elif token in {">", "<", ">>"}:
            skips = True
        elif skips or token in _KEYWORDS:
            skips = False
        elif not commands[-1] and _ASSIGNMENT.fullmatch(token):
            continue
        else:
            commands[-1].append(token)
    return [each for each in commands if each]


@contextmanager
def served_node(directory: Path) -> Iterator[Node]:
    """Serve a simulated node whose settings are environment variables meanwhile."""
    root = directory / "containerd"
    scenario = example_node(root_path=str(root))
    Path(scenario.node.imagefs_path).mkdir(parents=True)
    with pytest.MonkeyPatch.context() as variables, ExitStack() as stack:
        for name in [each for each in os.environ if each.startswith("NODEAGENT_")]:
            variables.delenv(name)  # of another node
        served = stack.enter_context(served_in_thread(directory, scenario.node))
        for section, value in tomllib.loads(served.config.read_text()).items():
            for key, each in value.items() if isinstance(value, dict) else [("", value)]:
                name = f"{section}__{key}" if key else section
                variables.setenv(f"NODEAGENT_{name.upper()}", str(each))
        yield served


@contextmanager
def new_node() -> Iterator[None]:
    with TemporaryDirectory(prefix="n-") as directory, served_node(Path(directory)):
        yield


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with served_node(tmp_path_factory.mktemp("n")) as served:
        yield served


@pytest.fixture
def machine(node: Node, tmp_path: Path) -> Path:
    """Return a directory with the files named in examples, while the node is served."""
    assert node.config.is_file()
    (tmp_path / "config.toml").write_text("dry_run = true\n")
    (tmp_path / "50-class.toml").write_text("[image_gc]\nhigh_threshold_percent = 75\n")
    kubelet = '{"kind": "KubeletConfiguration", "apiVersion": "kubelet.config.k8s.io/v1beta1"}'
    for name in ("kubelet.json", "config.yaml"):
        (tmp_path / name).write_text(kubelet)
    for name, nodes in (("node.jsonl", 1), ("fleet.jsonl", 500)):
        (tmp_path / name).write_text("".join(f"{encode_line(each)}\n" for each in fleet(nodes)))
    return tmp_path


def run_agent(arguments: list[str], machine: Path) -> str:
    """Run a command of the agent with files in ``machine``; check its exit code, and return its output."""
    if arguments[0] == _NOT_RUN and "--dry-run" not in arguments:
        return ""
    written = (machine / each for each in ("base", "node.html", "fleet.html"))
    places = {each.name: str(each) for each in (*machine.iterdir(), *written)}
    given = [places.get(Path(each).name, each) for each in arguments]
    if given[:2] == ["config", "import"] and given[2].startswith("--"):
        given.insert(2, places["kubelet.json"])  # the test machine has no kubelet configuration
    if given[0] == "du":
        given += ["--timeout", "0.1s"]  # not the whole filesystem of the test machine
    if arguments[0] in {"gc", "rmi"} and not _READ_ONLY.intersection(arguments):
        with new_node():
            ended = nodeagent(*given, "--yes", "--direct")
    else:
        ended = nodeagent(*given)
    assert ended.returncode in _EXPECTED.get(arguments[0], {0}), f"{arguments}: {ended.stdout}{ended.stderr}"
    return ended.stdout


def check_kubectl(arguments: list[str], machine: Path) -> None:
    if "exec" in arguments:
        assert arguments[:2] == ["-n", Workload(image="i", version="v").namespace]
        inner = arguments[arguments.index("--") + 1 :]
        assert inner[0] == "nodeagent"
        run_agent(inner[1:], machine)
    if "-l" in arguments:
        (name, value) = arguments[arguments.index("-l") + 1].split("=")
        assert Workload(image="i", version="v").labels == {name: value}


def check_ansible(arguments: list[str], machine: Path) -> None:
    inner = shlex.split(arguments[arguments.index("-a") + 1])
    assert inner[0] == "nodeagent"
    run_agent(inner[1:], machine)


def check_make(arguments: list[str], _: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert {each for each in arguments if "=" not in each} <= targets


def check_systemctl(arguments: list[str], _: Path) -> None:
    verbs = {"daemon-reload", "restart", "enable", "edit", "reload", "disable", "status"}
    names = [each for each in arguments if not each.startswith("-")]
    assert names[0] in verbs
    assert names[1:] in ([], ["nodeagent"], ["containerd"])


def check_install(arguments: list[str], _: Path) -> None:
    for each in (each for each in arguments if each.startswith("/")):
        if each.startswith("/usr/local/share/nodeagent/"):
            assert (ROOT / "systemd" / Path(each).name).is_file(), each
        elif "systemd" in each:
            assert each.startswith("/etc/systemd/system/nodeagent.service.d"), each
        else:
            assert each.startswith(("/etc/nodeagent/", "/var/lib/node_exporter/")), each


def check_journalctl(arguments: list[str], _: Path) -> None:
    for each in arguments:
        if each.startswith("NODEAGENT_EVENT="):
            assert each.partition("=")[2] in EVENTS


def check_curl(arguments: list[str], _: Path) -> None:
    path = arguments[-1].removeprefix("http://localhost")
    assert path in {each.path for each in OPERATIONS.values()}


def check_sed(arguments: list[str], machine: Path) -> None:
    if "-i" not in arguments:
        return
    target = machine / "default.toml"
    target.write_text(nodeagent("config", "default", "--dry-run").stdout)
    before = tomllib.loads(target.read_text())
    subprocess.run(["sed", *arguments[:-1], str(target)], check=True, timeout=10)
    assert (before["dry_run"], tomllib.loads(target.read_text())["dry_run"]) == (True, False)


def check_jq(arguments: list[str], machine: Path) -> None:
    if shutil.which("jq") is None:
        return
    (machine / "configz.json").write_text('{"kubeletconfig": {"imageGCHighThresholdPercent": 85}}')
    subprocess.run(
        ["jq", arguments[0], str(machine / "configz.json")], check=True, timeout=10, stdout=subprocess.DEVNULL
    )


def is_accepted(_: list[str], __: Path) -> None:
    """Accept any arguments, since the program uses no file, unit or command of the agent."""


CHECKS: Final[Mapping[str, Callable[[list[str], Path], object]]] = {
    "nodeagent": run_agent,
    "kubectl": check_kubectl,
    "ansible": check_ansible,
    "make": check_make,
    "systemctl": check_systemctl,
    "install": check_install,
    "journalctl": check_journalctl,
    "curl": check_curl,
    "sed": check_sed,
    "jq": check_jq,
    **dict.fromkeys(("apt", "dnf", "docker", "gpg", "python3", "sha256sum", "tar"), is_accepted),
    # run by systemd/python/try
    **dict.fromkeys(("/opt/nodeagent/bin/pip", "/opt/nodeagent/bin/nodeagent", "uv"), is_accepted),
    "/opt/nodeagent-source/systemd/installation": is_accepted,
}


EXAMPLES: Final = [(name, line) for name, block in blocks("console") for line in lines(block)]


@pytest.mark.parametrize(("document", "line"), EXAMPLES, ids=[f"{name}-{line[:40]}" for name, line in EXAMPLES])
def test_console_example_is_valid(document: str, line: str, machine: Path) -> None:
    for program, *arguments in simple_commands(line):
        assert program in CHECKS, f"{document}: {program} has no check"
        CHECKS[program](arguments, machine)


def outputs(block: str) -> list[tuple[str, list[str]]]:
    """Return each command of a console block that is followed by output, with its lines except ``...``."""
    found: list[tuple[str, list[str]]] = []
    for line in block.splitlines():
        if line.startswith(("$ ", "# ", "> ")):
            found.append((line[2:], []))
        elif line.strip() not in {"", "..."}:
            found[-1][1].append(line)
    return [each for each in found if each[1]]


@pytest.fixture
def of_new_node(machine: Path) -> Iterator[None]:  # noqa: ARG001 - the settings of its node are replaced
    with new_node():
        yield


SHOWN: Final = [(name, block) for name, block in blocks("console") if outputs(block)]


@pytest.mark.usefixtures("of_new_node")
@pytest.mark.parametrize(("document", "block"), SHOWN, ids=[name for name, _ in SHOWN])
def test_output_in_a_document_is_that_of_this_version(document: str, block: str, machine: Path) -> None:
    for line in lines(block):
        program, *arguments = simple_commands(line)[0]
        output = run_agent(arguments, machine) if program == "nodeagent" else ""
        for expected in dict(outputs(block)).get(line, ()):
            assert masked(expected) in map(masked, output.splitlines()), f"{document}: {line}"


def masked(line: str) -> str:
    return re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC|\(hold \d+\)", "_", line)


def test_every_console_block_has_commands() -> None:
    assert [name for name, block in blocks("console") if not lines(block)] == []


def test_commands_are_separated_and_comments_removed() -> None:
    assert lines("$ a b    # comment\noutput\n# c\n> d\n") == ["a b", "c d"]
    assert simple_commands("A_B=/c d e=f") == [["d", "e=f"]]
    assert simple_commands('for p in $(k get -l a=b); do k exec "$p" -- n report; done > f') == [
        ["k", "get", "-l", "a=b"],
        ["k", "exec", "$p", "--", "n", "report"],
    ]


@pytest.mark.parametrize("block", [block for _, block in blocks("toml")])
def test_configuration_of_a_document_is_valid(block: str, tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text(block)
    load(path)


def overlap(found: KubeletConfig, high: int) -> Finding:
    rows = compare_triggers(found, AgentTasks(images=ImageGCPolicy(high_threshold_percent=high)), NodeSizes())
    (finding,) = check_kubelet(found, rows, has_kubelet=True)
    return finding


def test_recommended_thresholds_are_those_of_the_doctor() -> None:
    text = (ROOT / "nodeagent/docs/beside-a-kubelet.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\d+) \| (\d+%) \| (\d+) \| (\d+) \|$", text, re.MULTILINE)
    assert len(rows) >= 5
    for high, imagefs, agent_high, agent_low in rows:
        fields = {"imageGCHighThresholdPercent": int(high), "evictionHard": {"imagefs.available": imagefs}}
        found = KubeletConfig(fields)
        finding = overlap(found, 99)
        assert f"= {agent_high} and low_threshold_percent = {agent_low}," in finding.fix
        assert overlap(found, int(agent_high)).check == "kubelet-overlap"
