"""The part of the environment that an agent gets, and the part that may be shown."""

from __future__ import annotations

import pytest

from turnwire.errors import ConfigError
from turnwire.hosting.environment import agent_environment, redacted, secrets

OWN = {
    "PATH": "/bin",
    "HOME": "/somewhere",
    "LC_ALL": "C.UTF-8",
    "XDG_STATE_HOME": "/state",
    "HTTPS_PROXY": "http://me:secret@proxy",
    "NODE_AUTH_TOKEN": "npm-token",
    "MODEL_API_KEY": "sk-123456",
    "TURNWIRE_TOKEN": "the daemon's own",
    "PYTHONPATH": "/daemon",
}


def test_only_what_is_listed_passes() -> None:
    assert sorted(agent_environment(OWN)) == ["HOME", "HTTPS_PROXY", "LC_ALL", "PATH", "XDG_STATE_HOME"]


def test_names_pass_when_asked_for_and_unset_ones_stay_unset() -> None:
    given = agent_environment(OWN, pass_through=["MODEL_API_KEY", "NOT_SET"])
    assert given["MODEL_API_KEY"] == "sk-123456"
    assert "NOT_SET" not in given


@pytest.mark.guarantee("G13")
def test_everything_passes_where_the_agent_is_its_users_own_but_for_what_is_the_daemons() -> None:
    given = agent_environment(OWN, everything=True)
    assert given == {name: value for name, value in OWN.items() if name != "TURNWIRE_TOKEN"}


def test_additions_win_and_keep_equals_signs_in_their_value() -> None:
    given = agent_environment(OWN, additions=["PATH=/mine", "OPTIONS=a=b", "EMPTY="], pass_through=["PATH"])
    assert (given["PATH"], given["OPTIONS"], given["EMPTY"]) == ("/mine", "a=b", "")


@pytest.mark.guarantee("G13")
@pytest.mark.parametrize("name", ["TURNWIRE_TOKEN", "turnwire_token"])
def test_what_is_the_daemons_own_cannot_be_passed_on(name: str) -> None:
    with pytest.raises(ConfigError, match="belongs to the daemon"):
        agent_environment(OWN, pass_through=[name])
    with pytest.raises(ConfigError, match="belongs to the daemon"):
        agent_environment(OWN, additions=[f"{name}=x"])


@pytest.mark.parametrize("addition", ["sk-a-secret", "=x", "A B=x", "1A=x", "A=\0"])
def test_an_addition_that_is_none_is_refused(addition: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        agent_environment(OWN, additions=[addition])
    assert "sk-a-secret" not in str(refusal.value)


@pytest.mark.guarantee("G13")
def test_names_are_shown_and_values_are_not() -> None:
    assert redacted({"B": "secret", "A": "secret"}) == ["A", "B"]


def test_every_value_is_a_secret_unless_its_name_is_known_as_harmless() -> None:
    env = {**OWN, "FLAG": "1", "LONGER": "http://me:secret@proxy/and/more"}
    assert secrets(env) == [
        b"http://me:secret@proxy/and/more",
        b"http://me:secret@proxy",
        b"the daemon's own",
        b"npm-token",
        b"sk-123456",
        b"/daemon",
    ]


def test_where_a_shell_was_is_no_secret_so_that_a_traceback_can_be_read() -> None:
    env = {"PWD": "/srv/project", "OLDPWD": "/srv/other", "_": "/usr/bin/env", "KEY": "very-secret"}
    assert secrets(env) == [b"very-secret"]
