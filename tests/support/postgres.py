"""A PostgreSQL server for tests: a separate process on loopback, in a temporary folder, which can be killed.

Runs as the user `postgres` if the tests run as root, because the server refuses root. Each log of a test has a
separate schema in one database. It does not sync: the tests kill a process, and the kernel retains what that wrote.
"""

from __future__ import annotations

import os
import pwd
import secrets
import select
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from turnwire.log.owners import NodeIdentity
from turnwire_testing.patience import WAIT_S

CLUSTER_KEY = "cluster-key-of-the-tests-0123456789"
START_TRIES = 20
SCHEMAS_AT_ONCE = 32
PLACES = ("/usr/lib/postgresql", "/usr/local/pgsql", "/opt/homebrew/opt/postgresql")
SETTINGS = {
    "shared_buffers": "32MB",
    "max_connections": "100",
    "log_min_messages": "warning",
    "autovacuum_naptime": "5s",
    # A standby is back soon after its primary is.
    "wal_retrieve_retry_interval": "200ms",
}


def find_postgres() -> Path | None:
    """Return the folder with `initdb`; Debian does not put it on the PATH."""
    on_path = shutil.which("initdb")
    if on_path is not None:
        return Path(on_path).resolve().parent
    found = sorted(each.parent for place in PLACES for each in Path(place).glob("**/bin/initdb"))
    return found[-1] if found else None


def need_postgres() -> Path:
    """The folder of PostgreSQL's programs; without them the test is skipped, or fails where all is required."""
    found = find_postgres()
    reason = "PostgreSQL is not installed (Debian: apt-get install postgresql)"
    if found is None:
        if os.environ.get("TURNWIRE_REQUIRE_ALL") == "1":
            pytest.fail(f"{reason}, and TURNWIRE_REQUIRE_ALL=1 asks for every program", pytrace=False)
        pytest.skip(reason)
    return found


class PostgresServer:
    """One server. `start` and `kill` may alternate; its address stays."""

    def __init__(
        self, programs: Path, folder: Path, primary: PostgresServer | None = None, *, syncs: bool = False
    ) -> None:
        """Create a server. `primary`: the server whose standby it is to be. `syncs`: syncs to the disk, for
        measurements.
        """
        self._settings = SETTINGS | {"fsync": "on" if syncs else "off"}
        self.programs = programs
        self.folder = folder
        self._spare: list[str] = []
        self._user = pwd.getpwnam("postgres") if os.geteuid() == 0 else None
        if self._user is not None:
            os.chown(folder, self._user.pw_uid, self._user.pw_gid)
        # Bound without listening, so that the port stays ours while the server is down.
        self._port = socket.socket()
        self._port.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._port.bind(("127.0.0.1", 0))
        self.port: int = self._port.getsockname()[1]
        if primary is None:
            trusting = ("-A", "trust", "-U", "postgres", "-E", "UTF8", "--locale=C", "--no-sync")
            self._run("initdb", "-D", "data", *trusting)
        else:
            at_once = ("--write-recovery-conf", "--checkpoint=fast", "--no-sync")
            self._run("pg_basebackup", "-D", "data", "-d", primary.address, *at_once)

    @property
    def address(self) -> str:
        return f"postgresql://postgres@127.0.0.1:{self.port}/postgres"

    def start(self) -> None:
        """Start the server; return when it accepts connections."""
        settings = {
            **self._settings,
            "port": str(self.port),
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": "",
        }
        options = " ".join(f"-c {name}={value}" for name, value in settings.items())
        for left in reversed(range(START_TRIES)):
            try:
                self._run("pg_ctl", "-D", "data", "-w", "-l", "log", "-o", options, "start")
                return
            except AssertionError:
                # Children of a killed server end by themselves, and may hold its memory until then.
                if not left:
                    raise

    def wait_for_standby(self) -> None:
        """Make each commit wait until the standby has it as well."""
        self.ask("alter system set synchronous_standby_names = '*'")
        self.ask("select pg_reload_conf()")
        deadline = time.monotonic() + WAIT_S
        while self.ask("select sync_state from pg_stat_replication") != [["sync"]]:
            assert time.monotonic() < deadline, "no standby follows"

    def promote(self) -> None:
        """Promote a standby to a primary. Returns when it accepts writes."""
        self._run("pg_ctl", "-D", "data", "-w", "promote")

    def stop(self) -> None:
        """At once and cleanly."""
        self._run("pg_ctl", "-D", "data", "-w", "-m", "fast", "stop")

    def kill(self) -> None:
        """All its processes, now, as if its machine were gone."""
        listed = subprocess.run(["ps", "-eo", "pid=,ppid="], capture_output=True, text=True, check=True).stdout
        parents = [tuple(map(int, line.split())) for line in listed.splitlines()]
        main = self.pid
        for pid in (main, *(pid for pid, parent in parents if parent == main)):
            # A worker may have ended since it was listed.
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for pid in (main, *(pid for pid, parent in parents if parent == main)):
            _gone(pid)
        # A server that finds its process number in use by another process would not start.
        (self.folder / "data" / "postmaster.pid").unlink(missing_ok=True)

    @property
    def pid(self) -> int:
        return int((self.folder / "data" / "postmaster.pid").read_text().split()[0])

    @property
    def is_running(self) -> bool:
        return (self.folder / "data" / "postmaster.pid").exists()

    def ask(self, statement: str, schema: str = "public") -> list[list[str]]:
        """The rows of a statement, by PostgreSQL's own client."""
        command = [str(self.programs / "psql"), "-X", "-A", "-t", "-q", "-F", "\t", "-v", "ON_ERROR_STOP=1"]
        environment = {**os.environ, "PGOPTIONS": f"-c search_path={schema}"}
        answer = subprocess.run(
            [*command, "-d", self.address, "-c", statement],
            env=environment,
            capture_output=True,
            check=True,
            timeout=WAIT_S,
        )
        return [line.split("\t") for line in answer.stdout.decode().splitlines()]

    def new_log(self) -> str:
        """The address of an empty log. Schemas are made many at once, because each asking is a process."""
        if not self._spare:
            self._spare = [f"t{secrets.token_hex(6)}" for _ in range(SCHEMAS_AT_ONCE)]
            self.ask("; ".join(f"create schema {each}" for each in self._spare))
        return f"{self.address}?search_path={self._spare.pop()}"

    def close(self) -> None:
        if self.is_running:
            self._run("pg_ctl", "-D", "data", "-w", "-m", "immediate", "stop")
        self._port.close()

    def _run(self, program: str, *words: str) -> None:
        # Not a pipe: the server inherits it, and its end would never be seen.
        with (self.folder / f"{program}.out").open("wb") as out:
            ran = subprocess.run(
                [str(self.programs / program), *words],
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                timeout=60,
                check=False,
                user=self._user and self._user.pw_uid,
                group=self._user and self._user.pw_gid,
                extra_groups=self._user and [],
            )
        said = (self.folder / f"{program}.out").read_text(errors="replace")
        assert ran.returncode == 0, f"{program}: {said}"


def _gone(pid: int) -> None:
    """Wait for the end of a process that is not our child."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        assert select.select([handle], [], [], WAIT_S)[0], f"process {pid} does not end"
    finally:
        os.close(handle)


@contextmanager
def postgres_server(
    programs: Path, primary: PostgresServer | None = None, *, syncs: bool = False
) -> Generator[PostgresServer]:
    """Run a server, optionally as a standby of another one; it and its folder are deleted at the end."""
    # Not below pytest's folder, into which another user may not go.
    with tempfile.TemporaryDirectory(prefix="turnwire-pg-", ignore_cleanup_errors=True) as folder:
        server = PostgresServer(programs, Path(folder), primary, syncs=syncs)
        try:
            server.start()
            yield server
        finally:
            server.close()


def schema_of(address: str) -> str:
    return address.rpartition("search_path=")[2]


def share_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let daemons of this test share a log although their settings do not say so."""
    from turnwire.log import postgres

    opened = postgres.open_postgres_log

    def shared(*given: Any, node: NodeIdentity | None = None, **more: Any) -> Any:
        # Each is another node, though all are of one machine.
        name = secrets.token_hex(4)
        node = NodeIdentity(name, name) if node is None else node._replace(name=name)
        return opened(*given, **more | {"alone": False, "node": node})

    monkeypatch.setattr(postgres, "open_postgres_log", shared)
