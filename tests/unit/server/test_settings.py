"""Settings: one table, four sources, and nonsense that refuses to start with the reason."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path

import pytest

from turnwire.errors import ConfigError
from turnwire.limits import Limits
from turnwire.server.settings.declared import LIMITS, SETTINGS, Settings
from turnwire.server.settings.sources import Explained, Loaded, Source, load_settings
from turnwire.session.policy import RuleAnswer

SECRET = "hunter2-hunter2-hunter2"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    return tmp_path


def load(
    home: Path,
    flags: Mapping[str, object] | None = None,
    environ: Mapping[str, str] | None = None,
    toml: str | None = None,
) -> Loaded:
    config = None
    if toml is not None:
        config = home / "turnwire.toml"
        config.write_text(toml)
        config.chmod(0o600)
    return load_settings(flags or {}, {"HOME": str(home), **(environ or {})}, config)


def refusal(
    home: Path,
    flags: Mapping[str, object] | None = None,
    environ: Mapping[str, str] | None = None,
    toml: str | None = None,
) -> str:
    with pytest.raises(ConfigError) as refused:
        load(home, flags, environ, toml)
    return str(refused.value)


def explained(loaded: Loaded, name: str) -> Explained:
    [found] = [each for each in loaded.explained() if each.name == name]
    return found


# -- the table -----------------------------------------------------------------------------------------------


def test_every_field_is_in_the_table_once() -> None:
    assert sorted(row.name for row in SETTINGS) == sorted(each.name for each in fields(Settings))
    assert len({row.name for row in (*SETTINGS, *LIMITS)}) <= 45, "make it a constant instead"
    for row in LIMITS:
        assert getattr(Limits(), row.name.removeprefix("limits.")) == row.default


def test_names_of_flags_and_variables_follow_from_the_name() -> None:
    rows = {row.name: row for row in (*SETTINGS, *LIMITS)}
    assert (rows["allow_origin"].flag, rows["allow_origin"].env) == ("--allow-origin", "TURNWIRE_ALLOW_ORIGIN")
    assert (rows["page"].flag, rows["page"].flag_value) == ("--no-page", False)
    assert (rows["no_auth"].flag, rows["no_auth"].flag_value) == ("--no-auth", True)
    assert (rows["port"].flag, rows["port"].flag_value) == ("--port", None)
    assert (rows["agent"].flag, rows["agent"].env) == (None, "TURNWIRE_AGENT")
    assert (rows["permission"].flag, rows["permission"].env) == (None, None)
    assert rows["limits.queue_length"].env == "TURNWIRE_LIMITS_QUEUE_LENGTH"


def test_no_two_settings_share_a_flag_or_a_variable() -> None:
    flags = [row.flag for row in (*SETTINGS, *LIMITS) if row.flag]
    variables = [row.env for row in (*SETTINGS, *LIMITS) if row.env]
    assert len(flags) == len(set(flags))
    assert len(variables) == len(set(variables))


# -- the sources ---------------------------------------------------------------------------------------------


@pytest.mark.guarantee("G13")
def test_the_defaults_are_closed(home: Path) -> None:
    settings = load(home).settings
    assert (settings.host, settings.port, settings.no_auth, settings.token) == ("127.0.0.1", 4170, False, None)
    assert (settings.allow_origin, settings.allow_host) == ((), ())
    assert settings.cwd == (home / "work",)


def test_data_is_in_the_users_state_folder(home: Path) -> None:
    assert load(home).settings.data == home / ".local/state/turnwire"
    assert load(home, environ={"XDG_STATE_HOME": "/var/state"}).settings.data == Path("/var/state/turnwire")
    relative = load(home, environ={"XDG_STATE_HOME": "state"})
    assert relative.settings.data == home / ".local/state/turnwire"
    assert load(home, {"log": "memory"}).settings.data is None


def test_without_a_home_the_folder_must_be_named() -> None:
    with pytest.raises(ConfigError, match=r"HOME is not set.*--data"):
        load_settings({"cwd": ("/srv",)}, {})
    assert load_settings({"data": "/srv/data", "cwd": ("/srv",)}, {}).settings.data == Path("/srv/data")


def test_the_stronger_source_wins_and_is_named(home: Path) -> None:
    toml, environ = "port = 1\n", {"TURNWIRE_PORT": "2"}
    assert load(home).settings.port == 4170
    from_file = load(home, toml=toml)
    assert explained(from_file, "port") == ("port", "1", Source.FILE, f"{home}/turnwire.toml: port")
    from_environ = load(home, environ=environ, toml=toml)
    assert explained(from_environ, "port") == ("port", "2", Source.ENVIRONMENT, "TURNWIRE_PORT")
    from_flag = load(home, {"port": "3"}, environ, toml)
    assert explained(from_flag, "port") == ("port", "3", Source.FLAG, "--port")
    assert from_flag.settings.port == 3
    assert explained(from_flag, "host") == ("host", "127.0.0.1", Source.DEFAULT, "")


def test_flags_that_were_not_given_count_for_nothing(home: Path) -> None:
    loaded = load(home, {"port": None, "allow_origin": (), "agent": (), "limits": ()}, {"TURNWIRE_PORT": "5"})
    assert (loaded.settings.port, loaded.settings.agent) == (5, ())


def test_an_empty_variable_counts_as_not_set(home: Path) -> None:
    assert load(home, environ={"TURNWIRE_PORT": ""}).settings.port == 4170


def test_limits_come_from_every_source(home: Path) -> None:
    toml = "[limits]\nqueue_length = 1\nheartbeat_s = 5\ndrain_s = 16\n"
    environ = {"TURNWIRE_LIMITS_QUEUE_LENGTH": "2", "TURNWIRE_LIMITS_DRAIN_S": "17"}
    loaded = load(home, {"limits": ("queue_length=3",)}, environ, toml)
    assert (loaded.limits.queue_length, loaded.limits.drain_s, loaded.limits.heartbeat_s) == (3, 17, 5)
    assert explained(loaded, "limits.drain_s").where == "TURNWIRE_LIMITS_DRAIN_S"


def test_lists_come_from_every_source(home: Path) -> None:
    environ = {
        "TURNWIRE_ALLOW_ORIGIN": "https://a.example, http://B.example:8080",
        "TURNWIRE_CWD": f"{home}:/srv",
        "TURNWIRE_AGENT": "some-agent --name 'two words'",
    }
    settings = load(home, environ=environ).settings
    assert settings.allow_origin == ("https://a.example", "http://b.example:8080")
    assert settings.cwd == (home, Path("/srv"))
    assert settings.agent == ("some-agent", "--name", "two words")
    given = load(home, {"agent": ("x", "-y"), "cwd": (".",), "allow_host": ("a.example", "b.example")}, environ)
    assert given.settings.agent == ("x", "-y")
    assert given.settings.cwd == (home / "work",)
    assert given.settings.allow_host == ("a.example", "b.example")
    file = load(home, toml='agent = ["x", "-y"]\nallow_host = ["a.example"]\n').settings
    assert (file.agent, file.allow_host) == (("x", "-y"), ("a.example",))


def test_a_relative_path_in_the_file_starts_from_the_file(home: Path) -> None:
    assert load(home, toml='data = "state"\n').settings.data == home / "state"
    assert load(home, {"data": "state"}).settings.data == home / "work" / "state"


def test_switches_read_the_usual_words(home: Path) -> None:
    for word in ("false", "0", "no", "OFF"):
        assert load(home, environ={"TURNWIRE_PAGE": word}).settings.page is False
    for word in ("true", "1", "yes", "on"):
        assert load(home, environ={"TURNWIRE_NO_AUTH": word}).settings.no_auth is True


def test_the_usual_file_is_read_if_it_is_there(home: Path) -> None:
    assert load(home).config is None
    usual = home / ".config" / "turnwire" / "turnwire.toml"
    usual.parent.mkdir(parents=True)
    usual.write_text("port = 9\n")
    assert load(home).config == usual
    assert load(home).settings.port == 9
    other = home / "other.toml"
    other.write_text("port = 10\n")
    assert load(home, environ={"TURNWIRE_CONFIG": str(other)}).settings.port == 10
    assert load(home, environ={"TURNWIRE_CONFIG": str(other)}, toml="port = 11").settings.port == 11


def test_permission_come_from_the_file(home: Path) -> None:
    loaded = load(home, toml='[[permission]]\nanswer = "allow_once"\nkind = "read"\n')
    [rule] = loaded.settings.permission
    assert (rule.answer, rule.kind) == (RuleAnswer.ALLOW_ONCE, "read")


def test_variables_of_others_are_left_alone(home: Path) -> None:
    load(home, environ={"TURNWIRE_REQUIRE_ALL": "1", "TURNWIRE_URL": "http://localhost:4170", "PORT": "x"})


def test_everything_is_explained_once(home: Path) -> None:
    names = [each.name for each in load(home).explained()]
    assert names == [row.name for row in (*SETTINGS, *LIMITS)]


@pytest.mark.guarantee("G13")
def test_a_token_is_never_shown(home: Path) -> None:
    loaded = load(home, environ={"TURNWIRE_TOKEN": SECRET})
    assert loaded.settings.token == SECRET
    assert explained(loaded, "token").value == "set, not shown"
    assert SECRET not in repr(loaded.settings)
    assert SECRET not in refusal(home, {"no_auth": True}, {"TURNWIRE_TOKEN": SECRET})
    assert explained(load(home), "token").value == "not set"


# -- what is refused -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("toml", "words"),
    [
        ("prot = 1", "did you mean port?"),
        ("[limits]\nque_length = 1", "did you mean limits.queue_length?"),
        ("zzzzzzz = 1", "`turnwire config` lists"),
        ("limits = 1", "limits is a table"),
        ('port = "1"', "turnwire.toml: port is '1'; give a whole number from 0 to 65535"),
        ("port = true", "give a whole number"),
        ("port = 65536", "give a whole number"),
        ("page = 1", "give true or false"),
        ('log = "disk"', "give one of sqlite, memory"),
        ('agent = "x"', "in TOML as a list"),
        ("agent = []", "give the program"),
        ('allow_origin = ["*"]', "`*` and `null` are not allowed"),
        ('allow_origin = ["null"]', "`*` and `null` are not allowed"),
        ('allow_origin = ["https://a.example/"]', "without a path"),
        ('allow_host = ["a.example:80"]', "without a port"),
        ("[limits]\nqueue_length = 0", "give a whole number from 1 to 10000"),
        ("[limits]\nqueue_length = 1.5", "give a whole number"),
        ("[limits]\nheartbeat_s = nan", "give a number from 0.05 to 3600"),
        ("permission = 1", "[[permission]]"),
        ('[[permission]]\nanswer = "maybe"', "permission rule 1"),
        ("port =", "is not TOML"),
    ],
)
def test_a_wrong_file_says_where_and_what_is_allowed(home: Path, toml: str, words: str) -> None:
    said = refusal(home, toml=toml)
    assert words in said
    assert str(home / "turnwire.toml") in said


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("TURNWIRE_PROT", "1", "did you mean TURNWIRE_PORT?"),
        ("TURNWIRE_LIMIT_QUEUE_LENGTH", "1", "did you mean TURNWIRE_LIMITS_QUEUE_LENGTH?"),
        ("TURNWIRE_PORT", "http", "TURNWIRE_PORT is 'http'; give a whole number from 0 to 65535"),
        ("TURNWIRE_PAGE", "maybe", "TURNWIRE_PAGE is 'maybe'; give true or false"),
        ("TURNWIRE_AGENT", "'open", "give the program"),
        ("TURNWIRE_LIMITS_HEARTBEAT_S", "inf", "give a number from 0.05 to 3600"),
    ],
)
def test_a_wrong_variable_says_which_and_what_is_allowed(home: Path, name: str, value: str, words: str) -> None:
    assert words in refusal(home, environ={name: value})


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"port": "-1"}, "--port is '-1'; give a whole number"),
        ({"limits": ("queue_length",)}, "write --limit queue_length=NUMBER"),
        ({"limits": ("queue=1",)}, "there is no such setting"),
        ({"limits": ("ring_events=16",)}, "there is no such setting"),
        ({"limits": ("queue_length=x",)}, "--limit queue_length= is 'x'"),
    ],
)
def test_a_wrong_flag_says_which_and_what_is_allowed(home: Path, flags: dict[str, object], words: str) -> None:
    assert words in refusal(home, flags)


def test_a_wrong_value_is_refused_also_where_it_is_covered(home: Path) -> None:
    assert "turnwire.toml: port" in refusal(home, {"port": "3"}, toml="port = 70000")


def test_a_named_file_must_be_there(home: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.toml cannot be read"):
        load_settings({}, {"HOME": str(home)}, home / "none.toml")


@pytest.mark.guarantee("G13")
def test_a_file_with_a_token_must_be_private(home: Path) -> None:
    load(home, toml=f'token = "{SECRET}"')
    (home / "turnwire.toml").chmod(0o644)
    with pytest.raises(ConfigError, match="chmod 600"):
        load_settings({}, {"HOME": str(home)}, home / "turnwire.toml")


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"tls_cert": "c.pem"}, "TLS needs both"),
        ({"tls_key": "k.pem"}, "TLS needs both"),
        ({"no_auth": True, "host": "0.0.0.0"}, "--no-auth would let anybody"),
        ({"no_auth": True, "token": SECRET}, "exclude each other"),
        ({"log": "memory", "data": "d"}, "a log in memory uses no folder"),
        ({"log": "memory", "durability": "full"}, "a log in memory has no durability"),
    ],
)
@pytest.mark.guarantee("G13")
def test_nonsense_refuses_to_start_with_the_reason(home: Path, flags: dict[str, object], words: str) -> None:
    assert words in refusal(home, flags)


def test_blocking_replies_can_be_forbidden(home: Path) -> None:
    assert load(home).settings.blocking is True
    assert load(home, {"blocking": False}).settings.blocking is False


@pytest.mark.guarantee("G13")
def test_a_daemon_started_in_the_root_must_be_told_its_folders(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir("/")
    assert "started in /" in refusal(home)
    assert load(home, {"cwd": ("/",)}).settings.cwd == (Path("/"),)


# -- the page about it ---------------------------------------------------------------------------------------

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "operations.md").read_text(encoding="utf-8")


def test_every_setting_and_flag_on_the_page_exists() -> None:
    table = PAGE.split("| setting | flag | meaning |\n", 1)[1].split("\n\n", 1)[0].splitlines()[1:]
    cells = [line.strip("| ").split(" | ") for line in table]
    named = [(name, flag) for row in cells for name, flag in zip(*map(_names, row[:2]), strict=True)]
    assert len(named) > 20
    assert [each for each in named if each not in {(row.name, row.flag) for row in SETTINGS}] == []


def _names(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def test_the_file_on_the_page_can_be_loaded(home: Path) -> None:
    [toml] = re.findall(r"^```toml\n(.*?)^```$", PAGE, flags=re.MULTILINE | re.DOTALL)
    loaded = load(home, toml=toml)
    assert loaded.settings.port == 4170
    assert [rule.answer for rule in loaded.settings.permission] == [RuleAnswer.REJECT_ONCE, RuleAnswer.ALLOW_ONCE]


# -- webhooks ------------------------------------------------------------------------------------------------

HOOK_SECRET = "whsec_" + "QUJD" * 10


def hook(**members: str) -> str:
    given = {"url": '"https://ci.example:8443/secret-path"', "secret": f'"{HOOK_SECRET}"', **members}
    return "[[webhooks]]\n" + "\n".join(f"{name} = {value}" for name, value in given.items()) + "\n"


def test_a_webhook_is_shown_without_its_secret_and_its_path(home: Path) -> None:
    loaded = load(home, toml=hook())
    [entry] = loaded.settings.webhooks
    assert (entry.name, entry.key) == ("ci.example:8443", b"ABC" * 10)
    shown = explained(loaded, "webhooks").value + repr(loaded)
    assert "https://ci.example:8443 turn_complete,turn_error,permission_request" in shown
    assert HOOK_SECRET not in shown
    assert "secret-path" not in shown


@pytest.mark.parametrize(
    ("toml", "words"),
    [
        ("webhooks = 3", "webhooks are tables"),
        (f'webhooks = ["{HOOK_SECRET}"]', "webhook 1"),
        (hook(url='"ftp://a/secret-path"'), "no usable url"),
        (hook(url='"https://u:p@a/secret-path"'), "has a user"),
        (hook(url='"https://a:99999/secret-path"'), "no usable url"),
        (hook(secret='"hunter2hunter2"'), "the secret of webhook ci.example:8443 is not usable"),
        (hook(secret='"whsec_QUJD"'), "24 to 64"),
        (hook(events='["turn_end"]'), "has the event 'turn_end'"),
        (hook(events="[]"), "has no events"),
        (hook(name='"a b"'), "no usable name"),
        (hook(sercet='"hunter2hunter2"'), "sercet"),
        (hook() + hook(), "two webhooks go by"),
    ],
)
def test_a_wrong_webhook_is_refused_without_a_secret_in_the_words(home: Path, toml: str, words: str) -> None:
    said = refusal(home, toml=toml)
    assert words in said
    for secret in (HOOK_SECRET, "hunter2", "secret-path"):
        assert secret not in said


def test_a_file_with_a_webhook_must_be_private(home: Path) -> None:
    load(home, toml=hook())
    (home / "turnwire.toml").chmod(0o644)
    with pytest.raises(ConfigError, match="chmod 600"):
        load_settings({}, {"HOME": str(home)}, home / "turnwire.toml")
