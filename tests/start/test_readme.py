"""What README.md shows works as it is pasted; its picture is drawn from what the commands print."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

from tests.start.typed import ROOT, Block, Reader, blocks, reading

from turnwire.testing.patience import WAIT_S
from turnwire.testing.plugin import find_tool

README = ROOT / "README.md"
SERVE = Block("console", "keeps-running", "$ turnwire serve\n…\n  stop   Ctrl-C\n\n…\n")


def of(language: str) -> list[str]:
    return [each.body for each in blocks(README) if each.language == language]


def serve(reader: Reader) -> None:
    reader.follow(SERVE)


def test_the_requests_of_the_readme_run_as_they_are_pasted(tmp_path: Path) -> None:
    find_tool("curl")
    [pasted] = of("bash")
    with reading(tmp_path) as reader:
        serve(reader)
        said = reader.paste(pasted)
    accepted = re.search(r'\{"promptId".*?\}', said)
    assert accepted is not None, said
    prompt = json.loads(accepted[0])["promptId"]
    events = re.findall(r"^event: (\w+)\ndata: (.*)$", said, re.MULTILINE)
    ends = [json.loads(data)["promptId"] for kind, data in events if kind == "turn_complete"]
    assert ends == [prompt], said


def test_the_first_commands_of_the_readme_are_those_of_the_program(tmp_path: Path) -> None:
    [install] = of("sh")
    commands = re.findall(r"^uvx (turnwire [^#]*?) *#", install, re.MULTILINE)
    with reading(tmp_path) as reader:
        reader.follow(Block("console", "keeps-running", f"$ {commands[0]}\n…\n  stop   Ctrl-C\n\n…\n"))
        reader.follow(Block("console", "", f"$ {commands[1]}\n…\nHello!…\n"))


def test_the_programs_of_the_readme_run(tmp_path: Path) -> None:
    client, agent = of("python")
    with reading(tmp_path) as reader:
        serve(reader)
        (reader.project / "ask.py").write_text(client, encoding="utf-8")
        (reader.project / "tidy.py").write_text(agent, encoding="utf-8")
        asked = subprocess.run(
            [sys.executable, "ask.py"],
            cwd=reader.project,
            env=reader.env,
            capture_output=True,
            text=True,
            timeout=WAIT_S,
            check=False,
        )
        assert asked.returncode == 0, asked.stderr
        assert asked.stdout.endswith(" end_turn\n"), asked.stdout
        reader.follow(
            Block("console", "", "$ turnwire doctor -- python tidy.py | grep agent\nok   agent   python: …\n")
        )


def test_the_picture_is_a_picture_that_fetches_nothing() -> None:
    [name] = re.findall(r"!\[[^]]*\]\(([^)]+)\)", README.read_text(encoding="utf-8"))
    drawn = ROOT / name
    text = "".join(ElementTree.parse(drawn).getroot().itertext()).replace("\xa0", " ")
    assert "turnwire prompt" in text
    source = drawn.read_text(encoding="utf-8")
    assert "url(http" not in source
    assert "href" not in source
