"""The tools of /v1/responses: functions, those of a namespace, and custom tools, which take a text."""

SEPARATOR = "__"  # between the name of a namespace and that of a function in it


def flat_name(name: str, space: str | None) -> str:
    """The one name of a function in a namespace."""
    return name if space is None else f"{space}{SEPARATOR}{name}"
