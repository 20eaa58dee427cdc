"""``/admin/releases``: a person's yes or no, in the name of the key, and absent where there is nothing to say it to."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from ekiden.api.app import create_app
from ekiden.api.keys import new_key
from ekiden.config import Config, ServerConfig
from ekiden.dashboard.ports import PagePorts
from ekiden.errors import UserError
from tests.api.conftest import assert_error, memory_client
from tests.api.scripted import ScriptedEngine, make_tokenizer


class Notes:
    """Implements :class:`ekiden.dashboard.ports.Releases`, and notes what is asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[Any, ...]] = []

    def listed(self) -> list[dict[str, Any]]:
        return [{"name": "more-slots-1"}]

    def act(self, action: str, name: str, who: str, why: str, *, despite_inconclusive: bool = False) -> dict[str, Any]:
        if name == "other":
            raise UserError("no release 'other' in the folder")
        self.asked.append((action, name, who, why, despite_inconclusive))
        return {"phase": "Paused"}


@pytest.fixture
def notes() -> Notes:
    return Notes()


@pytest.fixture
async def http(tmp_path: Path, notes: Notes) -> AsyncIterator[httpx.AsyncClient]:
    (admin, admin_hash), (user, user_hash) = new_key(), new_key()
    path = tmp_path / "keys.toml"
    path.write_text(
        f'[[keys]]\nname = "ops"\nhash = "{admin_hash}"\nscopes = ["admin"]\n'
        f'[[keys]]\nname = "user"\nhash = "{user_hash}"\n'
    )
    tokenizer = make_tokenizer()
    config = Config(server=ServerConfig(api_keys_file=str(path)))
    app = create_app(ScriptedEngine(tokenizer), tokenizer, None, config, page=PagePorts(releases=lambda: notes))
    async with memory_client(app) as client:
        client.headers["authorization"] = f"Bearer {admin}"
        client.headers["x-user"] = user
        yield client


async def test_the_act_carries_the_name_of_the_key(http: httpx.AsyncClient, notes: Notes):
    body = {"action": "approve", "name": "more-slots", "reason": "seen", "despite_inconclusive": True}
    assert (await http.post("/admin/releases", json=body)).json() == {"phase": "Paused"}
    await http.post("/admin/releases", json={"action": "abort", "name": "more-slots", "reason": "no"})
    assert notes.asked == [("approve", "more-slots", "ops", "seen", True), ("abort", "more-slots", "ops", "no", False)]
    assert (await http.get("/dashboard/data/releases")).json() == {"releases": [{"name": "more-slots-1"}]}


async def test_what_cannot_be_done_is_said(http: httpx.AsyncClient, notes: Notes):
    told = await http.post("/admin/releases", json={"action": "promote", "name": "other", "reason": "x"})
    assert assert_error(told, 409, code="release_state") == "No release 'other' in the folder."
    assert_error(
        await http.post("/admin/releases", json={"action": "start", "name": "a", "reason": "x"}), 400, "action"
    )
    assert_error(await http.post("/admin/releases", json={"action": "abort", "name": "a"}), 400, "reason")
    user = {"authorization": f"Bearer {http.headers['x-user']}"}
    body = {"action": "abort", "name": "a", "reason": "x"}
    assert_error(await http.post("/admin/releases", json=body, headers=user), 403, code="insufficient_scope")
    assert_error(await http.get("/dashboard/data/releases", headers=user), 403, code="insufficient_scope")
    assert notes.asked == []
