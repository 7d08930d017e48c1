"""The address of a server that speaks OpenAI's protocol, and the headers of what is sent to it."""

from urllib.parse import urlsplit

from tokenmill.errors import ConfigError


def check_address(option: str, url: str, key_option: str) -> None:
    """Raise ConfigError, naming the option, for what is no address of a server."""
    if "@" in url:  # first, since the address is written into results and into the error below
        raise ConfigError(option, "…@…", f"an address without user and password; a key goes into {key_option}")
    try:
        parts = urlsplit(url)
        fine = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        fine = False
    if not fine:
        raise ConfigError(option, url, "an address as http://127.0.0.1:8000")


def check_key(option: str, key: str | None) -> None:
    """Raise ConfigError, naming the option, for a key that no header can hold; the key itself is not shown."""
    if key and not (key.isascii() and key.isprintable()):
        raise ConfigError(option, "…", "printable ASCII, since it travels in a header")


def endpoint(url: str, path: str) -> str:
    """Return the address of an endpoint; `url` may end in /v1, as other clients want it."""
    return f"{url.rstrip('/').removesuffix('/v1')}/v1/{path}"


def headers_of(key: str | None) -> dict[str, str]:
    """Return the headers of every request. A compressed stream would be held back until there is enough to compress."""
    own = {"Authorization": f"Bearer {key}"} if key else {}
    return {"Content-Type": "application/json", "Accept-Encoding": "identity", "Connection": "close", **own}
