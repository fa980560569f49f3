"""When a certificate expires: what a service shows as a metric, and `shoal certs show` as a line."""

from __future__ import annotations

import datetime as dt
import warnings
from pathlib import Path
from typing import Any, List

from services.common.errors import UserError


def load_certificates(file: Path) -> List[Any]:
    """The `cryptography.x509.Certificate`s of a PEM file, the machine's own first.

    Raises:
        UserError: it cannot be read, or holds none.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # on Python 3.8, about the age of Python 3.8
        from cryptography import x509
    try:
        return list(x509.load_pem_x509_certificates(file.read_bytes()))
    except OSError as error:
        raise UserError(f"the certificate {str(file)!r} cannot be read: {error.strerror}") from None
    except ValueError:
        raise UserError(f"{str(file)!r} is not a certificate in PEM format") from None


def expires_at(file: Path) -> dt.datetime:
    """When the first certificate of a PEM file ends, in UTC.

    Raises:
        UserError: as `load_certificates`.
    """
    ends: dt.datetime = load_certificates(file)[0].not_valid_after_utc
    return ends
