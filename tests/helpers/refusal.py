"""Command lines that are refused."""

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


@pytest.fixture(name="refused")
def refused_line(capfd, ends_soon):
    """What a command line says that ends with exit code 2: one sentence, and nothing else
    on standard error."""

    def run(line):
        capfd.readouterr()
        with pytest.raises(SystemExit) as leaving:
            cli.main(line.split() if isinstance(line, str) else line)
        told = capfd.readouterr().err
        assert leaving.value.code == 2
        assert told.startswith("error: ")
        assert told.count("\n") == 1, told
        return told

    return run
