"""Evaluations, their reports and releases on the page, and a person's yes to a release over HTTP."""

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from ekiden.api import page_shelves
from ekiden.api.keys import new_key
from ekiden.config import Config, LedgerConfig, ServerConfig
from ekiden.dashboard.ports import EvaluationLine, PagePorts
from ekiden.errors import UserError
from ekiden.evaluation.report.shelf import Shelf
from tests.api.conftest import assert_error
from tests.api.real_core import RealCore, real_core

DONE = Path(__file__).parents[2] / "docs" / "evaluation"
DATA = "/dashboard/data/"


class FakeReleases:
    """One release, which waits."""

    def __init__(self) -> None:
        self.acts: list[tuple[str, str, str, bool]] = []

    def listed(self) -> list[dict[str, Any]]:
        return [{"name": "try-1", "phase": "Paused", "acts": len(self.acts)}]

    def act(self, action: str, name: str, who: str, why: str, *, despite_inconclusive: bool = False) -> dict[str, Any]:
        if name != "try-1":
            raise UserError(f"no release {name!r}")
        self.acts.append((action, who, why, despite_inconclusive))
        return {"name": name, "acts": len(self.acts)}


@asynccontextmanager
async def shelves(tmp_path: Path, *, keys: bool) -> AsyncIterator[tuple[RealCore, FakeReleases, dict[str, Any]]]:
    headers: dict[str, Any] = {"anna": {}, "user": {}}
    server, path = ServerConfig(), tmp_path / "keys.toml"
    if keys:
        with path.open("w") as file:
            for name, scopes in (("anna", '["admin"]'), ("user", '["inference"]')):
                key, digest = new_key()
                headers[name] = {"authorization": f"Bearer {key}"}
                file.write(f'[[keys]]\nname = "{name}"\nhash = "{digest}"\nscopes = {scopes}\n')
        server = ServerConfig(api_keys_file=str(path))
    releases = FakeReleases()
    ports = PagePorts(evaluations=lambda: Shelf(DONE), releases=lambda: releases)
    config = Config(server=server, ledger=LedgerConfig(ledger_dir=str(tmp_path / "l")))
    async with real_core(config, record=True, live=True, page=ports) as core:
        yield core, releases, headers


async def test_a_report_opens_under_its_own_policy(tmp_path: Path):
    async with shelves(tmp_path, keys=False) as (core, _, _):
        (line,) = (await core.http.get(f"{DATA}evaluations")).json()["evaluations"]
        assert (line["name"], line["label"]) == ("2026-11-30", "confirmatory")
        for language, address in line["reports"].items():
            page = await core.http.get(address)
            assert f'<html lang="{language}">' in page.text
            policy = page.headers["content-security-policy"]
            assert re.fullmatch(
                r"default-src 'none'; style-src 'sha256-[^']+'; img-src data:; base-uri 'none'; form-action 'none'; "
                r"frame-ancestors 'none'",
                policy,
            )
        for name in ("2026-11-30/report.json", "../README.md", "README.md", "%2e%2e/api.md"):
            assert (await core.http.get(f"/dashboard/reports/{name}")).status_code == 404


async def test_where_there_are_keys_a_report_needs_a_ticket_that_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    async with shelves(tmp_path, keys=True) as (core, _, headers):
        bare = "/dashboard/reports/2026-11-30/report.html"
        assert_error(await core.http.get(bare), 403, code="ticket_over")
        listed = await core.http.get(f"{DATA}evaluations", headers=headers["anna"])
        address = listed.json()["evaluations"][0]["reports"]["en"]
        assert (await core.http.get(address)).status_code == 200
        until, ticket = (httpx.URL(address).params[name] for name in ("until", "ticket"))
        for forged in (
            f"{bare}?until={int(until) + 1}&ticket={ticket}",
            f"{bare}?until={until}&ticket={ticket[:-1]}x",
            f"{bare}?until=x&ticket={ticket}",
            f"{bare}?until={until}&ticket=é",
            address.replace("report.html", "report.ja.html"),
        ):
            assert_error(await core.http.get(forged), 403, code="ticket_over")
        monkeypatch.setattr(page_shelves, "TICKET_SECONDS", -1)
        listed = await core.http.get(f"{DATA}evaluations", headers=headers["anna"])
        address = listed.json()["evaluations"][0]["reports"]["en"]
        assert_error(await core.http.get(address), 403, code="ticket_over")


class NoPolicy:
    """A report that some other program wrote."""

    def __init__(self, content: bytes) -> None:
        self._content = content

    def listed(self) -> list[EvaluationLine]:
        return []

    def report(self, name: str) -> bytes | None:
        return self._content


@pytest.mark.parametrize(
    "head", ["", '<meta http-equiv="Content-Security-Policy" content="default-src *&#10;x: y">', "x" * 9000]
)
async def test_a_file_that_says_nothing_may_do_nothing(tmp_path: Path, head: str):
    ports = PagePorts(evaluations=lambda: NoPolicy(f"{head}<script>alert(1)</script>".encode()))
    async with real_core(page=ports, live=True) as core:
        page = await core.http.get("/dashboard/reports/x.html")
        assert page.headers["content-security-policy"] == "default-src 'none'; frame-ancestors 'none'"


async def test_an_act_on_a_release_names_the_person(tmp_path: Path):
    async with shelves(tmp_path, keys=True) as (core, releases, headers):
        body = {"action": "approve", "name": "try-1", "reason": "looks right"}
        assert_error(await core.http.post("/admin/releases", json=body), 401)
        assert_error(await core.http.post("/admin/releases", json=body, headers=headers["user"]), 403)
        assert_error(await core.http.get("/admin/releases", headers=headers["anna"]), 405)
        for wrong, status in (
            ({"name": "try-1", "reason": "x"}, 400),
            ({**body, "action": "start"}, 400),
            ({**body, "reason": ""}, 400),
            ({**body, "sure": True}, 400),
            ({**body, "name": "other"}, 409),
        ):
            assert_error(await core.http.post("/admin/releases", json=wrong, headers=headers["anna"]), status)
        foreign = headers["anna"] | {"origin": "http://evil.example"}
        assert_error(await core.http.post("/admin/releases", json=body, headers=foreign), 403, code="cross_site")
        assert releases.acts == []
        for action in ("approve", "promote", "abort"):
            told = await core.http.post("/admin/releases", json=body | {"action": action}, headers=headers["anna"])
            assert told.status_code == 200
        assert [act[:3] for act in releases.acts] == [
            (action, "anna", "looks right") for action in ("approve", "promote", "abort")
        ]
        sure = body | {"despite_inconclusive": True}
        assert (await core.http.post("/admin/releases", json=sure, headers=headers["anna"])).json()["acts"] == 4
        assert releases.acts[-1] == ("approve", "anna", "looks right", True)
        listed = await core.http.get(f"{DATA}releases", headers=headers["anna"])
        assert listed.json()["releases"][0]["name"] == "try-1"
