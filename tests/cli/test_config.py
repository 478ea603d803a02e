"""`turnwire config` reports the effective settings and their sources, and never a secret."""

from __future__ import annotations

from pathlib import Path

from tests.cli.rig import run

from turnwire.server.settings.declared import LIMITS, SETTINGS

SECRET = "a-token-that-nobody-guesses"


def test_each_value_names_its_source_and_the_strongest_wins(tmp_path: Path) -> None:
    file = tmp_path / "turnwire.toml"
    file.write_text('port = 1111\nlog_level = "error"\ndurability = "full"\n\n[limits]\nqueue_length = 7\n')
    shown = run(
        *("config", "--json", "--config", str(file), "--port", "3333", "--", "my-agent", "--flag"),
        home=tmp_path,
        TURNWIRE_PORT="2222",
        TURNWIRE_LOG_LEVEL="debug",
    )

    assert shown.code == 0
    found = {each["name"]: (each["value"], each["source"]) for each in shown.lines[0]["settings"]}
    assert found["port"] == ("3333", "command line")
    assert found["log_level"] == ("debug", "environment")
    assert found["durability"] == ("full", "file")
    assert found["limits.queue_length"] == ("7", "file")
    assert found["agent"] == ("my-agent --flag", "command line")
    assert found["host"] == ("127.0.0.1", "default")
    assert set(found) == {each.name for each in (*SETTINGS, *LIMITS)}


def test_a_secret_is_not_shown_in_any_form(tmp_path: Path) -> None:
    for form in ([], ["--json"], ["--changed"]):
        shown = run("config", *form, home=tmp_path, TURNWIRE_TOKEN=SECRET)
        assert shown.code == 0
        assert SECRET not in shown.out + shown.err
        assert "token" in shown.out


def test_only_what_was_changed_is_shown_on_request(tmp_path: Path) -> None:
    shown = run("config", "--changed", "--limit", "queue_length=3", "--no-page", home=tmp_path)

    assert shown.out.splitlines()[2:] == ["page\tfalse\t--no-page", "limits.queue_length\t3\t--limit queue_length="]


def test_every_setting_with_a_flag_is_an_option_of_serve_and_config(tmp_path: Path) -> None:
    for command in ("serve", "config", "doctor"):
        shown = run(command, "--help", home=tmp_path).out
        for row in SETTINGS:
            if row.flag is not None:
                assert f"{row.flag} " in shown or f"{row.flag}\n" in shown, (command, row.flag)


def test_a_setting_nobody_knows_is_refused_with_the_nearest_one(tmp_path: Path) -> None:
    shown = run("config", home=tmp_path, TURNWIRE_PROT="1")

    assert shown.code == 78
    assert "TURNWIRE_PORT" in shown.err
