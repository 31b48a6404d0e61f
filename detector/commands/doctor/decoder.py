"""A process that decodes images for the doctor, one path a line.

libjpeg and libpng tell of damaged data on the standard error and nowhere else, and a codec may
crash on a file that was made to crash it. In a process of its own, what is said belongs to one
image, and the doctor outlives the crash.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile

from boltbox.detector.commands.doctor.picture import Picture, look_at
from boltbox.detector.system.parent import environment


class Decoder:
    """Use as a context manager; `look_at` may be called by one thread at a time."""

    def __enter__(self) -> "Decoder":
        self._start()
        return self

    def __exit__(self, *error: object) -> None:
        self._process.communicate()  # the end of its input is its end

    def look_at(self, path: str) -> Picture:
        """As `picture.look_at`; a crash is a fault of the image."""
        with contextlib.suppress(BrokenPipeError):  # told by the missing answer
            print(json.dumps(path), file=self._process.stdin, flush=True)
        answer = self._process.stdout.readline() if self._process.stdout else ""
        if answer:
            remarks, digest, thumbnail, paper = json.loads(answer)
            return Picture(
                [(s, k, p) for s, k, p in remarks], digest, bytes.fromhex(thumbnail), paper
            )
        code = self._process.wait()
        if code > 0:
            raise RuntimeError(
                f"the doctor's decoder ended with exit code {code} at {path}; what it said is above"
            )
        self._start()
        return Picture(
            [
                (
                    "fault",
                    "unreadable_image",
                    f"the decoder crashed on it ({signal.Signals(-code).name})",
                )
            ]
        )

    def _start(self) -> None:
        self._process = subprocess.Popen(
            [
                sys.executable,
                "-P",
                "-W",
                "ignore",
                "-m",
                "boltbox.detector.commands.doctor.decoder",
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment(OPENCV_LOG_LEVEL="SILENT"),  # OpenCV repeats what we report
        )


def main() -> None:
    """Answer each JSON path on the standard input with a JSON Picture on the standard output."""
    # Ctrl-C is for the doctor, who then closes our input
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.stderr = os.fdopen(os.dup(2), "w")  # for Python's own errors
    with tempfile.TemporaryFile() as said:
        os.dup2(said.fileno(), 2)

        def complaints() -> str:
            length = os.fstat(2).st_size
            if not length:
                return ""
            text = os.pread(2, length, 0).decode(errors="replace")
            os.ftruncate(2, 0)
            os.lseek(2, 0, os.SEEK_SET)
            return text

        for line in sys.stdin:
            try:
                picture = look_at(json.loads(line), complaints)
            except MemoryError:
                picture = Picture([("fault", "unreadable_image", "not enough memory to decode it")])
            print(json.dumps((*picture[:2], picture.thumbnail.hex(), picture.paper)), flush=True)


if __name__ == "__main__":
    main()
