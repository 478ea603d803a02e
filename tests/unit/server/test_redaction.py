"""The redaction of a recording by each rule, and the parts that stay byte for byte."""

from __future__ import annotations

import json
from typing import Any

import pytest

from turnwire.server.telemetry.redaction import TOKEN_FORMS, Redactor, Rule

ENVIRONMENT = {"HOME": "/home/ann", "PATH": "/usr/bin", "MODEL_KEY": "opensesame", "WORK": "/srv/work", "N": "12"}


def shown(value: Any, *rules: Rule) -> Any:
    line = json.dumps(value, separators=(",", ":")).encode()
    return json.loads(Redactor(rules or tuple(Rule), ENVIRONMENT).line(line))


@pytest.mark.parametrize(
    ("rule", "text", "left"),
    [
        (Rule.TOKEN, "use sk-ant-api03-abcdefghijklmnop now", "use *** now"),
        (Rule.TOKEN, "ghp_abcdefghijklmnopqrst", "***"),
        (Rule.TOKEN, "with bearer abc.def", "with bearer ***"),
        (Rule.TOKEN, "tw_abcdef", "tw_***"),
        (Rule.TOKEN, "postgresql://ann:opensesame@db/x", "postgresql://***@db/x"),
        (Rule.TOKEN, "-----BEGIN PRIVATE KEY-----\nMII\n-----END PRIVATE KEY-----", "***"),
        (Rule.ENV, 'the "opensesame" of MODEL_KEY', 'the "***" of MODEL_KEY'),
        (Rule.ENV, "12 files in /srv/work", "12 files in /srv/work"),
        (Rule.HOME, "/home/ann/code and /home/bob", "/home/user/code and /home/user"),
        (Rule.HOME, "/home/annette", "/home/user"),
        (Rule.HOME, "/srv/root/x", "/srv/root/x"),
        (Rule.EMAIL, "from Ann <ann.b@mail.example.com>", "from Ann <user@example.org>"),
        (Rule.EMAIL, "@decorator, a@b", "@decorator, a@b"),
    ],
)
def test_a_text_loses_what_its_rule_is_about(rule: Rule, text: str, left: str) -> None:
    assert shown({"params": {"text": text}}, rule) == {"params": {"text": left}}
    others = [each for each in Rule if each is not rule]
    assert left == text or shown({"text": text}, *others) != {"text": left}


@pytest.mark.parametrize(
    "name", ["apiKey", "api_key", "password", "client_secret", "access_token", "Authorization"]
)
def test_a_member_that_is_named_as_a_secret_is_hidden(name: str) -> None:
    assert shown({"a": [{name: "x"}]}, Rule.SECRET) == {"a": [{name: "***"}]}
    assert shown({"a": [{"name": name, "value": "x"}]}, Rule.SECRET) == {"a": [{"name": name, "value": "***"}]}


SAMPLES = {
    "Groq": "gsk_",
    "xAI": "xai-",
    "Perplexity": "pplx-",
    "Replicate": "r8_",
    "Together": "tgp_v1_",
    "Fireworks": "fw_",
    "Hugging Face": "hf_",
    "Google": "AIza",
    "GitHub": "github_pat_",
    "GitLab": "glpat-",
    "Bitbucket, Atlassian": "ATBB",
    "npm": "npm_",
    "PyPI": "pypi-",
    "Docker": "dckr_pat_",
    "Slack": "xoxb-",
    "Stripe": "whsec_",
    "Vault": "hvs.",
    "AWS": "AKIA",
}


@pytest.mark.parametrize("issuer", SAMPLES)
def test_keys_of_providers_are_found_by_their_form(issuer: str) -> None:
    key = SAMPLES[issuer] + ("ABCDEFGH12345678" if issuer == "AWS" else "AbCdEfGh12345678AbCdEfGh")
    assert issuer in TOKEN_FORMS
    assert shown({"text": f"it is {key}, use it"}, Rule.TOKEN) == {"text": "it is ***, use it"}


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("run x --api-key zebra --fast", "run x --api-key *** --fast"),
        ("run x --api-key='a b' y", "run x --api-key=*** y"),
        ("run x --token --fast", "run x --token --fast"),
        ("export DB_PASSWORD=zebra; ls", "export DB_PASSWORD=***; ls"),
        ("get https://h/x?api_key=zebra&n=1", "get https://h/x?api_key=***&n=1"),
        ("get https://h/x?n=1&key=zebra", "get https://h/x?n=1&key=***"),
        ("max_tokens=9 key=5 --keys 3 a=b", "max_tokens=9 key=5 --keys 3 a=b"),
    ],
)
def test_a_text_loses_the_values_of_what_is_named_as_a_secret(text: str, left: str) -> None:
    assert shown({"text": text}, Rule.SECRET) == {"text": left}


def test_arguments_and_addresses_of_mcp_servers_lose_their_secrets() -> None:
    redactor = Redactor((Rule.SECRET,), ENVIRONMENT)
    servers = [
        {"name": "a", "command": "x", "args": ["--api-key", "zebra-nine", "--port", "80", "--token=yak-seven"]},
        {"name": "b", "type": "http", "url": "https://h/mcp?api_key=yak-seven"},
    ]
    told = json.loads(redactor.line(json.dumps({"mcpServers": servers}).encode()))["mcpServers"]
    assert told[0]["args"] == ["--api-key", "***", "--port", "80", "--token=***"]
    assert told[1]["url"] == "https://h/mcp?api_key=***"
    assert redactor.line(b'{"text":"zebra-nine"}') == b'{"text":"***"}'


def test_counts_of_tokens_are_no_secrets() -> None:
    usage = {"totalTokens": 5, "inputTokens": "3", "used_tokens": "4", "tokens": "9"}
    assert shown(usage) == usage


@pytest.mark.parametrize("name", ["env", "headers"])
def test_variables_and_headers_of_servers_keep_their_names_only(name: str) -> None:
    server = {"name": "search", "command": "x", name: [{"name": "REGION", "value": "eu"}]}
    assert shown({"mcpServers": [server]}, Rule.ENV) == {
        "mcpServers": [{"name": "search", "command": "x", name: [{"name": "REGION", "value": "***"}]}]
    }
    assert shown({name: {"REGION": "eu"}}, Rule.ENV) == {name: {"REGION": "***"}}


@pytest.mark.parametrize(
    "told",
    [
        {"apiKey": "zebra-nine"},
        {"env": [{"name": "MODEL", "value": "zebra-nine"}]},
        {"headers": [{"name": "Authorization", "value": "Bearer zebra-nine"}]},
    ],
)
def test_what_was_hidden_once_is_hidden_wherever_it_stands_later(told: Any) -> None:
    redactor = Redactor((Rule.SECRET, Rule.ENV), ENVIRONMENT)
    assert b"zebra-nine" in redactor.line(b'{"text":"a zebra-nine b"}')
    redactor.line(json.dumps(told).encode())
    assert redactor.line(b'{"text":"a zebra-nine b"}') == b'{"text":"a *** b"}'


def test_what_is_harmless_or_a_path_is_not_looked_for_elsewhere() -> None:
    redactor = Redactor(tuple(Rule), ENVIRONMENT)
    env = [
        {"name": "LANG", "value": "en_US.UTF-8"},
        {"name": "WHERE", "value": "/opt/x"},
        {"name": "N", "value": "1"},
    ]
    redactor.line(json.dumps({"env": env}).encode())
    assert redactor.line(b'{"text":"en_US.UTF-8 /opt/x 1"}') == b'{"text":"en_US.UTF-8 /opt/x 1"}'


def test_an_escape_hides_nothing() -> None:
    line = b'{"text":"\\u006fpensesame"}'
    assert b"pensesame" not in Redactor([Rule.ENV], ENVIRONMENT).line(line)


def test_a_line_that_is_no_message_is_redacted_as_text() -> None:
    assert Redactor([Rule.ENV], ENVIRONMENT).line(b"key: opensesame") == b"key: ***"


def test_what_holds_nothing_of_the_kind_stays_byte_for_byte() -> None:
    line = b'{"jsonrpc" : "2.0","id":1.0,"result":{"a":1.50,"a":2}}'
    assert Redactor(tuple(Rule), ENVIRONMENT).line(line) == line
    assert Redactor((), ENVIRONMENT).line(b'{"a":"opensesame"}') == b'{"a":"opensesame"}'
