"""Text that is printed."""

import re

# but tab and newline; halves of characters, of file names
CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")


def printable(text: str) -> str:
    r"""With control characters as they would be typed: names out of files must not clear a
    terminal, or rename its window.

    >>> printable("cat\x1b[2J"), printable("one\ntwo")
    ('cat\\x1b[2J', 'one\ntwo')
    """
    return CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode(), text)
