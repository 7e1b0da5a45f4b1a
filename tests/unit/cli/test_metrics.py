"""The daemon as a process: metrics and health endpoints."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from prometheus_client import parser

from tests.support.reclaim import poll

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[3]
PYTHON = (sys.executable, "-m")


def get(socket_path: Path, path: str) -> tuple[int, str]:
    """Return status code and body of the response to a GET request; status 0 if the connection fails."""
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(30)
        try:
            client.connect(str(socket_path))
        except OSError:
            return 0, ""
        client.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        answer = b"".join(iter(lambda: client.recv(65536), b""))
    head, _, body = answer.partition(b"\r\n\r\n")
    return int(head.split()[1]), body.decode()


def samples(socket_path: Path) -> dict[str, float]:
    return {
        " ".join((each.name, *filter(None, each.labels.values()))): each.value
        for family in parser.text_string_to_metric_families(get(socket_path, "/metrics")[1])
        for each in family.samples
    }


@contextmanager
def running(*command: str, errors: Path) -> Iterator[subprocess.Popen[bytes]]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with (
        errors.open("wb") as log,
        subprocess.Popen(
            [*PYTHON, *command], stdout=subprocess.DEVNULL, stderr=log, cwd=ROOT, env=environment
        ) as process,
    ):
        try:
            yield process
        finally:
            process.terminate()


def write(path: Path, listen: str) -> None:
    directory = path.parent
    path.write_text(
        f'role = "standalone"\ndry_run = true\n[runtime]\nendpoint = "unix://{directory}/s"\n'
        f'[state]\ndirectory = "{directory}/state"\n[control]\nsocket = ""\n[shutdown]\nenabled = "off"\n'
        f'[container_gc]\npod_log_root = "{directory}/pods"\ncontainer_log_root = "{directory}/containers"\n'
        f'[metrics]\nlisten = "{listen}"\n'
    )


def test_metrics_follow_runtime_and_reloads(tmp_path: Path) -> None:
    config, first, second = tmp_path / "config.toml", tmp_path / "first.sock", tmp_path / "second.sock"
    write(config, f"unix://{first}")
    log = tmp_path / "log"
    daemon = running("nodeagent", "run", "--config", str(config), errors=log)
    sizes = ("--images", "10", "--layers", "2", "--containers", "6")
    sim = running("tests.sim", "--socket", str(tmp_path / "s"), "--root", str(tmp_path), *sizes, errors=tmp_path / "e")
    with daemon as process:
        poll("the daemon is live", lambda: get(first, "/healthz")[0] == 200, timeout_s=30)
        poll("the missing runtime is reported", lambda: samples(first)["nodeagent_runtime_up"] == 0, timeout_s=30)
        assert get(first, "/readyz")[0] == 503
        with sim:
            poll("the daemon is ready", lambda: get(first, "/readyz") == (200, "ok\n"), timeout_s=30)
            poll(
                "an image pass has finished",
                lambda: "nodeagent_passes_total images nothing-to-do" in samples(first),
                timeout_s=30,
            )
            values = samples(first)
            assert len(values) <= 160
            assert values["kubelet_runtime_operations_total list_images"] >= 1
            assert values["nodeagent_signal_capacity_bytes imagefs.available"] > 0
            assert values["nodeagent_dry_run"] == values["nodeagent_runtime_up"] == 1
            assert values["process_resident_memory_bytes"] > 0
            write(config, f"unix://{second}")
            process.send_signal(signal.SIGHUP)
            poll("the metrics listener uses the new socket", lambda: get(second, "/healthz")[0] == 200, timeout_s=30)
            assert get(first, "/healthz") == (0, "")
            assert samples(second)["nodeagent_config_reloads_total done"] == 1
            config.write_text("odd = 1\n")
            process.send_signal(signal.SIGHUP)
            poll(
                "the invalid configuration is reported",
                lambda: samples(second)["nodeagent_config_ok"] == 0,
                timeout_s=30,
            )
    assert process.returncode == 0, log.read_text()


@pytest.mark.parametrize("listen", ["localhost:20310", "127.0.0.1"])
def test_invalid_metrics_address_is_refused(tmp_path: Path, listen: str) -> None:
    config = tmp_path / "config.toml"
    write(config, listen)
    ended = subprocess.run(
        [*PYTHON, "nodeagent", "config", "check", "--config", str(config)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        cwd=ROOT,
    )
    assert ended.returncode == 2
    assert f'{config}: metrics.listen = "{listen}": ' in ended.stderr
