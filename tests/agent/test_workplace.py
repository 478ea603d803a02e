"""Files and commands for an agent's author: its own inside the session's directories, the client's when offered."""

from __future__ import annotations

import base64
import os
from pathlib import Path

import anyio
import pytest
from tests.agent.bare import NOTHING, bare

from turnwire.agent import Agent, Turn, workplace
from turnwire.agent.own_workplace import OwnWorkplace
from turnwire.errors import ConfigError, RequestRefused
from turnwire_testing.patience import WAIT_S
from turnwire_testing.scripted.client import BareClient, prompt_params

pytestmark = pytest.mark.anyio


@pytest.fixture
def cwd(tmp_path: Path) -> Path:
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "notes.txt").write_text("one\ntwo\nthree\n")
    (tmp_path / "secret.txt").write_text("secret")
    (folder / "way-out").symlink_to(tmp_path)
    return folder


@pytest.fixture
def own(cwd: Path) -> OwnWorkplace:
    return OwnWorkplace(str(cwd))


async def ran(own: OwnWorkplace, cwd: Path, command: str, **env: str) -> str:
    with anyio.fail_after(WAIT_S):
        return (await own.run(command, (), cwd=str(cwd), env=env, output_bytes=1000)).output


async def test_a_file_is_read_whole_or_in_lines_and_written_whole(own: OwnWorkplace, cwd: Path) -> None:
    assert await own.read_file(f"{cwd}/notes.txt") == "one\ntwo\nthree\n"
    assert await own.read_file(f"{cwd}/notes.txt", 2, 1) == "two\n"
    await own.write_file(f"{cwd}/new/deep.txt", "text")
    assert await own.read_file(f"{cwd}/new/deep.txt") == "text"


@pytest.mark.parametrize("path", ["../secret.txt", "way-out/secret.txt", "/etc/passwd"])
async def test_nothing_outside_is_read_written_or_run_in(own: OwnWorkplace, cwd: Path, path: str) -> None:
    whole = os.path.join(cwd, path)
    with pytest.raises(RequestRefused, match="outside"):
        await own.read_file(whole)
    with pytest.raises(RequestRefused, match="outside"):
        await own.write_file(whole, "mine")
    with pytest.raises(RequestRefused, match="outside"):
        await own.run("pwd", (), cwd=os.path.dirname(whole), env={}, output_bytes=100)


async def test_a_command_gives_both_streams_its_end_and_its_directory(own: OwnWorkplace, cwd: Path) -> None:
    done = await own.run("sh", ("-c", "pwd; echo no >&2; exit 3"), cwd=str(cwd), env={}, output_bytes=1000)
    assert (done.output, done.exit_code, done.signal, done.ok) == (f"{cwd}\nno\n", 3, None, False)
    killed = await own.run("kill -9 $$", (), cwd=str(cwd), env={}, output_bytes=1000)
    assert (killed.exit_code, killed.signal) == (None, "SIGKILL")


async def test_a_line_for_a_shell_needs_no_arguments(own: OwnWorkplace, cwd: Path) -> None:
    assert await ran(own, cwd, "echo a && echo b | tr b c") == "a\nc\n"


async def test_a_command_has_its_author_s_variables_and_not_the_agent_s_secrets(
    own: OwnWorkplace, cwd: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOME_API_KEY", "hidden")
    assert await ran(own, cwd, "echo $SOME_API_KEY$GIVEN", GIVEN="given") == "given\n"
    with pytest.raises(ConfigError, match="letters, digits"):
        await ran(own, cwd, "true", **{"a b": "c"})


async def test_the_newest_output_is_kept(own: OwnWorkplace, cwd: Path) -> None:
    done = await own.run("seq 1 2000", (), cwd=str(cwd), env={}, output_bytes=100)
    assert done.truncated
    assert done.output.endswith("1999\n2000\n")
    assert len(done.output) <= 100


@pytest.mark.parametrize("command", ["no-such-program", "./notes.txt"])
async def test_what_cannot_be_started_is_refused_with_what_to_do(
    own: OwnWorkplace, cwd: Path, command: str
) -> None:
    with pytest.raises(RequestRefused, match="check its"):
        await ran(own, cwd, command)


async def test_output_is_heard_while_the_command_runs(own: OwnWorkplace, cwd: Path) -> None:
    os.mkfifo(cwd / "go")
    heard: list[str] = []

    async def hear(text: str) -> None:
        heard.append(text)
        if heard == ["first\n"]:
            # The command may continue only now, so the first word came from the running command.
            async with await anyio.open_file(cwd / "go", "w") as file:
                await file.write("go\n")

    with anyio.fail_after(WAIT_S):
        line = "echo first; read word < go; echo then $word"
        done = await own.run(line, (), cwd=str(cwd), env={}, output_bytes=1000, heard=hear)
    assert "".join(heard) == done.output == "first\nthen go\n"


async def test_whoever_hears_slowly_hears_the_end_and_that_something_is_missing(
    own: OwnWorkplace, cwd: Path
) -> None:
    os.mkfifo(cwd / "over")
    heard: list[str] = []
    goes_on = anyio.Event()

    async def hear(text: str) -> None:
        heard.append(text)
        await goes_on.wait()

    with anyio.fail_after(WAIT_S):
        async with anyio.create_task_group() as tasks:

            async def run() -> None:
                await own.run(
                    "echo a; seq 1 5000; echo > over", (), cwd=str(cwd), env={}, output_bytes=50, heard=hear
                )

            tasks.start_soon(run)
            async with await anyio.open_file(cwd / "over") as file:
                await file.read()
            goes_on.set()
    assert heard[-1].endswith("5000\n")
    assert any("[...]" in each for each in heard)


async def test_a_cancelled_command_is_killed_with_all_that_it_started(own: OwnWorkplace, cwd: Path) -> None:
    started = anyio.Event()
    pids: list[int] = []

    async def hear(text: str) -> None:
        pids.extend(map(int, text.split()))
        started.set()

    with anyio.fail_after(WAIT_S):
        async with anyio.create_task_group() as tasks:

            async def run() -> None:
                line = "sleep 600 & echo $!; wait"
                await own.run(line, (), cwd=str(cwd), env={}, output_bytes=100, heard=hear)

            tasks.start_soon(run)
            await started.wait()
            tasks.cancel_scope.cancel()
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


# -- in a turn, with a client ----------------------------------------------------------------------------------


async def play(turn: Turn) -> None:
    """Execute the prompt's command."""
    match turn.text.split():
        case ["read"]:
            turn.say(await turn.read_file("notes.txt", 2, 1))
        case ["write"]:
            await turn.write_file("sub/new.txt", "text")
        case ["outside"]:
            try:
                await turn.read_file("../secret.txt")
            except RequestRefused as refused:
                turn.say(refused.reason)
        case ["run", *line]:
            try:
                async with turn.tool("Run", kind="execute") as call:
                    done = await turn.run(" ".join(line), call=call)
                turn.say(f"{done.exit_code} {done.output}")
            except RequestRefused as refused:
                turn.say(refused.reason)
        case _:
            raise AssertionError(turn.text)


def agent() -> Agent:
    made = Agent("worker")
    made.prompt(play)
    return made


def asked(client: BareClient) -> list[str]:
    """Return the requests to the client, in order."""
    return [each["method"] for each in client.seen if "id" in each and "method" in each]


def shown(client: BareClient) -> list[str]:
    """The content that tool calls of a v1 agent showed, as it changed."""
    changes = [each["content"] for each in client.updates() if "toolCallId" in each and each.get("content")]
    return [item["content"]["text"] if item["type"] == "content" else item["type"] for [item] in changes]


async def test_the_files_of_a_client_that_offers_them_are_its_own(cwd: Path) -> None:
    answers = {"fs/read_text_file": {"content": "unsaved\n"}, "fs/write_text_file": {}}
    async with bare(agent(), answers) as client:
        await client.initialize()
        session = await client.new_session(str(cwd))
        await client.prompt(session, "read")
        await client.prompt(session, "write")
    assert client.text() == "unsaved\n"
    read, written = [each["params"] for each in client.seen if each.get("method", "").startswith("fs/")]
    assert read == {"sessionId": session, "path": f"{cwd}/notes.txt", "line": 2, "limit": 1}
    assert written == {"sessionId": session, "path": f"{cwd}/sub/new.txt", "content": "text"}
    assert "sub" not in os.listdir(cwd)


@pytest.mark.parametrize("version", [1, 2])
async def test_without_that_files_are_those_of_this_machine(cwd: Path, version: int) -> None:
    async with bare(agent()) as client:
        await client.initialize(version, NOTHING if version == 1 else None)
        session = await client.new_session(str(cwd))
        await client.prompt(session, "read")
        await client.prompt(session, "write")
        await client.prompt(session, "outside")
    assert (client.text(), asked(client)) == ("two\noutside_roots", [])
    assert (cwd / "sub" / "new.txt").read_text() == "text"


async def test_a_command_runs_in_the_terminal_of_a_client_that_offers_one(cwd: Path) -> None:
    answers = {
        "terminal/create": {"terminalId": "t1"},
        "terminal/wait_for_exit": {"exitCode": 7},
        "terminal/output": {"output": "theirs", "truncated": False},
        "terminal/release": {},
    }
    async with bare(agent(), answers) as client:
        await client.initialize()
        await client.prompt(await client.new_session(str(cwd)), "run make -j")
    assert asked(client) == [*answers]
    created = next(each["params"] for each in client.seen if each.get("method") == "terminal/create")
    assert (created["command"], created["args"], created["cwd"]) == ("make -j", [], str(cwd))
    assert (client.text(), shown(client)) == ("7 theirs", ["terminal"])


async def test_a_cancelled_command_is_killed_and_released_at_the_client(cwd: Path) -> None:
    answers = {"terminal/create": {"terminalId": "t1"}, "terminal/kill": {}, "terminal/release": {}}
    async with bare(agent(), answers) as client:
        await client.initialize()
        session = await client.new_session(str(cwd))
        prompt = await client.request("session/prompt", prompt_params(session, "run sleep 600"))
        await client.until(lambda frame: frame.get("method") == "terminal/wait_for_exit")
        await client.notify("session/cancel", {"sessionId": session})
        ended = await client.until(lambda frame: frame.get("id") == prompt and "method" not in frame)
    assert ended["result"]["stopReason"] == "cancelled"
    assert asked(client)[-2:] == ["terminal/kill", "terminal/release"]


async def test_a_command_that_is_cancelled_while_its_terminal_is_made_is_killed_too(cwd: Path) -> None:
    async with bare(agent(), {"terminal/kill": {}, "terminal/release": {}}) as client:
        await client.initialize()
        session = await client.new_session(str(cwd))
        prompt = await client.request("session/prompt", prompt_params(session, "run sleep 600"))
        create = await client.until(lambda frame: frame.get("method") == "terminal/create")
        await client.notify("session/cancel", {"sessionId": session})
        await client.send({"jsonrpc": "2.0", "id": create["id"], "result": {"terminalId": "t1"}})
        ended = await client.until(lambda frame: frame.get("id") == prompt and "method" not in frame)
    assert ended["result"]["stopReason"] == "cancelled"
    assert asked(client) == ["terminal/create", "terminal/kill", "terminal/release"]


async def test_a_terminal_that_the_client_refuses_is_told_to_the_author(cwd: Path) -> None:
    async with bare(agent()) as client:
        await client.initialize()
        session = await client.new_session(str(cwd))
        prompt = await client.request("session/prompt", prompt_params(session, "run make"))
        create = await client.until(lambda frame: frame.get("method") == "terminal/create")
        await client.send({"jsonrpc": "2.0", "id": create["id"], "error": {"code": -32602, "message": "no"}})
        await client.until(lambda frame: frame.get("id") == prompt and "method" not in frame)
    assert client.text() == "client_refused"


async def test_a_client_that_never_makes_the_terminal_does_not_hold_up_the_end(
    cwd: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workplace, "MADE_S", 0.01)
    async with bare(agent()) as client:
        await client.initialize()
        session = await client.new_session(str(cwd))
        prompt = await client.request("session/prompt", prompt_params(session, "run sleep 600"))
        create = await client.until(lambda frame: frame.get("method") == "terminal/create")
        await client.notify("session/cancel", {"sessionId": session})
        ended = await client.until(lambda frame: frame.get("id") == prompt and "method" not in frame)
    assert ended["result"]["stopReason"] == "cancelled"
    withdrawn = next(each["params"] for each in client.seen if each.get("method") == "$/cancel_request")
    assert withdrawn == {"requestId": create["id"]}


async def test_a_v1_client_without_terminals_sees_the_output_as_text(cwd: Path) -> None:
    async with bare(agent()) as client:
        await client.initialize(1, NOTHING)
        await client.prompt(await client.new_session(str(cwd)), "run echo hello; exit 3")
    assert client.text() == "3 hello\n"
    assert "hello\n[exit code 3]" in shown(client)[-1]
    assert asked(client) == []


async def test_a_v2_client_sees_a_terminal_of_the_agent(cwd: Path) -> None:
    async with bare(agent()) as client:
        await client.initialize(2)
        await client.prompt(await client.new_session(str(cwd)), "run echo hello; exit 3")
    told = [each for each in client.updates() if each["sessionUpdate"].startswith("terminal_")]
    assert (told[0]["command"], told[0]["cwd"]) == ("echo hello; exit 3", str(cwd))
    assert b"".join(base64.b64decode(each["data"]) for each in told[1:-1]) == b"hello\n"
    assert told[-1]["exitStatus"] == {"exitCode": 3}
    items = [each["content"] for each in client.updates() if each["sessionUpdate"] == "tool_call_content_chunk"]
    assert items == [{"type": "terminal", "terminalId": told[0]["terminalId"]}]
    assert asked(client) == []
