"""`python -m boltbox`."""

from boltbox.detector.commands.main import run

if __name__ == "__main__":
    run()
