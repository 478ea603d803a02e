"""The table of paths finds what Starlette's router finds, route by route, in the same order."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
from starlette.routing import Match, Mount, Route

from turnwire.server.acp.client_state import AGENT_PATH, PATH
from turnwire.server.paths import PathTable, own_path
from turnwire.server.routes.table import ENDPOINTS

TEMPLATES = list(dict.fromkeys([*(each.path for each in ENDPOINTS), PATH, AGENT_PATH]))
WORDS = (
    "",
    "session",
    "s_1",
    "turns",
    "current",
    "workspace",
    "sessions",
    "prompt",
    "a b",
    "ä",
    "{session_id}",
    ".",
)
ODD = (
    *("", "/", "//", "///", "session", "/session/", "//session", "/session//", "/session/s_1/prompt/"),
    *("/session/s_1//prompt", "/session/s\n1/prompt", "/workspace//sessions", "/workspace/sessions"),
    *(
        "/workspace/a/b//c/sessions",
        "/workspace/a\nb/sessions",
        "/workspace/sessions/sessions",
        "/docs/",
        "/Health",
    ),
    *("/health/", "/health?", "/health;a", "/assets/", "/assets/a/b", "/acp/", "/acp/x/y", "/session/%2F/prompt"),
)


class _Nothing:
    async def __call__(self, *args: Any) -> None: ...


def _table() -> PathTable[str]:
    table = PathTable[str]()
    for each in TEMPLATES:
        table.add(each, each)
    return table


ROUTES = [Route(each, _Nothing()) for each in TEMPLATES]
TABLE = _table()


def _scanned(path: str) -> tuple[str, dict[str, Any]] | None:
    """What the router would take: the first that matches."""
    scope = {"type": "http", "method": "GET", "path": path, "root_path": ""}
    for route in ROUTES:
        match, child = route.matches(scope)
        if match is Match.FULL:
            return route.path, child["path_params"]
    return None


def _made(template: str) -> list[str]:
    """Paths around a template: as it is meant, with a slash more or less, with a segment more, empty or encoded."""
    plain = template.replace("{cwd_or_id:path}", "some/folder")
    path = "/".join("x1" if each.startswith("{") else each for each in plain.split("/"))
    segments = path.split("/")
    emptied = ["/".join([*segments[:at], "", *segments[at + 1 :]]) for at in range(len(segments))]
    doubled = ["/".join([*segments[:at], "", *segments[at:]]) for at in range(len(segments))]
    return [path, template, path + "/", path[:-1], path[1:], path.upper(), f"{path}/more", *emptied, *doubled]


@pytest.mark.parametrize("path", sorted({made for each in TEMPLATES for made in _made(each)} | set(ODD)))
def test_what_is_found_around_each_template_is_what_a_scan_finds(path: str) -> None:
    found = TABLE.find(path)
    assert (None if found is None else (found.value, found.params)) == _scanned(path)


def test_the_same_holds_for_all_paths_of_some_words() -> None:
    for size in range(1, 5):
        for words in product(WORDS, repeat=size):
            path = "/" + "/".join(words)
            found = TABLE.find(path)
            assert (None if found is None else (found.value, found.params)) == _scanned(path), path


def test_a_line_end_behind_a_path_makes_it_another_one() -> None:
    assert _scanned("/health\n") is not None, "a pattern overlooks it"
    assert TABLE.find("/health\n") is None


def test_the_first_of_two_templates_that_fit_is_found() -> None:
    table = PathTable[int]()
    for number, template in enumerate(["/a/{x}", "/a/b", "/{y}/c", "/a/c", "/{z}/c", "/a/{x:path}/d", "/a/{x}/d"]):
        table.add(template, number)
    assert [table.find(each) for each in ("/a/b", "/a/c", "/b/c", "/a/e/d")] == [
        (0, {"x": "b"}),
        (0, {"x": "c"}),
        (2, {"y": "b"}),
        (5, {"x": "e"}),
    ]


@pytest.mark.parametrize(
    "path", ["/team", "/team/", "/team/health", "/teams/health", "/health", "/team/team/health"]
)
def test_below_a_mount_the_path_is_what_starlette_takes_it_for(path: str) -> None:
    scope: dict[str, Any] = {"type": "http", "method": "GET", "path": path, "root_path": ""}
    match, child = Mount("/team", app=_Nothing()).matches(scope)
    below = {**scope, **(child if match is Match.FULL else {"root_path": "/team"})}
    is_found = any(each.matches(below)[0] is Match.FULL for each in ROUTES)
    assert (TABLE.find(own_path(below)) is not None) == is_found
