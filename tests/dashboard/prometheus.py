"""Private Prometheus on a loopback port, with the shipped rules."""

from __future__ import annotations

import json
import math
import socket
import subprocess
import urllib.parse
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

import yaml

from tests.support.reclaim import poll

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

RULES: Final = Path(__file__).parents[2] / "systemd/nodeagent.rules.yml"
_START_S: Final = 60.0


def free_port() -> int:
    """Return a loopback port that no process listens on."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        port: int = bound.getsockname()[1]
        return port


class Prometheus:
    """Prometheus process that scrapes the nodes while its context is active."""

    def __init__(self, directory: Path, ports: Mapping[str, int], *, scrape_s: int) -> None:
        directory.mkdir()
        self._directory = directory
        self._url = f"http://127.0.0.1:{free_port()}"
        self._process: subprocess.Popen[bytes] | None = None
        targets = [
            {"targets": [f"127.0.0.1:{port}"], "labels": {"instance": name}} for name, port in sorted(ports.items())
        ]
        interval = f"{scrape_s}s"
        configuration = {
            "global": {"scrape_interval": interval, "scrape_timeout": interval, "evaluation_interval": interval},
            "rule_files": [str(RULES)],
            "scrape_configs": [{"job_name": "nodeagent", "static_configs": targets}],
        }
        (directory / "prometheus.yml").write_text(yaml.safe_dump(configuration))

    def __enter__(self) -> Self:
        command = [
            "prometheus",
            f"--config.file={self._directory}/prometheus.yml",
            f"--storage.tsdb.path={self._directory}/data",
            f"--web.listen-address={self._url.removeprefix('http://')}",
        ]
        with (self._directory / "log").open("wb") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log)
        poll("Prometheus is ready", self._is_ready, timeout_s=_START_S, interval_s=0.2)
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait()

    def query_range(self, query: str, start_s: float, end_s: float, *, step_s: int) -> list[list[float]]:
        """Return the values of each series without NaN; series with only NaN are omitted."""
        answer = self._get("query_range", query=query, start=start_s, end=end_s, step=step_s)
        series = [[float(value) for _, value in each["values"]] for each in answer["result"]]
        numbers = [[value for value in each if not math.isnan(value)] for each in series]
        return [each for each in numbers if each]

    def count_series(self) -> dict[str, int]:
        """Return the number of series in the last scrape by node, without the series that Prometheus adds."""
        answer = self._get("query", query="max_over_time(scrape_samples_post_metric_relabeling[5m])")
        return {each["metric"]["instance"]: int(each["value"][1]) for each in answer["result"]}

    def fired(self, start_s: float) -> set[str]:
        """Return the names of the alerts that fired since ``start_s``."""
        answer = self._get("query", query=f'ALERTS{{alertstate="firing"}}[{self._age_s(start_s)}s]')
        return {each["metric"]["alertname"] for each in answer["result"]}

    def problems(self) -> Iterator[str]:
        """Yield the rules that cannot be evaluated, and the nodes with a failed scrape."""
        for group in self._get("rules")["groups"]:
            for rule in group["rules"]:
                if rule["health"] != "ok":
                    yield f"rule {rule['name']}: {rule['health']}: {rule.get('lastError', '')}"
        for each in self._get("query", query="min_over_time(up[1h]) == 0")["result"]:
            yield f"a scrape failed: {each['metric']['instance']}"

    def _age_s(self, start_s: float) -> int:
        answer = self._get("query", query="time()")
        return max(1, round(float(answer["result"][1]) - start_s))

    def _is_ready(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, (self._directory / "log").read_text()
        return is_answered(f"{self._url}/-/ready")

    def _get(self, path: str, **parameters: str | float) -> dict[str, Any]:
        words = urllib.parse.urlencode(parameters)
        with urllib.request.urlopen(f"{self._url}/api/v1/{path}?{words}", timeout=60) as answer:
            data: dict[str, Any] = json.load(answer)["data"]
            return data


def is_answered(url: str) -> bool:
    """Return whether a server responds to a request with status 200."""
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False
