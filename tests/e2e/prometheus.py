"""Debian's Prometheus as a process, over targets on this machine, and its HTTP API."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional, Sequence

import pytest

from tests.e2e.launcher import wait_for

SCRAPE_S = 1


def prometheus_binary() -> str:
    """Where it lies; a test without it is skipped, and says so."""
    found = shutil.which("prometheus")
    if found is None:
        pytest.skip("NOT TESTED: no prometheus; `apt-get install prometheus` brings one")
    return found


class Prometheus:
    """Scrapes every second.

    Args:
        folder: for its configuration, data and log.
        targets: HOST:PORT by the name of the job.
    """

    def __init__(self, folder: Path, targets: Mapping[str, Sequence[str]]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        jobs = [{"job_name": job, "static_configs": [{"targets": list(at)}]} for job, at in targets.items()]
        config = {"global": {"scrape_interval": f"{SCRAPE_S}s"}, "scrape_configs": jobs}
        file = folder / "prometheus.yml"
        file.write_text(json.dumps(config))  # JSON is YAML
        with socket.socket() as held:
            held.bind(("127.0.0.1", 0))
            self.address = f"127.0.0.1:{held.getsockname()[1]}"
        self._log = (folder / "prometheus.log").open("wb")
        self._process = subprocess.Popen(
            [
                prometheus_binary(),
                f"--config.file={file}",
                f"--storage.tsdb.path={folder / 'data'}",
                f"--web.listen-address={self.address}",
            ],
            stdout=self._log,
            stderr=subprocess.STDOUT,
        )
        wait_for(self._is_ready, "Prometheus")

    def now(self, expr: str) -> List[Dict[str, Any]]:
        """Series of an instant query: `metric` (labels) and `value` (time, text)."""
        return self._series("query", {"query": expr})

    def over(self, expr: str, seconds: float, step_s: float) -> List[Dict[str, Any]]:
        """Series of a range query up to now: `metric` (labels) and `values`, each (time, text)."""
        end = time.time()
        span = {"start": f"{end - seconds:.3f}", "end": f"{end:.3f}", "step": f"{step_s:g}"}
        return self._series("query_range", {"query": expr, **span})

    def labels(self, selector: str) -> List[Dict[str, str]]:
        """The labels of all series of the last hour that a selector matches."""
        found: List[Dict[str, str]] = self._get("series", {"match[]": selector})
        return found

    def stop(self) -> None:
        """End it."""
        self._process.terminate()
        self._process.wait(20)
        self._log.close()

    def _series(self, call: str, arguments: Mapping[str, str]) -> List[Dict[str, Any]]:
        data = self._get(call, arguments)
        if data["resultType"] == "scalar":
            return [{"metric": {}, "value": data["result"], "values": [data["result"]]}]
        result: List[Dict[str, Any]] = data["result"]
        return result

    def _get(self, call: str, arguments: Mapping[str, str]) -> Any:
        url = f"http://{self.address}/api/v1/{call}?{urllib.parse.urlencode(arguments)}"
        try:
            with urllib.request.urlopen(url, timeout=20) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            sentence = json.load(error).get("error", "")
            raise AssertionError(f"{arguments}: {sentence}") from error

    def _is_ready(self) -> Optional[bool]:
        assert self._process.poll() is None, Path(self._log.name).read_text()
        try:
            with urllib.request.urlopen(f"http://{self.address}/-/ready", timeout=5):
                return True
        except OSError:
            return None
