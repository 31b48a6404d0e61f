"""A progress bar that fits its line: text, widths, durations."""

import math
import shutil
import sys
import time

from boltbox.detector.system import rank_zero
from boltbox.detector.system.terminal import printable

# columns at the end of the line: some terminals begin a new one in the last, and Ctrl-C shows as ^C
FREE = 3
LEAST, FAIR, MOST = 8, 20, 40  # columns of the bar itself: with one note, with more, in any case
EIGHTHS = " ▏▎▍▌▋▊▉█"


def loss_label(name: str) -> str:
    """A part of the loss, where there is little room.

    >>> loss_label("box_loss")
    'box'
    """
    return name.removesuffix("_loss")


class Pace:
    """How far a pass over batches has come, and how fast it goes.

    Args:
        label: what the pass is, as `epoch 3/100`.
        total: of the batches; infinite where nobody knows.
        done: batches that were done before: of an epoch that is resumed.
    """

    def __init__(self, label: str, total: float, done: int = 0) -> None:
        self.label, self.total, self.done = label, total, done
        self.seconds, self.seen = 0.0, 0  # of the batches that this process has done

    def add(self, seconds: float) -> None:
        """A batch more."""
        self.seconds, self.seen, self.done = self.seconds + seconds, self.seen + 1, self.done + 1

    @property
    def left(self) -> str:
        """`1m20s left`, `` as long as that is not known."""
        if not self.seen or not math.isfinite(self.total):
            return ""
        return f"{duration((self.total - self.done) * self.seconds / self.seen)} left"

    @property
    def count(self) -> str:
        """`45/100`."""
        return f"{self.done}/{self.total:.0f}" if math.isfinite(self.total) else f"{self.done}"


def duration(seconds: float) -> str:
    """In six characters, or seven from a hundred hours on: 8.2s, 83s, 12m03s, 1h02m, 4d03h."""
    if seconds < 9.95:
        return f"{max(seconds, 0):.1f}s"
    whole = round(seconds)
    if whole < 100:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s"
    minutes = round(seconds / 60)
    if minutes < 100 * 60:
        return f"{minutes // 60}h{minutes % 60:02d}m"
    hours = round(seconds / 3600)
    return f"{hours // 24}d{hours % 24:02d}h"


def bar_line(pace: Pace, notes: list[str], columns: int, blocks: bool = True) -> str:
    """`epoch 3/100  45% ████▌     45/100 1m20s left  NOTES`, no longer than the terminal is wide.

    Args:
        pace: of the pass that is shown.
        notes: by importance; those that leave the bar no room are left out, with all that come
            after them.
        columns: of the terminal.
        blocks: the terminal can show them; else #.
    """
    known = math.isfinite(pace.total) and pace.total > 0
    share = min(pace.done / pace.total, 1.0) if known else 0.0
    head = f"{pace.label} {share:4.0%} " if known else f"{pace.label} "
    tail = " ".join(part for part in (f" {pace.count}", pace.left) if part)
    room = columns - FREE - len(head) - len(tail)
    for least, note in zip((LEAST, *[FAIR] * len(notes)), notes, strict=False):
        if room - len(note) - 2 < (least if known else 0):
            break
        tail, room = f"{tail}  {note}", room - len(note) - 2
    return (head + (_bar(share, min(room, MOST), blocks) if known else "") + tail)[: columns - FREE]


def _bar(share: float, width: int, blocks: bool) -> str:
    if width < 3:
        return ""
    if not blocks:
        return f"[{'#' * int(share * (width - 2)):{width - 2}}]"
    eighths = int(share * width * 8)
    return f"{'█' * (eighths // 8)}{EIGHTHS[eighths % 8].strip()}".ljust(width)


class LastLine:
    """The last line of the terminal, written over again and again; other text that is said takes
    its place."""

    def __init__(self) -> None:
        self._length, self._at = 0, -math.inf
        # seconds; a notebook keeps all that it is sent
        self.period = 0.1 if sys.stdout.isatty() else 0.5

    @staticmethod
    def possible() -> bool:
        """Where standard output goes to a terminal, or to a notebook."""
        return sys.stdout.isatty() or type(sys.stdout).__module__.startswith("ipykernel")

    def due(self) -> bool:
        """Whether it is time to draw again."""
        return time.monotonic() - self._at >= self.period

    def draw(self, pace: Pace, notes: list[str]) -> None:
        encoding = (getattr(sys.stdout, "encoding", None) or "").lower()
        text = printable(
            bar_line(
                pace, notes, shutil.get_terminal_size().columns, blocks=encoding.startswith("utf")
            )
        )
        self._write(f"\r{text.ljust(self._length)}")
        self._length, self._at = len(text), time.monotonic()
        rank_zero.makes_way = self.clear

    def clear(self) -> None:
        """The cursor is left at the beginning of an empty line."""
        if self._length:
            self._write(f"\r{' ' * (self._length + FREE - 1)}\r")
            rank_zero.makes_way = None
        self._length, self._at = 0, -math.inf

    @staticmethod
    def _write(text: str) -> None:
        sys.stdout.write(text)
        sys.stdout.flush()
