"""The first words with a server, also after it was restarted: whether one answers at an address, and which model it
has.
"""

import asyncio
import ssl
from typing import Any

import httpx2

from tokenmill.errors import TokenmillError
from tokenmill.prove.answer import message_in
from tokenmill.prove.client import FULL, Client, always_full, reason_of
from tokenmill.prove.settings import Settings

GREETING_S = 20.0


async def find_model(client: Client) -> str | None:
    """Find the model to ask for: the one that was named, or the first that the server lists. This is also the first
    proof that a server answers there.
    """
    settings = client.settings
    address = settings.at("models")
    try:
        status, document = await _models(client)
    except TimeoutError:
        raise TokenmillError(f"no server answers at {settings.url} within {GREETING_S:g} s") from None
    except (httpx2.HTTPError, httpx2.InvalidURL) as error:
        raise TokenmillError(_unreachable(settings, error)) from None
    if status in (401, 403):
        raise TokenmillError(wants_key(settings, address, status))
    if settings.model is not None:
        return settings.model
    try:
        return str(document["data"][0]["id"])
    except (LookupError, TypeError):
        what = "no list of models" if document is not None else "no JSON"
        raise TokenmillError(
            f"{address} answers {what} (HTTP {status}): give the address before /v1 of an OpenAI-compatible server, "
            "or say with --model which name to ask for"
        ) from None


async def _models(client: Client) -> tuple[int, Any]:
    """Return the list of models, and its status. A server that is full, or still loads, is asked again for a while."""
    settings, waited_s, pause_s = client.settings, 0.0, 0.5
    while True:
        status, document = await client.get("models", min(settings.time_s, GREETING_S))
        if status not in FULL:
            return status, document
        if waited_s >= settings.patience_s:
            raise always_full(settings, status, waited_s, message_in(document or ""))
        await asyncio.sleep(pause_s := min(2 * pause_s, settings.patience_s - waited_s))
        waited_s += pause_s


def _unreachable(settings: Settings, error: Exception) -> str:
    reason, cause = reason_of(error), error.__cause__ or error.__context__ or error
    if isinstance(cause, ssl.SSLCertVerificationError) or "CERTIFICATE_VERIFY" in reason:
        return f"{settings.url} has a certificate that is not trusted here ({reason}): give its authority by --ca-file"
    if isinstance(cause, ssl.SSLError) or "SSL" in reason:
        return f"{settings.url} does not speak TLS ({reason}): give the address with http://, if that is what it speaks"
    if settings.url.startswith("http:") and isinstance(error, httpx2.RemoteProtocolError):
        return f"{settings.url} does not answer in HTTP ({reason}): a server with TLS has an address with https://"
    return f"no server answers at {settings.url} ({reason}): start one, or check the address"


def wants_key(settings: Settings, address: str, status: int) -> str:
    """Make the message for a server that refuses a request for want of a key."""
    wanted = "another key" if settings.key else "a key"
    return f"{address} wants {wanted} (HTTP {status}): give it with --key, or in OPENAI_API_KEY"


async def restart_by(command: str, client: Client) -> None:
    """Run --restart, which must have ended the old server when it returns, and wait for the new one."""
    limit_s = client.settings.request_limit_s
    process = await asyncio.create_subprocess_shell(
        command, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.DEVNULL, start_new_session=True
    )
    try:
        async with asyncio.timeout(limit_s):
            code = await process.wait()
    except TimeoutError:
        process.kill()
        raise TokenmillError(
            f"--restart {command!r} did not return within {limit_s:g} s: it should start the server in the "
            "background, or --request-timeout be longer"
        ) from None
    if code != 0:
        raise TokenmillError(f"--restart {command!r} failed with exit code {code}")
    if not await _is_back(client, limit_s):
        raise TokenmillError(
            f"{client.settings.url} did not answer within {limit_s:g} s after --restart: is it the command that "
            "starts it, or should --request-timeout be longer?"
        )


async def _is_back(client: Client, limit_s: float) -> bool:
    """Wait for the server, and tell whether it answers before the limit."""
    try:
        async with asyncio.timeout(limit_s):
            while not await _answers(client):
                await asyncio.sleep(0.2)
    except TimeoutError:
        return False
    return True


async def _answers(client: Client) -> bool:
    try:
        status, _ = await client.get("models", GREETING_S)
    except (httpx2.HTTPError, TimeoutError):
        return False
    return status < 500  # a server that still loads says 503
