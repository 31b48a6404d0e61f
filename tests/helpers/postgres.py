"""A PostgreSQL server for tests, with a Unix socket in a folder of its own instead of a port."""

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import psycopg
import pytest

PASSWORD = "sesame-4711"


class Server:
    """It runs from `start` to `stop`; what is in it stays."""

    def __init__(self):
        if not (shutil.which("initdb") and shutil.which("pg_ctl")):
            pytest.skip("PostgreSQL is not on the PATH")
        self.databases = set()
        self.folder = Path(tempfile.mkdtemp(prefix="pg"))
        self.account = {"user": "nobody", "extra_groups": []} if os.geteuid() == 0 else {}
        word = self.folder / "word"
        word.write_text(PASSWORD)
        if self.account:  # the server refuses to run as root
            shutil.chown(self.folder, "nobody")
            shutil.chown(word, "nobody")
        self._run(
            "initdb", "--username=owner", f"--pwfile={word}", "--auth=scram-sha-256", "--no-sync", "--locale=C",
            "--encoding=UTF8",
        )  # fmt: skip

    def start(self):
        options = f"-F -c listen_addresses='' -k {self.folder}"
        self._run("pg_ctl", "-w", "-o", options, "-l", str(self.folder / "log"), "start")

    def stop(self):
        self._run("pg_ctl", "-w", "-m", "immediate", "stop")

    def remove(self):
        self.stop()
        shutil.rmtree(self.folder)

    def _run(self, *line):
        environment = os.environ | {"PGDATA": str(self.folder / "data")}
        done = subprocess.run(
            line, env=environment, cwd=self.folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, **self.account
        )  # fmt: skip
        assert done.returncode == 0, done.stderr.decode()

    def address(self, database, user="owner", password=PASSWORD):
        return f"postgresql://{user}:{password}@/{database}?host={self.folder}"

    def execute(self, database, *statements):
        with psycopg.connect(self.address(database), autocommit=True) as connection:
            for statement in statements:
                connection.execute(statement)
