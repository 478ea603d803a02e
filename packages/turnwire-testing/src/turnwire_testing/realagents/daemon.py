"""A real `turnwire serve` with one agent, used over REST, and the agent's recorded frames.

All processes that the daemon starts have a marker in their environment, so that leaked ones can be found.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple, cast

import anyio
import httpx

TEE = Path(__file__).with_name("tee.py")
MARK = "REAL_AGENTS_RUN"
STEP_S = 30.0
"""Timeout of one wait: some agents need seconds to start, and the machine may be busy."""
LOOK_S = 0.1
"""Polling interval for processes and files, which send no notification when they change."""


class Failed(Exception):
    """A step failed; its message goes into the table."""


class Turn(NamedTuple):
    """A completed turn."""

    state: str
    text: str
    error: str
    events: list[str]


class Place:
    """The environment of one agent: its home, its work folder, its frames, and the current daemon."""

    def __init__(self, root: Path, command: Sequence[str], env: Mapping[str, str]) -> None:
        self.home, self.work, self.data = root / "home", root / "work", root / "data"
        for each in (self.home, self.work, self.data):
            each.mkdir(parents=True, exist_ok=True)
        self.frames_file = root / "frames"
        self.err_file = root / "daemon.err"
        self._config = root / "turnwire.toml"
        self.mark = f"{MARK}={root}"
        self._command = command
        self._env = env
        self._process: subprocess.Popen[str] | None = None
        self._http: httpx.AsyncClient | None = None

    # -- the daemon ----------------------------------------------------------------------------------------

    async def start(self, *flags: str) -> None:
        """Start the daemon; the data of an earlier one is found again."""
        command = [sys.executable, str(TEE), str(self.frames_file), *self._command]
        # JSON strings and lists of them are TOML as well.
        self._config.write_text(f"[agents.toured]\ncommand = {json.dumps(command)}\nenv-all = true\n")
        words = [sys.executable, "-m", "turnwire", "serve", "--json", "--port", "0", "--no-auth"]
        words += ["--config", str(self._config), "--limit", "drain_s=5"]
        words += ["--cwd", str(self.work), "--data", str(self.data), *flags]
        name, value = self.mark.split("=", 1)
        with self.err_file.open("a") as errors:
            self._process = subprocess.Popen(  # noqa: ASYNC220 (it takes milliseconds, and nobody else waits here)
                words,
                cwd=self.work,
                env={**self._env, "HOME": str(self.home), name: value},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
        assert self._process.stdout is not None
        line = await anyio.to_thread.run_sync(self._process.stdout.readline)
        if not line:
            raise Failed(f"the daemon did not start: {self.err_file.read_text()[-300:]}")
        self._http = httpx.AsyncClient(base_url=json.loads(line)["url"], timeout=STEP_S)

    async def stop(self, number: int = signal.SIGTERM) -> int:
        """Stop the daemon and return its exit code."""
        process, self._process = self._process, None
        if process is None:
            return 0
        process.send_signal(number)
        try:
            return await anyio.to_thread.run_sync(lambda: process.wait(STEP_S))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise Failed("the daemon did not stop") from None
        finally:
            if self._http is not None:
                await self._http.aclose()
            if process.stdout is not None:
                process.stdout.close()

    def kill(self) -> None:
        """Kill the daemon if it still runs."""
        if self._process is not None:
            with self._process as process:
                process.kill()
            self._process = None

    async def ask(self, method: str, path: str, body: object = None) -> Any:
        """Send a request and return the JSON of the response. Fails with the daemon's error message."""
        assert self._http is not None
        answer = await self._http.request(method, path, json=body)
        if not answer.is_success:
            told = answer.json()
            raise Failed(f"{told.get('code')}: {str(told.get('error') or told.get('detail'))[:200]}")
        return answer.json() if answer.content else None

    @asynccontextmanager
    async def events(self, session: str, after: int) -> AsyncGenerator[AsyncGenerator[dict[str, Any]]]:
        """Return the envelopes of a session after a position."""
        assert self._http is not None
        headers = {"Last-Event-ID": str(after)}
        async with self._http.stream("GET", f"/session/{session}/events", headers=headers) as stream:

            async def envelopes() -> AsyncGenerator[dict[str, Any]]:
                async for line in stream.aiter_lines():
                    if line.startswith("data: "):
                        yield json.loads(line.removeprefix("data: "))

            yield envelopes()

    # -- a turn --------------------------------------------------------------------------------------------

    async def prompt(self, session: str, text: str) -> dict[str, Any]:
        return await self.ask("POST", f"/session/{session}/prompt", {"prompt": [{"type": "text", "text": text}]})

    async def turn(self, session: str, text: str, answer: str | None = None) -> Turn:
        """Run a whole turn. Permission requests are answered with the first option of the kind `answer`."""
        receipt = await self.prompt(session, text)
        return await self.ended(session, receipt, answer)

    async def ended(self, session: str, receipt: Mapping[str, Any], answer: str | None = None) -> Turn:
        types: list[str] = []
        async with self.events(session, receipt["lastEventId"]) as envelopes:
            async for each in envelopes:
                types.append(each["type"])
                if each["type"] == "permission_request":
                    await self._answer(session, answer)
                if each.get("promptId") == receipt["promptId"] and each["type"] in ("turn_complete", "turn_error"):
                    break
        told = await self.ask("GET", f"/session/{session}/turns/{receipt['promptId']}")
        found = await self.ask("GET", f"/session/{session}/turns?size=100")
        rows: list[dict[str, Any]] = found.get("turns", [])
        text = next((each.get("resultText") for each in rows if each.get("promptId") == receipt["promptId"]), "")
        error: dict[str, Any] = told.get("error") or {}
        return Turn(told["state"], text or "", f"{error.get('code', '')} {error.get('message', '')}".strip(), types)

    async def _answer(self, session: str, kind: str | None) -> None:
        for request in (await self.ask("GET", f"/session/{session}/permissions"))["permissions"]:
            options = {each.get("kind"): each["optionId"] for each in reversed(request["options"])}
            chosen = options.get(kind) if kind is not None else None
            outcome = {"outcome": "selected", "optionId": chosen} if chosen else {"outcome": "cancelled"}
            path = f"/session/{session}/permissions/{request['requestId']}"
            await self.ask("POST", path, {"outcome": outcome})

    # -- the agent -----------------------------------------------------------------------------------------

    def lives(self) -> list[list[str]]:
        """The lines of each process of the agent so far; the first is its process id."""
        found: list[list[str]] = []
        for line in self.frames_file.read_text().splitlines() if self.frames_file.exists() else []:
            if line.startswith("pid "):
                found.append([])
            found[-1].append(line)
        return found

    def told_before(self, method: str) -> list[str]:
        """Return the modes and option values that the newest agent process received before this method."""
        sent = [json.loads(line[2:]) for line in self.lives()[-1] if line.startswith("> ")]
        first = next((at for at, each in enumerate(sent) if each.get("method") == method), 0)
        choices = [each["params"] for each in sent[:first] if str(each.get("method")).startswith("session/set_")]
        return [str(each.get("modeId") or each.get("value")) for each in choices]

    def answer_to(self, method: str) -> dict[str, Any]:
        """Return the newest agent process's answer to this method; for several requests, to the last."""
        frames = [_object(line[2:]) for line in self.lives()[-1][1:]]
        asked = [each.get("id") for each in frames if each.get("method") == method]
        answers: list[dict[str, Any]] = [
            each["result"] for each in frames if each.get("id") in asked and "result" in each
        ]
        return answers[-1] if answers else {}

    def refusal(self) -> str:
        """Return the newest agent process's error for restoring the session; empty if there was none."""
        frames = [_object(line[2:]) for line in self.lives()[-1][1:]]
        asked = {each["id"]: each["method"] for each in frames if "method" in each and "id" in each}
        for each in frames:
            method = asked.get(each.get("id"))
            if "error" in each and method in ("session/load", "session/resume"):
                return f"; it refused {method}: {json.dumps(each['error'])[:160]}"
        return ""

    def kill_agent(self) -> None:
        """SIGKILL to the newest process of the agent."""
        os.kill(int(self.lives()[-1][0].split()[1]), signal.SIGKILL)

    def left(self) -> dict[int, str]:
        """The processes that carry our mark and are not the daemon."""
        own = self._process.pid if self._process is not None else None
        found: dict[int, str] = {}
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit() or int(entry.name) == own:
                continue
            try:
                if self.mark.encode() in (entry / "environ").read_bytes().split(b"\0"):
                    found[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()[:80]
            except OSError:
                continue
        return found

    async def until(self, holds: Callable[[], bool], words: str, within: float = STEP_S) -> None:
        """Poll until a condition holds that has no notification."""
        with anyio.move_on_after(within):
            while not holds():  # noqa: ASYNC110 (processes and files set no event)
                await anyio.sleep(LOOK_S)
            return
        raise Failed(words)


def _object(text: str) -> dict[str, Any]:
    try:
        found: Any = json.loads(text)
    except ValueError:
        return {}
    return cast("dict[str, Any]", found) if isinstance(found, dict) else {}
