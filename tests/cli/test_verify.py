"""`turnwire verify`: the file of a session that went through everything proves itself, an altered one does not."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace
from tests.cli.rig import SCRIPTED, run, served
from tests.support.postgres import PostgresServer

from turnwire.core.receipts import LINK
from turnwire.core.stored_file import Head, StoredFile
from turnwire.ids import SessionId


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def lived(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, str]:
    """A home, the file of a session that went through a kill and more, and the hash of its last receipt."""
    home = tmp_path_factory.mktemp("home")
    log = ("--log", _new_log(request)) if request.param == "postgresql" else ()
    with served(home, *log, "--", *SCRIPTED) as daemon:
        session = daemon.session()
        texts = ("say 3 a", "error -32000 no", "never", "say 1 b")
        *_, running, waiting = [daemon.prompt(session, text) for text in texts]
        daemon.ask("POST", f"/session/{session}/cancel", {"promptId": running})
        daemon.ended(session, waiting)
        daemon.prompt(session, f"say {2 * LINK} c\nsay 1 said\nnever")
        with closing(daemon.events(session)) as events:
            assert any("said" in str(each["data"].get("update")) for each in events)
        daemon.prompt(session, "say 1 d")
        daemon.process.kill()
        daemon.process.wait()
    with served(home, *log, "--", *SCRIPTED) as daemon:
        end = daemon.ended(session, daemon.prompt(session, "say 1 e"))
        file = home / "stored"
        assert daemon.run("export", session, "--stored", "-o", str(file)).code == 0
    return home, file, end["receipt"]["hash"]


def _new_log(request: pytest.FixtureRequest) -> str:
    postgres: PostgresServer = request.getfixturevalue("postgres")
    return postgres.new_log()


def test_a_session_that_was_killed_cancelled_and_failed_is_proven_offline(lived: tuple[Path, Path, str]) -> None:
    home, file, last = lived
    ran = run("verify", str(file), "--json", home=home)
    (report,) = ran.lines
    assert ran.code == 0
    assert (report["receipts"], report["proven"][0][0], len(report["proven"])) == (7, 1, 1)
    assert report["hash"] == last
    (home / "packed").write_bytes(gzip.compress(file.read_bytes()))
    packed = run("verify", str(home / "packed"), home=home)
    assert packed.code == 0
    assert f"last receipt {last}" in packed.out


def test_the_event_that_was_altered_is_named(lived: tuple[Path, Path, str]) -> None:
    home, file, _ = lived
    lines = file.read_bytes().splitlines(keepends=True)
    (home / "altered").write_bytes(b"".join([*lines[:4], lines[5], lines[4], *lines[6:]]))
    ran = run("verify", str(home / "altered"), home=home)
    assert (ran.code, "event 4 was swapped" in ran.out) == (1, True), ran.out


def made_anew(
    file: Path, change: Callable[[bytes], bytes] = bytes, *, keep: int | None = None, session: str | None = None
) -> Path:
    """The file with other events, or another head, and all its sums made anew."""
    first, *rest = file.read_bytes().splitlines()
    head = msgspec.json.decode(first, type=Head)
    bodies = [(each["offset"], change(bytes(each["body"]))) for each in map(_read_line, rest)][:keep]
    wanted = SessionId(session) if session is not None else head.session_id
    made = StoredFile(replace(head, session_id=wanted, last=bodies[-1][0]))
    other = file.with_name("anew")
    other.write_bytes(made.head + b"\n" + made.lines(bodies))
    return other


def _read_line(line: bytes) -> dict[str, Any]:
    return msgspec.json.decode(line, type=dict[str, msgspec.Raw]) | {"offset": json.loads(line)["offset"]}


def without_its_receipt(body: bytes) -> bytes:
    return re.sub(rb',"receipt":\{[^}]*\}', b"", body)


def test_what_is_changed_with_its_sums_made_anew_is_found_by_its_receipt(lived: tuple[Path, Path, str]) -> None:
    home, file, last = lived
    assert run("verify", str(made_anew(file)), "--receipt", last, home=home).code == 0
    altered = made_anew(file, lambda body: body.replace(b'"text":"b"', b'"text":"B"'))
    ran = run("verify", str(altered), home=home)
    assert (ran.code, "FAILED" in ran.out) == (1, True), ran.out


def test_a_file_whose_receipts_were_taken_out_proves_nothing_and_says_so(lived: tuple[Path, Path, str]) -> None:
    home, file, last = lived
    stripped = made_anew(file, without_its_receipt)
    ran = run("verify", str(stripped), home=home)
    assert (ran.code, "NOT PROVEN: no receipt proves anything of it" in ran.out) == (4, True), ran.out
    (report,) = run("verify", str(stripped), "--json", home=home).lines
    assert (report["ends"], report.get("receipts"), report.get("isLastEndProven")) == (7, None, None)
    ran = run("verify", str(stripped), "--receipt", last, home=home)
    assert (ran.code, "another receipt than was expected, or none" in ran.out) == (1, True), ran.out


def test_an_end_without_its_receipt_behind_proven_ones_is_not_proven(lived: tuple[Path, Path, str]) -> None:
    home, file, last = lived
    altered = made_anew(file, lambda body: without_its_receipt(body) if last.encode() in body else body)
    ran = run("verify", str(altered), home=home)
    assert (ran.code, "NOT PROVEN: no receipt proves its last end" in ran.out) == (4, True), ran.out


def test_a_session_that_the_head_names_wrongly_is_found(lived: tuple[Path, Path, str]) -> None:
    home, file, _ = lived
    ran = run("verify", str(made_anew(file, session="s_of_somebody_else")), home=home)
    assert (ran.code, "event 1 was changed: it is of session" in ran.out) == (1, True), ran.out


def test_turns_that_were_cut_off_are_found_by_the_receipt_that_was_told(lived: tuple[Path, Path, str]) -> None:
    home, file, last = lived
    cut = made_anew(file, keep=-3)
    assert run("verify", str(cut), home=home).code == 0
    ran = run("verify", str(cut), "--receipt", last.upper(), home=home)
    assert (ran.code, "ends behind it are missing" in ran.out) == (1, True), ran.out


def test_a_file_in_which_no_turn_has_ended_has_nothing_to_prove(lived: tuple[Path, Path, str]) -> None:
    home, file, last = lived
    begun = made_anew(file, keep=2)
    ran = run("verify", str(begun), home=home)
    assert (ran.code, ran.out.splitlines()[1:]) == (0, ["no receipt: 1-2"])
    assert run("verify", str(begun), "--receipt", last, home=home).code == 1


def test_what_is_no_hash_is_refused(lived: tuple[Path, Path, str]) -> None:
    home, file, last = lived
    ran = run("verify", str(file), "--receipt", last[:16], home=home)
    assert (ran.code, "64 digits" in ran.err) == (2, True)


def test_a_file_that_it_cannot_check_is_refused_with_what_to_do(lived: tuple[Path, Path, str]) -> None:
    home, file, _ = lived
    (home / "shown").write_text('{"id":1,"v":1,"type":"session_created","data":{}}')
    shown = run("verify", str(home / "shown"), home=home)
    assert (shown.code, "export SESSION --stored" in shown.err) == (78, True)
    (home / "cut").write_bytes(gzip.compress(file.read_bytes())[:-20])
    assert run("verify", str(home / "cut"), home=home).code == 78


def test_a_session_that_was_copied_into_another_log_is_proven_there_and_its_chain_goes_on(
    postgres: PostgresServer, tmp_path: Path
) -> None:
    log = postgres.new_log()
    with served(tmp_path, "--", *SCRIPTED) as daemon:
        session, data = daemon.session(), daemon.data
        before = daemon.ended(session, daemon.prompt(session, f"say {LINK + 9} a"))["receipt"]
        daemon.ended(session, daemon.prompt(session, "say 3 b"))
        assert daemon.run("export", session, "--stored", "-o", str(tmp_path / "source")).code == 0
        assert daemon.stop() == 0
    copied = run("copy", "--from", f"sqlite://{data}", "--to", log, home=tmp_path)
    assert copied.code == 0, copied.err
    with served(tmp_path, "--data", str(tmp_path / "other"), "--log", log, "--", *SCRIPTED) as daemon:
        file = tmp_path / "copy"
        assert daemon.run("export", session, "--stored", "-o", str(file)).code == 0
        assert file.read_bytes() == (tmp_path / "source").read_bytes()
        end = daemon.ended(session, daemon.prompt(session, "say 1 c"))["receipt"]
        assert daemon.run("export", session, "--stored", "-o", str(file)).code == 0
    (report,) = run("verify", str(file), "--json", home=tmp_path).lines
    assert (report["receipts"], report["proven"], report.get("unproven")) == (3, [[1, end["last"]]], None)
    assert report["hash"] == end["hash"]
    body = f'"hash":"{before["hash"]}"'.encode()
    altered = file.read_bytes().replace(body, body.replace(b'"hash":"', b'"hash":"0'))
    assert altered != file.read_bytes()
    (tmp_path / "altered").write_bytes(altered)
    assert run("verify", str(tmp_path / "altered"), home=tmp_path).code == 1
