"""Shell completion: words from the command tree, values from the daemon, no output without a daemon."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from nodeagent.cli.completion import completions
from nodeagent.cli.completion_values import script

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[3]
ANSWERS: dict[str, dict[str, Any]] = {
    "/v1/images": {
        "images": [
            {"id": "sha256:1", "repo_tags": ["r.example:5000/a:1", "r.example:5000/a:2"], "repo_digests": []},
            {"id": "sha256:2", "repo_tags": [], "repo_digests": ["r.example/b@sha256:ff"]},
            {"id": "sha256:3", "repo_tags": ["$(touch x)", "a b", "-o", "\x1b[2J"], "repo_digests": []},
        ]
    },
    "/v1/pods": {"pods": [{"namespace": "shop", "name": "web-0"}]},
    "/v1/containers": {"containers": [{"id": "0123456789abcdef0123"}]},
    "/v1/holds": {"holds": [{"id": "7"}, {"id": "12"}]},
    "/v1/history": {"passes": [{"id": "20260110T120000Z-aaaaaa"}]},
}


LIST_FORMS = ("table", "wide", "json", "yaml", "name", "jsonpath=", "custom-columns=")


def words(*given: str) -> list[str]:
    return [each.partition("\t")[0] for each in completions([*given])]


@contextmanager
def daemon(directory: Path, *, silent: bool = False) -> Iterator[dict[str, str]]:
    """Serve canned responses of a daemon, or none if ``silent``; yield the environment of its clients."""
    path = directory / "control.sock"
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        listening.listen(16)

        def serve() -> None:
            while True:
                try:
                    client, _ = listening.accept()
                except OSError:
                    return
                with client:
                    if silent:
                        client.recv(1 << 16)
                        client.recv(1 << 16)  # returns when the client disconnects after its timeout
                        continue
                    target = client.recv(1 << 16).split(b" ")[1].partition(b"?")[0].decode()
                    body = json.dumps(ANSWERS[target]).encode()
                    client.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        try:
            yield {**os.environ, "NODEAGENT_CONTROL__SOCKET": str(path)}
        finally:
            listening.shutdown(socket.SHUT_RDWR)
            thread.join(30)


def complete(environment: dict[str, str], *given: str, option: str = "-B") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *option.split(), "-m", "nodeagent", "__complete", *given],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (("g",), ["gc"]),
        (("gc", "i"), ["images"]),
        (("gc", "images", "--hi"), ["--high"]),
        (("trigger", ""), ["containers", "images", "eviction"]),
        (("trigger", "images", ""), []),
        (("trigger", "--wait", "im"), ["images"]),
        (("images", "-o", "w"), ["wide"]),
        (("images", "--output=w"), ["--output=wide"]),
        (("images", "--filter", "verd"), ["verdict="]),
        (
            ("config", "show", "image_gc.high"),
            ["image_gc.high_threshold_percent", "image_gc.high_threshold_inodes_percent"],
        ),
        (("config", "reference", "dry"), ["dry_run"]),
        (("config", "check", "--config", "/e"), [":files"]),
        (("config", "check", "--config=/e"), []),
        (("apply", ""), [":files"]),
        (("plan", "d"), ["diff"]),
        (("completion", ""), ["bash", "zsh", "fish"]),
        (("images", "--output="), [f"--output={each}" for each in LIST_FORMS]),
        (("help", "thr"), ["threat-model"]),
        (("--version", "g"), ["gc"]),
        (("images", "--help", "--qu"), ["--quiet"]),
        (("--no-such-option", "g"), ["gc"]),
        (("shutdown", "at"), []),
    ],
)
def test_words_are_completed_from_the_command_tree(given: tuple[str, ...], expected: list[str]) -> None:
    assert words(*given) == expected


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (
            ("explain", ""),
            ["r.example:5000/a:1", "r.example:5000/a:2", "r.example/b@sha256:ff", "shop/web-0", "0123456789ab"],
        ),
        (("explain", "sh"), ["shop/web-0"]),
        (("hold", "add", "r.example:5000/a:2"), ["r.example:5000/a:2"]),
        (("gc", "images", "--only", "r.example:5000/a:2"), ["r.example:5000/a:2"]),
        (("hold", "remove", ""), ["7", "12"]),
        (("hold", "remove", "1"), ["12"]),
        (("history", "2026"), ["20260110T120000Z-aaaaaa"]),
        (("history", "--image=r.example/"), ["--image=r.example/b@sha256:ff"]),
    ],
)
def test_values_of_the_daemon_are_completed_unless_a_shell_would_interpret_them(
    tmp_path: Path, given: tuple[str, ...], expected: list[str]
) -> None:
    with daemon(tmp_path) as environment:
        ended = complete(environment, *given)
    assert (ended.returncode, ended.stdout.split(), ended.stderr) == (0, expected, "")


def test_socket_of_the_given_configuration_is_asked(tmp_path: Path) -> None:
    with daemon(tmp_path) as environment:
        path = environment.pop("NODEAGENT_CONTROL__SOCKET")
        (tmp_path / "c.toml").write_text(f'[control]\nsocket = "{path}"\n')
        assert complete(environment, "hold", "remove", "-c", str(tmp_path / "c.toml"), "").stdout.split() == ["7", "12"]


@pytest.mark.parametrize("fault", ["absent", "silent", "bad-variable", "no-socket"])
def test_daemon_that_does_not_answer_gives_no_values_and_no_error(tmp_path: Path, fault: str) -> None:
    with daemon(tmp_path, silent=True) as environment:
        if fault == "absent":
            environment["NODEAGENT_CONTROL__SOCKET"] = str(tmp_path / "none.sock")
        elif fault == "bad-variable":
            environment["NODEAGENT_CONTROL__SOCKET"] = "relative"
        elif fault == "no-socket":
            environment["NODEAGENT_CONTROL__SOCKET"] = str(tmp_path)
        ended = complete(environment, "hold", "remove", "")
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")


def test_completion_imports_no_clients_of_node_and_runtime(tmp_path: Path) -> None:
    with daemon(tmp_path) as environment:
        ended = complete(environment, "explain", "", option="-B -X importtime")
    assert ended.stdout
    imported = {line.rpartition("|")[2].strip().partition(".")[0] for line in ended.stderr.splitlines()}
    assert "nodeagent" in imported
    assert not imported & {"grpc", "rich", "structlog", "msgspec", "yaml", "asyncio", "sqlite3"}


def test_bash_inserts_the_rest_of_a_word_after_its_last_separator(tmp_path: Path) -> None:
    command = tmp_path / "nodeagent"
    command.write_text(f'#!/bin/sh\ncd {ROOT} && exec {sys.executable} -B -m nodeagent "$@"\n')
    command.chmod(0o755)
    commands = script("bash") + (
        'for line in "nodeagent explain r.example:5000/a" "nodeagent hold rem" "nodeagent images --output=w"; do\n'
        'COMP_LINE=$line COMP_POINT=${#line}; _nodeagent nodeagent; echo "${COMPREPLY[*]}"; done\n'
    )
    with daemon(tmp_path) as environment:
        environment["PATH"] = f"{tmp_path}:{environment['PATH']}"
        ended = subprocess.run(
            ["bash", "--norc", "-c", commands], env=environment, capture_output=True, text=True, timeout=60, check=False
        )
    assert (ended.stdout.splitlines(), ended.stderr) == (["5000/a:1 5000/a:2", "remove", "wide"], "")
