"""Five clients over three transports and two versions at one session of one agent; and REST sees the same."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

import anyio
import pytest
from tests.interop.schema_check import need_schemas
from tests.server.acp.crowd import Crowd, Identity, Member, asks_about, hash_of, identity_of
from tests.server.reading import Seen, is_end, reading
from tests.support.daemons import SCRIPTED, running_daemon

pytestmark = [pytest.mark.anyio, pytest.mark.every_log]


@pytest.fixture(scope="module", autouse=True)
def schemas() -> None:
    need_schemas()


PROFILES = pytest.mark.parametrize("profile", ["v1", "v2"])


class Scene(NamedTuple):
    """Five members at one session."""

    crowd: Crowd
    session_id: str
    members: list[Member]

    @property
    def path(self) -> str:
        return f"/session/{self.session_id}"

    async def all_end(self, count: int) -> None:
        """Wait until all members have heard so many ends."""
        for each in self.members:
            await each.ends(count)

    def check(self) -> str:
        """All have seen the same, and nothing that is in no schema. Gives the hash of it."""
        for each in self.members:
            each.check()
        hashes = {each.name: hash_of(each.identities()) for each in self.members}
        assert len(set(hashes.values())) == 1, {each.name: each.identities() for each in self.members}
        return next(iter(hashes.values()))


@asynccontextmanager
async def scene(data: Path, profile: str) -> AsyncGenerator[Scene]:
    """A daemon, and five clients that are at the same session."""
    agent = (*SCRIPTED, "--profile", profile)
    async with running_daemon(data, agent=agent) as running, anyio.create_task_group() as tasks:
        crowd = Crowd(running, tasks)
        first = await crowd.over_http(1)
        session_id = next(iter(await sessions_of(first)))
        members = [
            first,
            await crowd.over_http(2, session_id),
            await crowd.over_socket(1),
            await crowd.over_socket(2),
            await crowd.over_stdio(1),
        ]
        for each in members[1:]:
            await each.join(session_id)
        yield Scene(crowd, session_id, members)
        tasks.cancel_scope.cancel()


async def sessions_of(member: Member) -> list[str]:
    listed = await member.call("session/list")
    return [each["sessionId"] for each in listed["sessions"]]


def seen_by_rest(events: list[Seen]) -> list[Identity]:
    """What a REST client has seen, as the same identities. Its end of a turn is the terminal event."""
    found: list[Identity] = []
    for each in events:
        if is_end(each):
            found.append(Identity(each.offset, f"ends {each.data['stopReason']}"))
        elif each.type == "session_update" and each.data["update"]["sessionUpdate"] != "state_update":
            what = identity_of(each.data["update"])
            found += [Identity(each.offset, what)] if what else []
    return found


@pytest.mark.requirement("R3", "R7", "R9", "R71", "R72", "R79", "G11")
@PROFILES
async def test_each_prompts_answers_and_cancels_and_all_see_the_same_order(tmp_path: Path, profile: str) -> None:
    async with scene(tmp_path / "d", profile) as here, here.crowd.running.client() as rest:
        async with reading(rest, f"{here.path}/events", **{"Last-Event-ID": "0"}) as events:
            ends = 0
            for place, member in enumerate(here.members):
                prompt = await member.prompt(here.session_id, f"think {place}\nsay 3 {place}\ntool t{place}")
                assert "result" in await member.answer(prompt)
                # Another one answers what this one's turn asks; all were asked.
                other = here.members[(place + 1) % 5]
                await member.prompt(here.session_id, f"ask a{place} allow_once,reject_once")
                for each in here.members:
                    await each.until(lambda heard, named=f"a{place}": asks_about(heard, named))
                await other.permit(f"a{place}")
                # And a third one cancels.
                await member.prompt(here.session_id, f"say 1 waiting-{place}\nnever")
                third = here.members[(place + 2) % 5]
                await third.says(f"waiting-{place}")
                await third.cancel(here.session_id)
                ends += 3
                await here.all_end(ends)
            blocks = [{"type": "text", "text": "say 1 over-rest"}]
            assert (await rest.post(f"{here.path}/prompt", json={"prompt": blocks})).status_code == 202
            await here.all_end(ends + 1)
            told = [each for _ in range(ends + 1) for each in await events.until(is_end)]
        stops = [each.what for each in here.members[0].identities() if each.what.startswith("ends")]
        assert stops == ["ends end_turn", "ends end_turn", "ends cancelled"] * 5 + ["ends end_turn"]
        assert "selected allow_once" in " ".join(each.what for each in here.members[4].identities())
        everything = here.check()
        assert hash_of(seen_by_rest(told)) == everything


@pytest.mark.requirement("R74", "G8", "G9")
@PROFILES
async def test_a_client_that_leaves_changes_nothing_and_finds_everything_when_it_is_back(
    tmp_path: Path, profile: str
) -> None:
    async with scene(tmp_path / "d", profile) as here:
        for count, leaver in enumerate((2, 4, 0), 1):
            # It leaves in the middle of a turn that it asked for.
            gone, gate = here.members[leaver], tmp_path / f"gate-{leaver}"
            await gone.prompt(here.session_id, f"say 1 before-{leaver}\ngate {gate}\nsay 1 after-{leaver}")
            for each in here.members:
                await each.says(f"before-{leaver}")
            await gone.leave()
            here.members.remove(gone)
            gate.touch()
            await here.all_end(count)
            for each in here.members:
                await each.says(f"after-{leaver}")
            here.check()
            here.members.insert(leaver, await back(here, gone.name))
            await here.all_end(count)
        here.check()


async def back(here: Scene, name: str) -> Member:
    """The same kind of client once more, with the history."""
    transport, version = name.split("-")
    match transport:
        case "http":
            member = await here.crowd.over_http(int(version), here.session_id)
        case "socket":
            member = await here.crowd.over_socket(int(version))
        case _:
            member = await here.crowd.over_stdio(int(version))
    await member.join(here.session_id)
    return member
