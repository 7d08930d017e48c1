"""A number of a conversation that is shown as it was spelled, such as 1.50."""


class SpelledNumber(float):
    """spelling: its letters, as JSON text had them."""

    spelling: str

    def __new__(cls, spelling: str) -> "SpelledNumber":
        """The number that is spelled so."""
        number = super().__new__(cls, spelling)
        number.spelling = spelling
        return number
