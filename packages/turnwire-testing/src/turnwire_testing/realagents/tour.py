"""The steps that are tried with each agent, and their results.

A failed step reports its error and does not stop the next one; a step that depends on it reports that it could not
run. The prompt contains commands for the model (`turnwire_testing.models.told_model`), so each turn of every agent
is the same.
"""

from __future__ import annotations

import json
import os
import signal
import traceback
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio

from turnwire_testing.models.home import environment, furnish
from turnwire_testing.models.recipes import Recipe
from turnwire_testing.models.server import FakeServer
from turnwire_testing.models.told_model import told_model
from turnwire_testing.realagents.daemon import STEP_S, Failed, Place
from turnwire_testing.realagents.recipes import BY_LOGIN

OK = "ok"
FAILED = "failed: "
NEEDS_LOGIN = "not run: it asks for a login"
READ_ONLY = ("read-only", "readonly", "read_only", "plan", "ask", "default")
"""Modes that let the agent do less, best first."""


class Tour:
    """One agent's run through all steps."""

    def __init__(self, place: Place, recipe: Recipe, model: FakeServer) -> None:
        self.place = place
        self.model = model
        self.session = ""
        self.results: dict[str, str] = {}
        self.protocol = ""
        self._asks_in = recipe.asks_in
        self._needs_login = recipe is BY_LOGIN
        self._mode: dict[str, str] = {}

    async def run(self) -> None:
        """Every step of `STEPS`, in order."""
        for name, step in STEPS.items():
            self.results[name] = await self._try(step)
            print(f"  {name}: {self.results[name]}", flush=True)
            if name == "start" and self.results[name] != OK:
                why = NEEDS_LOGIN if self.results[name].startswith(OK) else "not run: it did not start"
                self.results |= dict.fromkeys(list(STEPS)[1:], why)
                break

    async def _try(self, step: Callable[[Tour], Awaitable[str | None]]) -> str:
        try:
            with anyio.fail_after(STEP_S * 6):
                return await step(self) or OK
        except Failed as error:
            return f"{FAILED}{error}"
        except TimeoutError:
            return f"{FAILED}no end within {STEP_S * 6:.0f} s"
        except Exception as error:  # noqa: BLE001 (one agent's odd answer must not end the run for all others)
            traceback.print_exc()
            return f"{FAILED}{type(error).__name__}"

    # -- the steps ---------------------------------------------------------------------------------------------

    async def start(self) -> str | None:
        await self.place.start()
        try:
            self.session = (await self.place.ask("POST", "/session", {}))["sessionId"]
        except Failed as error:
            if not self._needs_login or "auth_required" not in str(error):
                raise
        self._read_protocol()
        return None if self.session else f"{OK} up to session/new, which asks for a login"

    async def prompt(self) -> None:
        await self._say("pear-1")
        self._read_protocol()

    def _read_protocol(self) -> None:
        """Read the version that the agent chose. A slow agent answers only after the session was created."""
        version = self.place.answer_to("initialize").get("protocolVersion")
        self.protocol = f"v{version}" if version else ""

    async def allow(self) -> None:
        if self._asks_in is not None:
            await self._choose_mode(self._asks_in)
        made = self.place.work / "made-1"
        turn = await self.place.turn(self.session, "Do this: [[run made-1]]", "allow_once")
        if "permission_request" not in turn.events:
            raise Failed(f"it did not ask; {turn.state} {turn.error} {turn.text[:80]}")
        if not made.exists():
            raise Failed(f"allowed, and nothing was done; {turn.state} {turn.error} {turn.text[:80]}")
        _expect(turn.state == "completed", f"the turn is {turn.state} {turn.error}")

    async def refuse(self) -> None:
        made = self.place.work / "made-2"
        turn = await self.place.turn(self.session, "Do this: [[run made-2]]", "reject_once")
        _expect("permission_request" in turn.events, f"it did not ask; {turn.state} {turn.error}")
        _expect(not made.exists(), "refused, and it was done all the same")
        _expect(turn.state in ("completed", "cancelled"), f"the turn is {turn.state} {turn.error}")

    async def cancel(self) -> str | None:
        receipt = await self._begin_hang()
        await self.place.ask("POST", f"/session/{self.session}/cancel")
        turn = await self.place.ended(self.session, receipt)
        _expect(turn.state == "cancelled", f"the turn is {turn.state} {turn.error}")
        await self._say("plum-2")
        harder = [each for each in turn.events if each in ("cancel_request", "terminate", "kill")]
        return f"ok, after {harder[-1]}" if harder else None

    async def daemon_kill(self) -> None:
        await self._begin_hang()
        await self.place.stop(signal.SIGKILL)
        await self._gone()
        await self.place.start()
        await self._say("fig-3", remembers="pear-1")

    async def agent_kill(self) -> None:
        receipt = await self._begin_hang()
        self.place.kill_agent()
        turn = await self.place.ended(self.session, receipt)
        _expect("agent_exited" in turn.error, f"the turn is {turn.state} {turn.error}")
        await self._say("date-4", remembers="pear-1")

    async def mode(self) -> str | None:
        """Check that a more restrictive mode persists when the agent's process is replaced."""
        if not await self._choose_mode():
            return "not run: it offers no modes"
        await self._say("kiwi-5")
        self.place.kill_agent()
        await self.place.until(lambda: not self.place.left(), "the agent's processes stay after its kill")
        await self._told_again("kiwi-6", "after a kill")
        await self.place.stop()
        await self._gone()
        await self.place.start("--limit", "agent_idle_s=2")
        await self._told_again("kiwi-7", "after a restart")
        told = f"ok, {'='.join(self._mode.values())}"
        known = await self.place.ask("GET", f"/session/{self.session}/explain")
        if known["agent"].get("refused"):
            # An agent that did not bring the session back is not let go for being idle.
            return f"{told}; kept when idle"
        await self.place.until(lambda: not self.place.left(), "the idle agent is not let go")
        await self._told_again("kiwi-8", "after it was idle")
        return told

    async def end(self) -> None:
        code = await self.place.stop()
        _expect(code == 0, f"the daemon ended with {code}")
        await self._gone()

    # -- what they are made of -----------------------------------------------------------------------------------

    async def _say(self, word: str, remembers: str = "") -> None:
        seen = len(self.model.requests)
        for delay_s in (1.5, 3.0, 6.0, 0.0):
            turn = await self.place.turn(self.session, f"Do this: [[say {word}]]", "allow_once")
            if "agent_unavailable" not in turn.error or not delay_s:
                break
            # The agent was killed soon after its start, so the daemon waits before the next start.
            await anyio.sleep(delay_s)
        if turn.state != "completed" or f"said {word}" not in turn.text:
            raise Failed(f"the turn is {turn.state} {turn.error} {turn.text[:80]}")
        asked = [text for each in self.model.requests[seen:] if word in (text := json.dumps(each))]
        if not any(remembers in each for each in asked):
            raise Failed(f"it has forgotten what was said before{self.place.refusal()}")
        if remembers:
            _expect(turn.text.strip() == f"said {word}", f"the answer begins with older words: {turn.text[:40]!r}")

    async def _begin_hang(self) -> dict[str, Any]:
        """Start a turn whose model never finishes; return once the model was called."""
        word = f"hang-{len(self.model.exchanges)}"
        receipt = await self.place.prompt(self.session, f"Do this: [[hang {word}]]")

        def is_asked() -> bool:
            asked = [
                each.body for each in self.model.exchanges if not each.done.is_set() and each.body.get("tools")
            ]
            return any(word in json.dumps(each) for each in asked)

        await self.place.until(is_asked, "the model was not asked")
        return receipt

    async def _gone(self) -> None:
        """Wait until all processes of the agent have ended."""
        with suppress(Failed):
            await self.place.until(lambda: not self.place.left(), "", within=STEP_S / 3)
        left = self.place.left()
        _expect(not left, f"left behind: {'; '.join(left.values())}")

    async def _choose_mode(self, wanted: str | None = None) -> bool:
        now = await self.place.ask("GET", f"/session/{self.session}")
        offered: list[dict[str, Any]] = now.get("configOptions") or []
        options = [each for each in offered if each.get("category") == "mode"]
        modes: list[dict[str, Any]] = now.get("modes") or []
        if modes:
            best = wanted or _best([each["id"] for each in modes], now.get("mode"))
            self._mode = {"method": "mode", "value": best}
            await self.place.ask("POST", f"/session/{self.session}/mode", {"modeId": best})
        elif options:
            values = [each["value"] for each in _flat(options[0]["options"])]
            best = wanted or _best(values, options[0].get("currentValue"))
            self._mode = {"method": options[0]["id"], "value": best}
            choice = {"configId": options[0]["id"], "value": best}
            await self.place.ask("POST", f"/session/{self.session}/config", choice)
        return bool(self._mode)

    async def _told_again(self, word: str, when: str) -> None:
        lives = len(self.place.lives())
        try:
            await self._say(word)
        except Failed as error:
            raise Failed(f"{when}: {error}") from None
        _expect(len(self.place.lives()) > lives, f"{when}: no new process")
        told = self.place.told_before("session/prompt")
        wanted = self._mode["value"]
        _expect(wanted in told, f"{when}: prompted without having been told the mode")


def _expect(holds: bool, words: str) -> None:
    if not holds:
        raise Failed(words)


def _best(values: list[str], now: str | None) -> str:
    others = [each for each in values if each != now]
    short = {each.rsplit("#", 1)[-1].rsplit("/", 1)[-1].casefold(): each for each in others}
    return next((short[each] for each in READ_ONLY if each in short), others[0] if others else values[0])


def _flat(options: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The choices of an option, whether or not they are in groups."""
    return [each for option in options for each in option.get("options", [option])]


STEPS: dict[str, Callable[[Tour], Awaitable[str | None]]] = {
    "start": Tour.start,
    "prompt": Tour.prompt,
    "permission allowed": Tour.allow,
    "permission refused": Tour.refuse,
    "cancel": Tour.cancel,
    "daemon killed": Tour.daemon_kill,
    "agent killed": Tour.agent_kill,
    "mode kept": Tour.mode,
    "clean exit": Tour.end,
}


async def tour(root: Path, command: list[str], recipe: Recipe, programs: Path) -> Tour:
    """Run one agent through all steps, in folders below `root`."""
    async with recipe.server(told_model(recipe)) as model:
        path = os.pathsep.join([str(programs), os.environ["PATH"]])
        place = Place(root, command, {**environment(path), **recipe.env(model.url)})
        furnish(place.home, recipe.files(model.url))
        done = Tour(place, recipe, model)
        try:
            await done.run()
        finally:
            place.kill()
        asked = [{"refused": each.refused, "body": each.body} for each in model.exchanges]
        (root / "asked.json").write_text(json.dumps(asked, indent=1))
        return done
