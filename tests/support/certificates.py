"""Certificates for tests of TLS, made by OpenSSL's program. Without it the test is skipped; see `find_tool`."""

from __future__ import annotations

import subprocess
from pathlib import Path

from turnwire.server.listener import Tls
from turnwire_testing.patience import WAIT_S
from turnwire_testing.plugin import find_tool

CURVE = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1")


def self_signed(folder: Path, *options: str, name: str = "", of: str = "IP:127.0.0.1") -> Tls:
    """Create a certificate for 127.0.0.1, or for the given names, and its key, as `{name}cert.pem` and
    `{name}key.pem`.
    """
    made = Tls(folder / f"{name}cert.pem", folder / f"{name}key.pem")
    command = [find_tool("openssl"), "req", "-x509", *(options or (*CURVE, "-nodes"))]
    command += ["-keyout", str(made.key), "-out", str(made.cert), "-days", "1", "-subj", "/CN=localhost"]
    command += ["-addext", f"subjectAltName={of}"]
    subprocess.run(command, check=True, capture_output=True, timeout=WAIT_S)
    return made
