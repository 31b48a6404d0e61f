"""Servers of files on this machine: one of S3, and one of HTTP that fails as it is told to."""

import re
import subprocess
import sys
import tempfile
from collections import Counter
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Event, Thread

import pytest
from made_runs import until

KEYS = {"AWS_ACCESS_KEY_ID": "me", "AWS_SECRET_ACCESS_KEY": "me", "AWS_DEFAULT_REGION": "us-east-1"}


@contextmanager
def s3():
    """fsspec's file system of a server in a process of its own, to which the environment leads."""
    pytest.importorskip("moto.server")
    fsspec = pytest.importorskip("s3fs")
    line = [sys.executable, "-m", "moto.server", "--port", "0"]
    with (
        tempfile.NamedTemporaryFile("r") as log,
        subprocess.Popen(line, stdout=log, stderr=log) as server,
        pytest.MonkeyPatch.context() as patch,
    ):

        def started():
            said = Path(log.name).read_text()
            assert server.poll() is None, said
            return re.search(r"http://127\.0\.0\.1:\d+", said)

        try:
            patch.setenv("AWS_ENDPOINT_URL", until(started, "a server of S3")[0])
            for name, value in KEYS.items():
                patch.setenv(name, value)
            yield fsspec.S3FileSystem(skip_instance_cache=True)
        finally:
            server.kill()


class Files(SimpleHTTPRequestHandler):
    """Files of a folder, as often as told with a fault: a status, "cut", "short", "gone" or
    "stalled"."""

    def do_GET(self):
        server = self.server
        server.requests[self.path] += 1
        name = self.path.rpartition("/")[2]
        if not server.faults.get(name):
            super().do_GET()
            return
        fault = server.faults[name].pop()
        content = Path(self.translate_path(self.path)).read_bytes()
        if isinstance(fault, int):
            self.send_error(fault)
        elif fault == "gone":
            self.close_connection = True
        else:
            self.send_response(200)
            if fault == "cut":
                self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content[: len(content) // 2])
            if fault == "stalled":
                server.stalled.set()
                server.ends.wait()

    def do_HEAD(self):
        server = self.server
        name = self.path.rpartition("/")[2]
        if server.faults.get(name) and isinstance(server.faults[name][-1], int):
            self.send_error(server.faults[name].pop())
        else:
            super().do_HEAD()

    def log_message(self, *_):
        """Nothing is printed."""


class Server(ThreadingHTTPServer):
    request_queue_size = 128  # of 32 at once each beyond the queue would wait for a second or more


@contextmanager
def http(folder):
    """A server with `address`, `faults` to come by name of the file, `requests` by path, and
    `stalled`, which is set once half a file was sent."""
    server = Server(("127.0.0.1", 0), partial(Files, directory=str(folder)))
    server.faults = {}
    server.requests = Counter()
    server.stalled = Event()
    server.ends = Event()
    server.address = f"http://127.0.0.1:{server.server_port}"
    thread = Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield server
    finally:
        server.ends.set()
        server.shutdown()
        server.server_close()
        thread.join()
