"""deploy/Dockerfile and the compose files, as far as testable without Docker: the files they name exist.

The command of an image is run with its settings, and passes the image's health check.
"""

from __future__ import annotations

import fnmatch
import json
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml
from tests.cli.rig import environment, served

from turnwire.log.address import check_database
from turnwire.server.access.origins import check_cluster_bind, cluster_address, cluster_url
from turnwire.server.settings.declared import Settings
from turnwire_testing.patience import WAIT_S

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
INSTRUCTIONS = {
    *("FROM", "WORKDIR", "COPY", "RUN", "USER", "VOLUME", "ENV", "EXPOSE", "STOPSIGNAL", "HEALTHCHECK"),
    *("ENTRYPOINT", "CMD"),
}
SETTINGS = {f"TURNWIRE_{name.upper()}" for name in Settings.__dataclass_fields__}


class Instruction(NamedTuple):
    name: str
    rest: str


def instructions() -> list[Instruction]:
    """The Dockerfile, with its continued lines joined."""
    text = re.sub(r"^#.*\n", "", (DEPLOY / "Dockerfile").read_text(encoding="utf-8"), flags=re.MULTILINE)
    lines = re.sub(r"\\\n", " ", text).splitlines()
    return [Instruction(*line.split(maxsplit=1)) for line in lines if line.strip()]


def rest_of(name: str) -> list[str]:
    return [each.rest for each in instructions() if each.name == name]


def image_environment() -> dict[str, str]:
    pairs = [word.partition("=") for rest in rest_of("ENV") for word in shlex.split(rest)]
    return {name: value for name, _, value in pairs}


def copied() -> list[str]:
    """Return the files that are copied out of the repository."""
    found = [shlex.split(rest) for rest in rest_of("COPY")]
    return [source for words in found if not words[0].startswith("--") for source in words[:-1]]


def is_ignored(path: str) -> bool:
    ignored = False
    for line in (DEPLOY / "Dockerfile.dockerignore").read_text(encoding="utf-8").splitlines():
        pattern = line.removeprefix("!")
        if line and not line.startswith("#") and (fnmatch.fnmatch(path, pattern) or path.startswith(f"{pattern}/")):
            ignored = not line.startswith("!")
    return ignored


def compose(name: str = "compose.yaml") -> dict[str, Any]:
    return yaml.safe_load((DEPLOY / name).read_text(encoding="utf-8"))


def locked(text: str) -> dict[str, str]:
    """The packages of a lock file, each with its version and its hashes."""
    entries = re.findall(r"^([a-z0-9-]+)(==.+ \\\n(?: +--hash=sha256:[0-9a-f]{64}(?: \\)?\n)+)", text, re.MULTILINE)
    assert len(entries) == len(re.findall(r"^\S", text, re.MULTILINE)), "an entry has no hashes"
    return dict(entries)


def lock_file(name: str) -> dict[str, str]:
    return locked((ROOT / name).read_text(encoding="utf-8"))


def test_the_dockerfile_says_nothing_that_docker_does_not_know() -> None:
    assert {each.name for each in instructions()} <= INSTRUCTIONS
    assert instructions()[0].name == "FROM"
    for name in ("VOLUME", "ENTRYPOINT", "CMD"):
        assert all(isinstance(json.loads(rest), list) for rest in rest_of(name)), name


@pytest.mark.parametrize("source", copied())
def test_what_an_image_copies_is_there_and_reaches_the_builder(source: str) -> None:
    assert (ROOT / source).exists()
    assert not is_ignored(source)


def test_what_an_image_does_not_need_stays_out_of_the_build() -> None:
    assert [path for path in (".git", ".venv", "tests", "docs/cli.md") if not is_ignored(path)] == []


def test_a_wheel_can_be_made_of_what_is_copied() -> None:
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    built_from = re.findall(r'^(?:readme = |license-files = \[)"([^"]+)"', project, flags=re.MULTILINE)
    needed = [*built_from, "pyproject.toml", "src"]
    assert set(needed) <= set(copied())


def test_the_image_has_the_driver_for_postgresql_and_everything_else_that_is_needed() -> None:
    [install] = [rest for rest in rest_of("RUN") if "--require-hashes" in rest]
    files = re.findall(r"-r /tmp/(\S+)", install)
    assert set(files) <= set(copied())
    installed = {name: entry for each in files for name, entry in lock_file(each).items()}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = [*project["dependencies"], *project["optional-dependencies"]["postgres"]]
    assert {re.split(r"[^a-z0-9-]", each)[0] for each in wanted} <= set(installed)
    # The tested versions are the shipped ones.
    tested = lock_file("requirements-dev.lock") | lock_file("requirements.lock")
    assert {name: tested[name] for name in installed} == installed


def test_every_setting_of_the_image_is_one_of_ours() -> None:
    assert set(image_environment()) <= SETTINGS


def test_the_image_does_not_run_as_root_and_keeps_its_log_in_a_volume() -> None:
    [user] = rest_of("USER")
    assert any(f"useradd --system --uid 10001 --create-home {user}" in rest for rest in rest_of("RUN"))
    volumes = json.loads(rest_of("VOLUME")[0])
    assert {image_environment()["TURNWIRE_DATA"], image_environment()["TURNWIRE_CWD"]} == set(volumes)


def test_what_the_image_starts_runs_and_its_health_check_finds_it(tmp_path: Path) -> None:
    [entry], [command] = rest_of("ENTRYPOINT"), rest_of("CMD")
    assert [*json.loads(entry), *json.loads(command)] == ["turnwire", "serve"]
    (tmp_path / "work").mkdir()
    inside = {name: value.replace("/data", str(tmp_path / "data")) for name, value in image_environment().items()}
    # As in the image, but for the folders, and for the address: a test is for this machine only.
    inside |= {"TURNWIRE_CWD": str(tmp_path / "work"), "TURNWIRE_HOST": "127.0.0.1", "TURNWIRE_TOKEN": "a" * 32}
    [check] = rest_of("HEALTHCHECK")
    words: list[str] = json.loads(check[check.index("CMD") + len("CMD") :])
    with served(tmp_path, builtin=True, **inside) as daemon:
        port = daemon.url.rpartition(":")[2]
        env = environment(tmp_path, TURNWIRE_PORT=port)

        def healthy() -> int:
            return subprocess.run(
                [sys.executable, *words[1:]], env=env, timeout=WAIT_S, check=False, capture_output=True
            ).returncode

        assert words[0] == "python"
        assert healthy() == 0
        assert "Hello" in daemon.said(daemon.session(cwd=str(tmp_path / "work")), "hello")
        assert daemon.stop() == 0
        assert healthy() != 0


def test_compose_builds_this_image_and_keeps_its_volumes() -> None:
    [service] = compose()["services"].values()
    build = service["build"]
    assert (DEPLOY / build["context"] / build["dockerfile"]).samefile(DEPLOY / "Dockerfile")
    mounted = dict(each.split(":") for each in service["volumes"])
    assert set(mounted.values()) == set(json.loads(rest_of("VOLUME")[0]))
    assert set(mounted) == set(compose()["volumes"])


def test_compose_waits_for_longer_than_a_drain_and_opens_the_port_to_this_machine_only() -> None:
    [service] = compose()["services"].values()
    assert int(service["stop_grace_period"].removesuffix("s")) > 30
    assert service["ports"] == [f"127.0.0.1:4170:{image_environment()['TURNWIRE_PORT']}"]
    assert service["environment"]["TURNWIRE_TOKEN"].startswith("${TURNWIRE_TOKEN:?"), (
        "it starts with no token of its own"
    )


# -- several nodes -------------------------------------------------------------------------------------------


def nodes() -> dict[str, dict[str, Any]]:
    services: dict[str, dict[str, Any]] = compose("compose-cluster.yaml")["services"]
    return {name: each for name, each in services.items() if name.startswith("node-")}


def test_the_nodes_of_a_cluster_are_this_image_with_settings_that_it_takes() -> None:
    assert len(nodes()) == 2
    for name, each in nodes().items():
        assert (DEPLOY / each["build"]["context"] / each["build"]["dockerfile"]).samefile(DEPLOY / "Dockerfile")
        given: dict[str, str] = each["environment"]
        assert {key for key in given if key.startswith("TURNWIRE_")} <= SETTINGS
        assert check_database(given["TURNWIRE_LOG"])
        url = cluster_url(given["TURNWIRE_CLUSTER_URL"], given["TURNWIRE_CLUSTER_LISTEN"], has_tls=False)
        assert url == f"http://{name}:4180"
        host, _ = cluster_address(given["TURNWIRE_CLUSTER_LISTEN"])
        check_cluster_bind(host, has_tls=False, plain=given["TURNWIRE_CLUSTER_PLAIN"] == "true")
        assert given["TURNWIRE_TOKEN"].startswith("${TURNWIRE_TOKEN:?")
    for own in ("TURNWIRE_NODE", "TURNWIRE_CLUSTER_URL"):
        assert len({each["environment"][own] for each in nodes().values()}) == 2, f"both have one {own}"


def test_nodes_of_a_cluster_share_their_work_and_nothing_else_of_their_folders() -> None:
    assert len({each["environment"]["TURNWIRE_PLACE"] for each in nodes().values()}) == 1
    volumes: list[list[str]] = [each["volumes"] for each in nodes().values()]
    first, second = ({place: name for name, place in (each.split(":") for each in mine)} for mine in volumes)
    assert first["/work"] == second["/work"]
    assert first["/data"] != second["/data"]
    assert {*first.values(), *second.values()} <= set(compose("compose-cluster.yaml")["volumes"])


def test_a_node_that_was_drained_stays_away_and_one_that_was_lost_comes_back() -> None:
    for each in nodes().values():
        assert each["restart"] == "on-failure", "a drained node ends with 0, a lost one with 75"
        assert int(each["stop_grace_period"].removesuffix("s")) > 30


def test_the_proxy_of_a_cluster_has_its_file_knows_every_node_and_is_for_this_machine_only() -> None:
    front = compose("compose-cluster.yaml")["services"]["front"]
    [mounted] = front["volumes"]
    site = (DEPLOY / mounted.split(":")[0]).read_text(encoding="utf-8")
    upstreams = re.findall(r"^ +server ([^;{]+);", site, flags=re.MULTILINE)
    assert upstreams == [f"{name}:{image_environment()['TURNWIRE_PORT']}" for name in nodes()]
    assert front["ports"] == ["127.0.0.1:4170:80"]
    assert sorted(front["depends_on"]) == sorted(nodes())
