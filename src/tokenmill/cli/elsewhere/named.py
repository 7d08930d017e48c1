"""One row of a table of another program's names."""

from typing import NamedTuple


class Named(NamedTuple):
    """Names that another program has for one thing, separated by commas; what it is here; a remark.

    ours: the name of an option or a field here, if it is another name; or the way in which a command, variable or call
    is written here, or several ways: the first that this version has is taken. Empty if there is nothing, "-" if
    nothing is needed.
    """

    theirs: str
    ours: str | tuple[str, ...] = ""
    note: str = ""

    @property
    def names(self) -> list[str]:
        """Each of their names, without what it takes."""
        return [name.split()[0].split("=")[0] for name in self.theirs.split(", ")]

    @property
    def ways(self) -> tuple[str, ...]:
        """How it is written here, the best way first."""
        return (self.ours,) if isinstance(self.ours, str) else self.ours
