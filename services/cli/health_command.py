"""`shoal health ADDRESS`: whether a service answers, as an exit code: for health checks of containers."""

from __future__ import annotations

import argparse
import os
import ssl
import urllib.error
import urllib.request
from pathlib import Path
from typing import Sequence, TextIO

from services.cli.arguments import split_overrides
from services.common.config.load import load
from services.common.config.security import SecuritySection
from services.common.config.values import check_address
from services.common.errors import EXIT_OK, UserError

EXIT_SICK = 1
TIMEOUT_S = 3.0


def run(words: Sequence[str], out: TextIO) -> int:
    """Ask, say the answer in a line, and return 0 or 1.

    Raises:
        UserError: what the user can mend.
    """
    rest, overrides = split_overrides(words)
    options = parser().parse_args(rest)
    try:
        check_address(options.address)
    except ValueError as error:
        raise UserError(str(error)) from None
    security = load(None, overrides, os.environ).config.security
    problem = (
        _metrics_problem(options.address, security) if options.metrics else _grpc_problem(options.address, security)
    )
    out.write(f"{options.address} {problem or 'is healthy'}\n")
    return EXIT_SICK if problem else EXIT_OK


def parser() -> argparse.ArgumentParser:
    """The command's arguments."""
    made = argparse.ArgumentParser(
        prog="shoal health",
        description="Ask a service whether it serves. Exit code 0: it does; 1: it does not.",
        epilog="Certificates are set as in a run file: --security.ca FILE, or SHOAL_SECURITY__CA.",
        allow_abbrev=False,
    )
    made.add_argument("address", metavar="HOST:PORT", help="of a replay or a learner, or of any service's metrics")
    made.add_argument("--metrics", action="store_true", help="the address is that of a metrics endpoint")
    return made


def _grpc_problem(address: str, section: SecuritySection) -> str:
    from grpc_health.v1 import health_pb2, health_pb2_grpc

    from services.common.rpc import Refused, Unavailable, call_once, connect
    from services.common.security.transport import client_security

    # The health check asks for no token, and there may be none where it runs.
    security = client_security(section.model_copy(update={"token": ""}))
    with connect(address, security) as channel:
        try:
            answer = call_once(
                health_pb2_grpc.HealthStub(channel).Check, health_pb2.HealthCheckRequest(), timeout_s=TIMEOUT_S
            )
        except (Unavailable, Refused) as error:
            return f"does not answer: {error}"
    serving = answer.status == health_pb2.HealthCheckResponse.SERVING
    return "" if serving else f"says {health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status)}"


def _metrics_problem(address: str, section: SecuritySection) -> str:
    """A refusal for want of a token shows that the endpoint is there, which is what was asked."""
    context = None
    if section.ca:
        if not Path(section.ca).is_file():
            raise UserError(f"security.ca = {section.ca!r} is not there")
        context = ssl.create_default_context(cafile=section.ca)
    url = f"{'https' if context else 'http'}://{address}/metrics"
    try:
        with urllib.request.urlopen(url, timeout=TIMEOUT_S, context=context):  # noqa: S310 (http or https)
            return ""
    except urllib.error.HTTPError as error:
        with error:
            return "" if error.code in {401, 403} else f"answers {error.code}"
    except (OSError, ValueError) as error:
        return f"does not answer: {error}"
