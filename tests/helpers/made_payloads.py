"""Objects that would run something when a careless reader unpickles them."""


class Call:
    """Pickles as the call of a function."""

    def __init__(self, function, *arguments):
        self.content = function, arguments

    def __reduce__(self):
        return self.content

    def __call__(self):
        """Never called; the pickler only wants functions that look callable."""
