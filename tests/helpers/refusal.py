"""Command lines that end at once: with a help, or refused."""

import signal

import pytest

import cli


@pytest.fixture(name="ends_soon")
def alarm():
    """What waits for ever is a failure, not a suite that hangs."""

    def late(*_):
        raise TimeoutError("it waits")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(300)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture(name="printed")
def printed_line(capfd, ends_soon):
    """What a command line prints that ends with an exit code: on standard output, or of an error."""

    def run(line, code=0):
        capfd.readouterr()
        with pytest.raises(SystemExit) as leaving:
            cli.main(line.split() if isinstance(line, str) else line)
        told = capfd.readouterr()
        assert leaving.value.code == code
        return told.err if code else told.out

    return run


@pytest.fixture(name="refused")
def refused_line(printed):
    """What a command line says that ends with exit code 2: one sentence, and nothing else
    on standard error."""

    def run(line):
        told = printed(line, 2)
        assert told.startswith("error: ")
        assert told.count("\n") == 1, told
        return told

    return run
