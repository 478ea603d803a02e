"""`turnwire agent`: the built-in agent on stdin and stdout.

Models and limits are flags, each with an environment variable. The process serves one client until it disconnects.
Only ACP is written to stdout.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from turnwire.cli.agent_source import AGENT_FOLDER, IN_MEMORY, PREFIX, model_agent
from turnwire.cli.commands import Command
from turnwire.errors import ConfigError

EXAMPLES = """
turnwire agent                                        without a model: it answers by a few rules, and has /demo
turnwire agent --model anthropic:NAME                 with a model; its key is in ANTHROPIC_API_KEY
turnwire agent --model ollama:NAME                    with one that runs on this machine
turnwire agent --model openai:A --model openai:B      the user chooses one of them
TURNWIRE_AGENT_MODEL=google:NAME turnwire serve       the daemon's own agent, with a model
"""
LARGEST_RULES = 256 * 1024
MODES = ("ask", "accept_edits", "plan")


def _option(*words: str, about: str, **more: Any) -> Any:
    """Return an option with its environment variable."""
    variable = PREFIX + words[0].removeprefix("--").replace("-", "_").upper()
    return click.option(*words, envvar=variable, help=f"{about} Also {variable}.", **more)


@click.command(cls=Command, examples=EXAMPLES)
@_option("--model", "models", multiple=True, metavar="PROVIDER:NAME", about="A model; may be given several times.")
@_option("--model-url", metavar="URL", about="Where the models are served, if not at their provider's.")
@_option("--data", metavar="DIR", about=f"Where sessions are kept; {IN_MEMORY} keeps them in memory.")
@_option("--system", metavar="FILE", about="A text that stands in place of the agent's own rules.")
@_option("--allow-fetch", is_flag=True, about="Let the model fetch pages of the web.")
@_option("--max-requests", type=click.IntRange(1, 10_000), default=100, about="Requests to the model in one turn.")
@_option("--max-tokens", type=click.IntRange(1), about="Tokens of one answer.")
@_option("--mode", type=click.Choice(MODES), default="ask", about="The mode of new sessions.")
def agent(models: tuple[str, ...], model_url: str | None, **flags: Any) -> None:
    """Run the built-in agent on stdio.

    It speaks ACP, so an editor can start it as its agent. `turnwire serve` starts it if no other agent is named.
    Without a model it answers by fixed rules. With a model, which needs turnwire[agent], it reads, edits and runs
    things in the session's folder, and asks before it changes anything.
    """
    data, mode = _folder(flags["data"]), flags["mode"]
    rules = _read_rules(flags["system"])
    if not models:
        from turnwire.demo.agent import demo_agent

        demo_agent(data, mode).run()
        return
    model_agent().run(
        list(dict.fromkeys(models)),
        url=model_url,
        data=data,
        mode=mode,
        rules=rules,
        allows_fetch=flags["allow_fetch"],
        max_requests=flags["max_requests"],
        max_tokens=flags["max_tokens"],
    )


def _folder(data: str | None) -> Path | None:
    if data == IN_MEMORY:
        return None
    if data:
        return Path(data).absolute()
    from turnwire.cli.config import settings_from

    # The folder of this user's daemon. The client chooses the folders of sessions.
    daemons = settings_from({"cwd": ("/",)}, ()).settings.data
    return None if daemons is None else daemons / AGENT_FOLDER


def _read_rules(path: str | None) -> str | None:
    if not path:
        return None
    try:
        with Path(path).open("rb") as file:
            content = file.read(LARGEST_RULES + 1)
        text = content.decode()
    except OSError as error:
        raise ConfigError(f"--system {path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"--system {path} is no UTF-8 text; save it as one") from None
    if len(content) > LARGEST_RULES or not text.strip():
        raise ConfigError(f"--system {path} is empty or longer than {LARGEST_RULES} bytes; give the agent's rules")
    return text
