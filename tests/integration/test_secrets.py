"""Tokens and keys are in no log, no answer, no metric and no command's output."""

from __future__ import annotations

import io
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import grpc
import pytest

from services.common.errors import UserError
from services.common.log import make_log
from services.common.metrics import Metrics
from services.common.peer import Peer
from services.common.rpc import Caller, Refused, Server, call_once, connect
from services.common.security.certificate_files import Certificates
from services.common.security.tokens import TokenBook, TokenFile, digest_of, format_book, new_token, parse_book
from services.common.security.transport import ClientSecurity, ServerSecurity
from services.replay.registration import add_to_server
from services.replay.servicer import ReplayServicer
from services.replay.table import Table, TableSettings
from shoal.v1 import experience_pb2, replay_pb2, replay_pb2_grpc
from tests.fakes import RUN_ID

ROOT = Path(__file__).resolve().parents[2]


def _private(file: Path, text: str) -> Path:
    file.write_text(text, encoding="utf-8")
    file.chmod(0o600)
    return file


def test_a_service_and_its_callers_tell_no_token(tmp_path: Path, capfd: Any) -> None:
    right, wrong = new_token("actor"), new_token("actor")
    book = _private(tmp_path / "tokens.toml", format_book({"actor": [digest_of(right)]}))
    out = io.StringIO()
    log = make_log(out, level="debug", service="replay", run=RUN_ID, incarnation="1")
    metrics = Metrics("replay", RUN_ID)
    settings = TableSettings(capacity=64, max_batch_size=4)
    servicer = ReplayServicer(
        run_id=RUN_ID,
        incarnation=1,
        make_table=lambda schema: Table(settings, schema, clock=time.monotonic),
        log=log,
        fail=pytest.fail,
    )
    security = ServerSecurity(book=TokenBook(book))
    server = Server(
        "127.0.0.1:0",
        max_workers=4,
        option_name="test",
        security=security,
        on_rejected=metrics.rejected_calls(),
        observe=metrics.calls(),
    )
    server.add(add_to_server, servicer)
    server.start()
    said = []
    request = replay_pb2.GetReplayInfoRequest(peer=Peer(RUN_ID, experience_pb2.ROLE_ACTOR, "a").to_proto())
    for token, method in ((right, "GetInfo"), (wrong, "GetInfo"), (right, "Sample"), (right, "NoSuch")):
        client = ClientSecurity(token=lambda token=token: token)  # type: ignore[misc]
        assert token not in repr(client)
        channel = connect(server.address, client)
        stub = replay_pb2_grpc.ReplayServiceStub(channel)
        try:
            if method == "GetInfo":
                said.append(str(call_once(stub.GetInfo, request, timeout_s=10)))
            elif method == "Sample":
                call_once(stub.Sample, replay_pb2.SampleRequest(peer=request.peer), timeout_s=10)
            else:
                channel.unary_unary("/shoal.v1.ReplayService/NoSuch")(b"", timeout=10)
        except (Refused, grpc.RpcError) as error:
            said.append(repr(error) + str(error))
        channel.close()
    port = metrics.serve(0, "test")
    import urllib.request

    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
        said.append(answer.read().decode())
    caller = Caller(
        "replay",
        "127.0.0.1:1",
        Stopping(),
        log,
        security=ClientSecurity(token=lambda: right),  # type: ignore[arg-type]
    )
    caller.close()
    server.stop(0)
    metrics.stop()
    said += [out.getvalue(), *capfd.readouterr()]
    assert len(said) >= 7
    for text in said:
        assert right not in text
        assert wrong not in text
        assert digest_of(right) not in text


class Stopping:
    def is_set(self) -> bool:
        return True


def test_files_that_are_wrong_are_refused_without_their_content(tmp_path: Path) -> None:
    token = new_token("actor")
    sentences = []
    for number, text in enumerate((f"{token} {token}", f"{token}\n{token}", "")):
        with pytest.raises(UserError) as refused:
            TokenFile(_private(tmp_path / f"token-{number}", text))
        sentences.append(str(refused.value))
    for text in (token, f'"{token}" = []', f"{token} = [1]", f'actor = ["{token}"]', f'actor = "{token}"'):
        with pytest.raises(UserError) as refused:
            parse_book(text, tmp_path / "tokens.toml")
        sentences.append(str(refused.value))
    assert all(token not in sentence for sentence in sentences)
    assert "PRIVATE" not in repr(Certificates(None, None, b"-----BEGIN PRIVATE KEY-----", None, None))


def test_the_commands_that_show_settings_show_no_secret(tmp_path: Path) -> None:
    token = new_token("actor")
    file = _private(tmp_path / "token", token)
    for command in (("config", "show"), ("config", "check")):
        shown = subprocess.run(
            [sys.executable, "-m", "services.cli", *command, "--security.token", str(file)],
            capture_output=True,
            text=True,
            cwd=str(ROOT),
            timeout=60,
            check=False,
        )
        assert shown.returncode == 0, shown.stderr
        assert token not in shown.stdout + shown.stderr
