"""Update the API viewer that the daemon ships: `scripts/renew_swagger_ui.py [VERSION]`.

The files below come from the npm package `swagger-ui-dist`, in the given version or the newest. The package and the
hash of each file are recorded next to them. Needs npm. The files are not modified.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "src" / "turnwire" / "server" / "routes" / "swagger-ui"
PACKAGE = "swagger-ui-dist"
FILES = ("LICENSE", "NOTICE", "swagger-ui-bundle.js", "swagger-ui-bundle.js.LICENSE.txt", "swagger-ui.css")


def packed(version: str, folder: Path) -> Path:
    """The package as npm publishes it."""
    command = ["npm", "pack", "--silent", f"{PACKAGE}@{version}", "--pack-destination", str(folder)]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=300)
    return folder / done.stdout.split()[-1]


def note(name: str, version: str, licence: str, files: dict[str, bytes]) -> str:
    hashes = [f'"{file}" = "{hashlib.sha256(body).hexdigest()}"' for file, body in files.items()]
    head = f'package = "{name}"\nversion = "{version}"\nlicense = "{licence}"\n'
    return f"# Written by scripts/renew_swagger_ui.py.\n{head}\n[sha256]\n" + "\n".join(hashes) + "\n"


def main(arguments: list[str]) -> int:
    if len(arguments) > 1:
        print("usage: renew_swagger_ui.py [VERSION]", file=sys.stderr)
        return 64
    with tempfile.TemporaryDirectory() as scratch:
        with tarfile.open(packed(arguments[0] if arguments else "latest", Path(scratch))) as archive:
            archive.extractall(scratch, filter="data")
        package = Path(scratch) / "package"
        about = json.loads((package / "package.json").read_text(encoding="utf-8"))
        files = {name: (package / name).read_bytes() for name in FILES}
    FOLDER.mkdir(exist_ok=True)
    for name, body in files.items():
        (FOLDER / name).write_bytes(body)
    (FOLDER / "package.toml").write_text(
        note(about["name"], about["version"], about["license"], files), encoding="utf-8"
    )
    print(f"{about['name']} {about['version']}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
