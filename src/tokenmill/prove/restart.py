"""A server restarted by a command of the user, and waited for."""

import asyncio

import httpx2

from tokenmill.errors import TokenmillError
from tokenmill.prove.client import Client
from tokenmill.prove.greeting import GREETING_S


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
    """Whether the server answers before the limit."""
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
