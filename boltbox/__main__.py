"""`python -m boltbox`."""

from boltbox.detector.commands.main import main

if __name__ == "__main__":
    main()
