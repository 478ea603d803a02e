"""Draw docs/images/terminal.svg: a real session at a real terminal, with a daemon and the built-in agent.

Takes nothing; gives the picture that README.md shows. Run it again when what the commands print has changed. It is
not among the checks: each run has other ids.
"""

from __future__ import annotations

import errno
import io
import json
import os
import pty
import re
import subprocess
import sys
import tempfile
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

ROOT = Path(__file__).resolve().parents[1]
PICTURE = ROOT / "docs" / "images" / "terminal.svg"
WIDTH = 96
TYPED = (("turnwire prompt --new '/demo permission'", "1\n"), ("turnwire sessions", ""))
"""What is typed: a command, and what its question is answered with."""
SPINNER = re.compile("^.*[\u2800-\u28ff].*\n", re.MULTILINE)
"""A line that says that something goes on, and is taken back when it does not any more."""
PROMPT = "\x1b[32m~/project\x1b[0m $ "
FONT = "ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace"


@contextmanager
def daemon(folder: Path, env: Mapping[str, str]) -> Generator[None]:
    command = ["turnwire", "serve", "--json", "--port", "0"]
    with subprocess.Popen(
        command, cwd=folder, env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        try:
            assert process.stdout is not None
            json.loads(process.stdout.readline())
            yield
        finally:
            process.terminate()


def run(command: str, answer: str, folder: Path, env: Mapping[str, str]) -> str:
    """What a terminal of that width shows of a command."""
    near, far = pty.openpty()
    with subprocess.Popen(
        ["/bin/sh", "-c", command], cwd=folder, env=env, stdin=far, stdout=far, stderr=far, start_new_session=True
    ):
        os.close(far)
        said, answered = b"", not answer
        with suppress(OSError), open(near, "rb+", buffering=0) as terminal:
            while piece := _read(terminal):
                said += piece
                if not answered and said.rstrip(b"\x1b[0m").endswith((b": ", b"? ", b"> ")):
                    answered = True
                    terminal.write(answer.encode())
    return SPINNER.sub("", said.decode().replace("\r\n", "\n"))


def _read(terminal: io.FileIO) -> bytes:
    try:
        return terminal.read(65536)
    except OSError as error:
        # A terminal that nobody writes to any more.
        if error.errno == errno.EIO:
            return b""
        raise


def draw(shown: str) -> str:
    """The picture, with the fonts of whoever looks at it: none is fetched from anywhere."""
    console = Console(width=WIDTH, record=True, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    console.print(Text.from_ansi(shown))
    svg = console.export_svg(title="turnwire", theme=MONOKAI, unique_id="terminal")
    svg = re.sub(r"\s*@font-face \{.*?\}", "", svg, flags=re.DOTALL)
    return re.sub(r"font-family: (?:Fira Code|arial)[^;]*;", f"font-family: {FONT};", svg)


def main() -> None:
    with tempfile.TemporaryDirectory() as home:
        folder = Path(home) / "project"
        folder.mkdir()
        env = {
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "HOME": home,
            "LANG": "C.UTF-8",
            "TERM": "xterm-256color",
            "COLUMNS": str(WIDTH),
            "LINES": "50",
        }
        with daemon(folder, env):
            shown = "".join(
                f"{PROMPT}\x1b[1m{command}\x1b[0m\n{run(command, answer, folder, env)}" for command, answer in TYPED
            )
        shown = shown.replace(str(folder), "~/project")
    PICTURE.parent.mkdir(exist_ok=True)
    PICTURE.write_text(draw(shown), encoding="utf-8")


if __name__ == "__main__":
    main()
