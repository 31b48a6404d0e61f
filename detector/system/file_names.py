"""Names of files that are made from names that users give."""

from hashlib import sha256

MOST_BYTES = 200  # file systems take 255; endings like _000012.jpg are still to come


def short_name(name: str, most: int = MOST_BYTES) -> str:
    """A name of a file or folder of at most so many bytes; a longer one is cut, and gets a mark that tells it from others with
    the same beginning.

    >>> short_name("cat"), short_name("c" * 30, 20)
    ('cat', 'ccccccccccc~489105dc')
    """
    encoded = name.encode(errors="surrogateescape")
    if len(encoded) <= most:
        return name
    mark = f"~{sha256(encoded).hexdigest()[:8]}"
    return encoded[: most - len(mark)].decode(errors="ignore") + mark
