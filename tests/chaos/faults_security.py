"""Tokens that are not the right ones, certificates that have ended."""

from __future__ import annotations

import datetime as dt
import time
from pathlib import Path
from typing import List

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization

from services.common.security.tokens import new_token
from tests.chaos.scenario import Scenario
from tests.chaos.system import TLS
from tests.chaos.trial import ACTOR_LIMIT_S, Trial

KIND = "security"


def wrong_token(trial: Trial) -> None:
    """An actor comes with a token that nobody knows, and then with that of another role."""
    trial.kill("actor-0")
    stranger = trial.system.pki / "stranger.token"
    stranger.touch(0o640)
    stranger.write_text(new_token("actor") + "\n")
    for file, words in ((stranger, "token"), (trial.system.pki / "evaluator.token", "token of evaluator")):
        trial.is_refused("actor-0", words, flags={"security.token": str(file)})
    trial.start_and_measure("actor-0")


def expired_certificate(trial: Trial) -> None:
    """The machine's certificate has ended: who is connected goes on, who comes new waits and says why."""
    replay = trial.system.pki / "machine.pem"
    kept = replay.read_bytes()
    replay.with_name("new.pem").write_bytes(expired(kept, trial.system.pki / "ca-key.pem"))
    replay.with_name("new.pem").replace(replay)
    before = len(trial.system.log("actor-0"))
    trial.kill("actor-0")
    with trial.system.disturbed("actor-0"):
        trial.system.start("actor-0")
        trial.until(
            lambda: "certificate" in trial.system.log("actor-0")[before:].lower(), "a word on the certificate", 40.0
        )
        if trial.is_at_work("actor-0"):
            trial.fault("the new actor got through: the certificate is not looked at")
        trial.system.issue("machine")
    trial.measure("actor-0 at work", time.monotonic(), lambda: trial.is_at_work("actor-0"), ACTOR_LIMIT_S)
    trial.kill_and_start("replay")


def expired(chain: bytes, ca_key: Path) -> bytes:
    """The first certificate of a PEM chain, signed anew so that it ended yesterday; the rest of the chain as it is."""
    first, *rest = x509.load_pem_x509_certificates(chain)
    yesterday = dt.datetime.now(dt.timezone.utc) - dt.timedelta(days=1)
    builder = (
        x509.CertificateBuilder()
        .subject_name(first.subject)
        .issuer_name(first.issuer)
        .public_key(first.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(yesterday - dt.timedelta(days=1))
        .not_valid_after(yesterday)
    )
    for extension in first.extensions:
        builder = builder.add_extension(extension.value, critical=extension.critical)
    key = serialization.load_pem_private_key(ca_key.read_bytes(), password=None)
    made = builder.sign(key, hashes.SHA256())  # type: ignore[arg-type]
    return b"".join(each.public_bytes(serialization.Encoding.PEM) for each in (made, *rest))


def scenarios() -> List[Scenario]:
    """All of this kind."""
    return [
        Scenario("wrong_token", KIND, "an actor comes with wrong tokens", wrong_token, layout=TLS, quick=True),
        Scenario(
            "expired_certificate", KIND, "the services' certificate ends, and is renewed", expired_certificate,
            layout=TLS, quick=True,
        ),
    ]  # fmt: skip
