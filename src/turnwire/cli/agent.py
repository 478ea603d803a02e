"""`turnwire agent`: the built-in agent on stdin and stdout.

Takes models and bounds as flags, each with a variable of the same name; serves one client until it leaves. Nothing
but ACP is ever on stdout.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from turnwire.cli.agent_source import AGENT_FOLDER, IN_MEMORY, PREFIX
from turnwire.cli.commands import Command
from turnwire.errors import ConfigError

if TYPE_CHECKING:
    from turnwire.builtin.model import Model

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
    """An option with its variable."""
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
    """Be the built-in agent, on stdin and stdout.

    It speaks ACP, so an editor can start it as its agent; `turnwire serve` starts it when it is given no other.
    With a model it reads, edits and runs things in the session's folder; it asks before it changes something.
    """
    from turnwire.builtin.agent import BuiltIn, BuiltInSettings
    from turnwire.builtin.work import Bounds

    settings = BuiltInSettings(
        data=_folder(flags["data"]),
        rules=_read_rules(flags["system"]),
        allows_fetch=flags["allow_fetch"],
        bounds=Bounds(max_requests=flags["max_requests"], max_tokens=flags["max_tokens"]),
        mode=flags["mode"],
    )
    BuiltIn(_chosen(models, model_url), settings).run()


def _chosen(models: tuple[str, ...], url: str | None) -> list[Model]:
    if not models:
        return []
    from turnwire.builtin.library_model import choose_model

    return [choose_model(each, url=url) for each in dict.fromkeys(models)]


def _folder(data: str | None) -> Path | None:
    if data == IN_MEMORY:
        return None
    if data:
        return Path(data).absolute()
    from turnwire.cli.config import settings_from

    # The folder in which the daemon of this user keeps its own. Where sessions work is the client's to say.
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
