"""The run file's `[security]`: certificates, tokens, and what may be done without them."""

from __future__ import annotations

from services.common.config.algorithms import Section


class SecuritySection(Section):
    """`[security]`: certificates and tokens; needed beyond the machine, allowed on it."""

    ca: str = ""
    """PEM file of the CA that signed the services' certificates. Set: calls use TLS and check who answers."""
    certificate: str = ""
    """PEM file of this machine's certificate, which its services listen with."""
    key: str = ""
    """PEM file of that certificate's key."""
    mutual: bool = False
    """Whether services ask callers for a certificate too (mTLS); callers then show `certificate`."""
    token: str = ""
    """File of this process's own token; with a `-` before it, it may be missing or empty: then there is none. Not set:
    systemd's credential `shoal-token`, where there is one."""
    tokens: str = ""
    """File of the tokens that a service accepts; likewise. Not set: systemd's credential `shoal-tokens`."""
    insecure: bool = False
    """Whether to listen and call beyond the machine without TLS and tokens."""
