"""`turnwire export` and `turnwire verify`: the file of a session can be verified, a changed one cannot."""

from __future__ import annotations

import gzip
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from tests.cli.rig import SCRIPTED, run, served
from tests.support.postgres import PostgresServer

from turnwire.cli.export import verify


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The file of a session with failed, cancelled and killed turns, and the hash of its last receipt."""
    home = tmp_path_factory.mktemp("home")
    with served(home, "--", *SCRIPTED) as daemon:
        session = daemon.session()
        texts = ("say 3 a", "error -32000 no", "never", "say 1 b")
        *_, running, waiting = [daemon.prompt(session, text) for text in texts]
        daemon.ask("POST", f"/session/{session}/cancel", {"promptId": running})
        daemon.ended(session, waiting)
        daemon.prompt(session, "say 2000 c\nsay 1 said\nnever")
        with closing(daemon.events(session)) as events:
            assert any("said" in str(each["data"].get("update")) for each in events)
        daemon.prompt(session, "say 1 d")
        daemon.process.kill()
        daemon.process.wait()
    with served(home, "--", *SCRIPTED) as daemon:
        end = daemon.ended(session, daemon.prompt(session, "say 1 e"))
        assert daemon.run("export", session, "-o", str(home / "file")).code == 0
        assert daemon.run("export", session, "-o", str(home / "redacted"), "--redact", "email").code == 0
    return home / "file", end["receipt"]["hash"]


def verified(file: Path, *words: str) -> Result:
    return CliRunner().invoke(verify, [str(file), *words])


@pytest.mark.guarantee("G1")
def test_an_export_is_verified_without_a_daemon(exported: tuple[Path, str], tmp_path: Path) -> None:
    file, last = exported
    ran = run("verify", str(file), home=file.parent)
    assert (ran.code, f"7 turns, last receipt {last}" in ran.out) == (0, True), ran
    packed = tmp_path / "packed"
    packed.write_bytes(gzip.compress(file.read_bytes()))
    assert verified(packed, "--receipt", last.upper()).exit_code == 0
    (tmp_path / "cut").write_bytes(packed.read_bytes()[:-20])
    ran = run("verify", str(tmp_path / "cut"), home=file.parent)
    assert (ran.code, "cannot be unpacked" in ran.err) == (78, True), ran


def test_one_changed_byte_names_the_broken_turn(exported: tuple[Path, str], tmp_path: Path) -> None:
    file, _ = exported
    content = file.read_bytes()
    changed = content.replace(b'"text":"b"', b'"text":"B"')
    assert len(changed) == len(content)
    assert changed != content
    (tmp_path / "changed").write_bytes(changed)
    ran = verified(tmp_path / "changed")
    assert (ran.exit_code, "FAILED" in ran.output, "turn 4 (prompt " in ran.output) == (1, True, True), ran.output
    ran = verified(tmp_path / "changed", "--json")
    assert (ran.exit_code, '"problem":"turn 4 ' in ran.output) == (1, True), ran.output


def test_another_receipt_than_the_expected_one_fails(exported: tuple[Path, str]) -> None:
    file, last = exported
    assert verified(file, "--receipt", last).exit_code == 0
    ran = verified(file, "--receipt", "0" * 64)
    assert (ran.exit_code, "not the expected one" in ran.output) == (1, True), ran.output


def test_a_redacted_export_cannot_be_verified_and_the_message_says_so(exported: tuple[Path, str]) -> None:
    file, _ = exported
    ran = run("verify", str(file.with_name("redacted")), home=file.parent)
    assert (ran.code, "exported with --redact" in ran.err) == (78, True), ran
    file.with_name("other").write_text("hello\n")
    ran = run("verify", str(file.with_name("other")), home=file.parent)
    assert (ran.code, "not a file of `turnwire export`" in ran.err) == (78, True), ran


def test_a_session_copied_into_another_log_is_verified_and_its_receipts_continue(
    postgres: PostgresServer, tmp_path: Path
) -> None:
    log = postgres.new_log()
    with served(tmp_path, "--", *SCRIPTED) as daemon:
        session, data = daemon.session(), daemon.data
        daemon.ended(session, daemon.prompt(session, "say 3 a"))
        assert daemon.run("export", session, "-o", str(tmp_path / "source")).code == 0
        assert daemon.stop() == 0
    copied = run("copy", "--from", f"sqlite://{data}", "--to", log, home=tmp_path)
    assert copied.code == 0, copied.err
    with served(tmp_path, "--data", str(tmp_path / "other"), "--log", log, "--", *SCRIPTED) as daemon:
        file = tmp_path / "copy"
        assert daemon.run("export", session, "-o", str(file)).code == 0
        assert file.read_bytes() == (tmp_path / "source").read_bytes()
        end = daemon.ended(session, daemon.prompt(session, "say 1 c"))["receipt"]
        assert daemon.run("export", session, "-o", str(file)).code == 0
    ran = verified(file, "--receipt", end["hash"])
    assert (ran.exit_code, "2 turns" in ran.output) == (0, True), ran.output
