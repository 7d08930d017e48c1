"""Anthropic's own client."""

import anthropic
import pytest


@pytest.fixture
def claude(server):
    plain = anthropic.DefaultHttpxClient(verify=False)  # no TLS context, which takes longer than most of these tests
    with anthropic.Anthropic(
        base_url=server.url, api_key="none", max_retries=0, timeout=120, http_client=plain
    ) as client:
        yield client
