"""No log tells a secret: services with TLS and tokens, at the most talkative level, and peers that are turned away."""

from __future__ import annotations

import json
import signal
import ssl
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Dict, Iterator, List, Optional

import pytest

from services.common.security.tokens import new_token
from tests.e2e.launcher import evaluations, wait_for
from tests.e2e.test_services import Services

ROLES = {"replay": "", "learner": "learner", "evaluator": "evaluator", "actor-0": "actor", "actor-1": "monitor"}


@pytest.fixture
def services(tmp_path: Path) -> Iterator[Services]:
    made = Services(tmp_path)
    yield made
    made.stop()


def make_pki(folder: Path) -> Dict[str, str]:
    """Certificates and tokens; returns every secret by its file."""
    for words in (["init", str(folder)], ["issue", str(folder), "box", "127.0.0.1"]):
        subprocess.run([sys.executable, "-m", "services.cli", "certs", *words], check=True, stdout=subprocess.DEVNULL)
    unknown = folder / "unknown.token"
    unknown.write_text(new_token("actor"))
    unknown.chmod(0o640)
    secrets = {file.name: file.read_text().strip() for file in folder.glob("*.token")}
    # The second line of a PEM file: what a part of a key looks like.
    return {**secrets, **{file.name: file.read_text().splitlines()[1] for file in folder.glob("*-key.pem")}}


def flags_of(folder: Path, role: str) -> List[str]:
    files = {"ca": "ca.pem", "certificate": "box.pem", "key": "box-key.pem", "tokens": "tokens.toml"}
    if role:
        files["token"] = f"{role}.token"
    flags = [word for key, file in files.items() for word in (f"--security.{key}", str(folder / file))]
    return [*flags, "--log.level", "debug", "--log.style", "json", "--evaluator.episodes", "5"]


def scrape(services: Services, pki: Path, token: str) -> str:
    """What the replay's endpoint says to a reader with `token`.

    Raises:
        HTTPError: the reader is turned away.
    """
    (line,) = [line for line in services.log("replay").splitlines() if "metrics_port" in line]
    request = urllib.request.Request(
        f"https://127.0.0.1:{json.loads(line)['metrics_port']}/metrics", headers={"Authorization": f"Bearer {token}"}
    )
    context = ssl.create_default_context(cafile=str(pki / "ca.pem"))
    with urllib.request.urlopen(request, timeout=10, context=context) as answer:  # noqa: S310 (https)
        text: str = answer.read().decode()
    return text


@pytest.mark.timeout(240)
def test_no_log_tells_a_token_or_a_key(services: Services, tmp_path: Path) -> None:
    pki = tmp_path / "pki"
    secrets = make_pki(pki)
    assert len(secrets) == 8  # five roles and an unknown one, the CA's key and the machine's
    for name, role in ROLES.items():
        services.start(name, *flags_of(pki, role))
    assert services.wait("actor-1", 60) == 2  # a monitor may not insert
    services.start("actor-1", *flags_of(pki, "unknown"))
    assert services.wait("actor-1", 60) == 2

    def look() -> Optional[bool]:
        is_far = "a chunk is applied" in services.log("replay") and evaluations(services.run_folder)
        return bool(is_far) or None

    wait_for(look, "an evaluation", 120)
    with pytest.raises(urllib.error.HTTPError, match="401"):
        scrape(services, pki, secrets["unknown.token"])
    metrics = scrape(services, pki, secrets["monitor.token"])
    assert 'reason="unknown_token"' in metrics
    running = ("actor-0", "evaluator", "learner", "replay")
    for name in running:
        services.processes[name].send_signal(signal.SIGTERM)
    for name in running:
        services.wait(name, 60)

    texts = {name: services.log(name) for name in ROLES}
    texts["metrics"] = metrics
    texts.update({str(file): file.read_text() for file in services.run_folder.glob("*.toml")})
    assert "may not call" in texts["actor-1"]
    assert "does not know the caller's token" in texts["actor-1"]
    told = [(where, file) for where, text in texts.items() for file, secret in secrets.items() if secret in text]
    assert not told
    assert all("time" in json.loads(line) for line in texts["replay"].splitlines())
