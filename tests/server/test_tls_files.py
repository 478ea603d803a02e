"""Files that TLS cannot be served with: rejected by name before anything listens, without a prompt for a
password.
"""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest
from starlette.types import Receive, Scope, Send
from tests.cli.rig import run
from tests.support.certificates import CURVE, self_signed

from turnwire.errors import ConfigError
from turnwire.server.listener import Tls, listen
from turnwire_testing.patience import WAIT_S

pytestmark = [pytest.mark.anyio, pytest.mark.full("needs openssl")]


BAD = pytest.mark.parametrize(
    ("cert", "key", "why"),
    [
        ("cert.pem", "other-key.pem", "other-key.pem is not the key of the certificate"),
        ("cert.pem", "rsa-key.pem", "rsa-key.pem is not the key of the certificate"),
        ("garbage.pem", "garbage.pem", "garbage.pem holds no certificate"),
        ("cert.pem", "garbage.pem", "garbage.pem holds no private key"),
        ("key.pem", "cert.pem", "key.pem holds no certificate"),
        ("cert.pem", "cert.pem", "cert.pem holds no private key"),
        ("locked-cert.pem", "locked-key.pem", "locked-key.pem has a passphrase"),
        ("broken.pem", "key.pem", "damaged"),
    ],
)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tls")
    self_signed(folder)
    self_signed(folder, name="other-")
    self_signed(folder, "-newkey", "rsa:2048", "-nodes", name="rsa-")
    self_signed(folder, *CURVE, "-passout", "pass:open sesame", name="locked-")
    (folder / "garbage.pem").write_bytes(b"\x00 no PEM at all")
    (folder / "broken.pem").write_text("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")
    return folder


async def nothing(scope: Scope, receive: Receive, send: Send) -> None:
    """An application that is never called."""


@BAD
async def test_files_that_tls_cannot_use_are_refused_by_name(files: Path, cert: str, key: str, why: str) -> None:
    tls = Tls(files / cert, files / key)
    with pytest.raises(ConfigError, match=why), anyio.fail_after(WAIT_S):
        await listen(nothing, host="127.0.0.1", port=0, tls=tls, ready=print, stop=anyio.Event())


@pytest.mark.parametrize(
    ("cert", "key"),
    [
        ("cert.pem", "other-key.pem"),
        ("garbage.pem", "garbage.pem"),
        ("key.pem", "cert.pem"),
        ("locked-cert.pem", "locked-key.pem"),
    ],
)
def test_a_daemon_with_such_files_does_not_start_and_says_which(
    files: Path, tmp_path: Path, cert: str, key: str
) -> None:
    flags = ["--tls-cert", str(files / cert), "--tls-key", str(files / key)]
    shown = run("serve", "--port", "0", *flags, home=tmp_path)
    assert (shown.code, shown.out) == (78, "")
    assert str(files / key) in shown.err or str(files / cert) in shown.err
    assert "stdout" not in shown.err
    assert "pass phrase" not in shown.err  # as OpenSSL asks for it
    assert not (tmp_path / ".local").exists(), "nothing was made: no log, and no token that nobody is shown"
