"""Clients that others wrote, from their own packages, at a real server of the default model, and at one whose model
calls tools when it is offered them."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.clients.table import rows
from tests.clients.trial import CLIENTS, LIGHT, Client, Servers, servers, try_client
from tests.model_threads import WORKERS


@pytest.fixture(scope="module")
def real_servers() -> Iterator[Servers]:
    with servers(threads=1 if WORKERS > 1 else None) as both:
        yield both


@pytest.mark.parametrize(
    "client", [client for client in CLIENTS if client.environment in LIGHT], ids=lambda client: client.name
)
def test_a_client_works_as_the_table_says(client: Client, real_servers: Servers, tmp_path: Path) -> None:
    outcome = try_client(client, real_servers, tmp_path)
    assert outcome.failed == {}
    assert outcome.row() in rows(), "make test-clients writes the table of docs/clients.md anew"
