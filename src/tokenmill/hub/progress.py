"""Progress of long operations, for whoever wants to show it."""


class Progress:
    """The listener that is told how far a long operation has come."""

    def stage(self, text: str) -> None:
        """Begin a new stage."""

    def advance(self, done: int, total: int) -> None:
        """Note how much of the stage is done, in the stage's own unit."""


class Silent(Progress):
    """Progress that is not shown."""
