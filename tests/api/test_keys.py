"""The file of API keys: what it may hold, scopes, tenants, reloading, and that keys stay secret."""

import asyncio
import hmac
import logging
import signal
import sys
from pathlib import Path

import httpx
import pytest

from ekiden.api.keys import KeyStore, Scope, new_key, read_keys
from ekiden.config import Config, ConfigError, ServerConfig
from ekiden.state.request import DEFAULT_TENANT
from tests.api.conftest import assert_error, memory_client
from tests.api.scripted import MODEL, ScriptedEngine, make_app, make_tokenizer

BODY = {"model": MODEL, "prompt": "x"}


def entry(name: str, digest: str, **fields: object) -> str:
    lines = [f'name = "{name}"', f'hash = "{digest}"', *(f"{key} = {value}" for key, value in fields.items())]
    return "[[keys]]\n" + "\n".join(lines) + "\n"


class Keys:
    """A file with the keys ``user`` (for inference), ``boss`` (both scopes) and ``ops`` (admin only)."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "keys.toml"
        made = {name: new_key() for name in ("user", "boss", "ops")}
        self.key = {name: key for name, (key, _) in made.items()}
        self.digest = {name: digest for name, (_, digest) in made.items()}
        self.path.write_text(
            entry("user", self.digest["user"], tenant='"acme"')
            + entry("boss", self.digest["boss"], scopes='["inference", "admin"]')
            + entry("ops", self.digest["ops"], scopes='["admin"]')
        )

    def header(self, name: str) -> dict[str, str]:
        return {"authorization": f"Bearer {self.key[name]}"}


@pytest.fixture
def keys(tmp_path: Path) -> Keys:
    return Keys(tmp_path)


class Served:
    def __init__(self, http: httpx.AsyncClient, engine: ScriptedEngine) -> None:
        self.http = http
        self.engine = engine

    async def complete(self, **headers: str) -> httpx.Response:
        return await self.http.post("/v1/completions", json=BODY, headers=headers)


@pytest.fixture
async def served(keys: Keys):
    engine = ScriptedEngine(make_tokenizer())
    config = Config(server=ServerConfig(api_keys_file=str(keys.path), tenant_header="X-Tenant"))
    async with memory_client(make_app(engine, config)) as http:
        yield Served(http, engine)


async def test_scopes(served: Served, keys: Keys):
    expected = {
        "user": {"post": 200, "get": 200, "admin": 403},
        "boss": {"post": 200, "get": 200, "admin": 200},
        "ops": {"post": 403, "get": 200, "admin": 200},
    }
    for name, wanted in expected.items():
        assert (await served.complete(**keys.header(name))).status_code == wanted["post"]
        assert (await served.http.get("/metrics", headers=keys.header(name))).status_code == wanted["get"]
        assert (await served.http.get("/admin/policy", headers=keys.header(name))).status_code == wanted["admin"]
    assert_error(await served.complete(**keys.header("ops")), 403, code="insufficient_scope")


@pytest.mark.parametrize("header", ["x-api-key", "X-API-Key"])
async def test_keys_as_anthropic_clients_send_them(served: Served, keys: Keys, header):
    assert (await served.complete(**{header: keys.key["user"]})).status_code == 200
    assert (await served.complete(**{header: keys.key["user"]}, **keys.header("user"))).status_code == 200
    assert_error(await served.complete(**{header: keys.key["user"]}, **keys.header("boss")), 401)
    assert_error(await served.complete(**{header: ""}), 401)


async def test_every_stored_key_is_compared(keys: Keys, monkeypatch):
    """A match ends nothing early, so that the time says nothing of a key's place."""
    store = KeyStore(api_key="fixed", path=str(keys.path))
    compared: list[bytes] = []

    def compare(given: bytes, stored: bytes) -> bool:
        compared.append(stored)
        return given == stored

    monkeypatch.setattr(hmac, "compare_digest", compare)
    for name in ("user", "boss", "ops"):
        compared.clear()
        principal = store.find(keys.key[name].encode())
        assert principal is not None
        assert principal.name == name
        assert len(set(compared)) == 4
    fixed = store.find(b"fixed")
    assert fixed is not None
    assert fixed.scopes == {Scope.INFERENCE}
    assert store.find(b"other") is None


async def test_tenants(served: Served, keys: Keys):
    await served.complete(**keys.header("user"))
    await served.complete(**keys.header("user"), **{"x-tenant": "other"})
    await served.complete(**keys.header("boss"))
    await served.complete(**keys.header("boss"), **{"x-tenant": "team-7"})
    assert [request.tenant for request in served.engine.requests] == ["acme", "acme", "boss", "team-7"]


@pytest.mark.parametrize("value", ["", "a b", "x" * 65, "käse", "a\tb"])
async def test_wrong_tenant_headers(served: Served, keys: Keys, value):
    headers = [*keys.header("boss").items(), ("x-tenant", value.encode())]
    response = await served.http.post("/v1/completions", json=BODY, headers=headers)
    assert_error(response, 400, "X-Tenant")
    twice = [*keys.header("boss").items(), ("x-tenant", "a"), ("x-tenant", "b")]
    assert_error(await served.http.post("/v1/completions", json=BODY, headers=twice), 400, "X-Tenant")
    assert served.engine.requests == []


@pytest.mark.parametrize(("header", "tenant"), [(None, DEFAULT_TENANT), ("x-ekiden-tenant", "blue")])
async def test_tenant_without_keys(header, tenant):
    engine = ScriptedEngine(make_tokenizer())
    config = Config(server=ServerConfig(tenant_header=header))
    async with memory_client(make_app(engine, config)) as http:
        headers = {"x-ekiden-tenant": "blue", "x-request-id": "mine"}
        assert (await http.post("/v1/completions", json={**BODY, "n": 2}, headers=headers)).status_code == 200
    assert [request.tenant for request in engine.requests] == [tenant] * 2
    assert [request.external_id for request in engine.requests] == ["mine"] * 2


async def test_a_changed_file_is_read_again(served: Served, keys: Keys, tmp_path: Path):
    now = 100.0
    store = KeyStore(path=str(keys.path), clock=lambda: now)
    key, digest = new_key()
    other = tmp_path / "other.toml"
    other.write_text(entry("late", digest))
    other.replace(keys.path)
    store.refresh()
    assert store.find(key.encode()) is None  # looked at less than a second ago
    now += 1.0
    store.refresh()
    found = store.find(key.encode())
    assert found is not None
    assert found.name == "late"
    assert store.find(keys.key["user"].encode()) is None
    assert not store.has_admin
    keys.path.write_text("# all taken away\n")
    now += 1.0
    store.refresh()
    assert store.find(key.encode()) is None
    assert store.required


@pytest.mark.parametrize("text", [None, "[[keys]\nek-secret", '[[keys]]\nname = "x"\nhash = "ek-secret"\n'])
async def test_a_broken_file_leaves_the_keys_as_they_were(keys: Keys, caplog, text):
    store = KeyStore(path=str(keys.path))
    if text is None:
        keys.path.unlink()
    else:
        keys.path.write_text(text)
    with caplog.at_level(logging.ERROR):
        store.reload()
    assert store.find(keys.key["user"].encode()) is not None
    assert str(keys.path) in caplog.text
    assert "ek-secret" not in caplog.text


HASH = "sha256:" + "0" * 64


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("", "ekiden keys new"),
        ("keys = 5", "[[keys]]"),
        ("[tenants]", "[[keys]]"),
        ("keys = [5]", "key 1"),
        ('[[keys]]\nname = "a"', "hash"),
        (f'[[keys]]\nhash = "{HASH}"', "name"),
        (f'[[keys]]\nname = "a b"\nhash = "{HASH}"', "name"),
        (f'[[keys]]\nname = "a"\nhash = "{HASH}"\nkey = "x"', "'key'"),
        (f'[[keys]]\nname = "a"\nhash = "{HASH}"\ntenant = ""', "tenant"),
        (f'[[keys]]\nname = "a"\nhash = "{HASH}"\nscopes = "admin"', "scopes"),
        (f'[[keys]]\nname = "a"\nhash = "{HASH}"\nscopes = []', "scopes"),
        (f'[[keys]]\nname = "a"\nhash = "{HASH}"\nscopes = ["root"]', "scopes"),
        (f'[[keys]]\nname = "a"\nhash = "{HASH}"\nscopes = [["admin"]]', "scopes"),
        (entry("a", HASH) + entry("b", HASH), "same hash"),
        (entry("a", HASH) + entry("a", HASH.replace("0", "1")), "same name"),
        (entry("a", "sha256:123"), "hash"),
    ],
)
def test_files_that_cannot_be_used(tmp_path: Path, text, names):
    path = tmp_path / "keys.toml"
    path.write_text(text)
    with pytest.raises(ConfigError) as error:
        KeyStore(path=str(path))
    assert names in str(error.value)
    assert str(path) in str(error.value)


def test_no_such_file(tmp_path: Path):
    with pytest.raises(ConfigError, match="No such file"):
        KeyStore(path=str(tmp_path / "none.toml"))


async def test_secrets_are_in_no_log_and_no_answer(served: Served, keys: Keys, caplog):
    """Neither the keys that are right nor those that are wrong."""
    wrong = "ek-" + "w" * 43
    with caplog.at_level(logging.DEBUG):
        answers = []
        for headers in (keys.header("user"), {"x-api-key": keys.key["user"]}, {"authorization": f"Bearer {wrong}"}):
            paths = ("/v1/models", "/admin/policy", "/nowhere", "/version", "/docs", "/openapi.json")
            answers += [await served.http.get(path, headers=headers) for path in paths]
            answers.append(await served.http.post("/v1/completions", json={**BODY, "n": 0}, headers=headers))
            served.engine.script = lambda request: [][1]  # an error of our own, with its traceback in the log
            answers.append(await served.complete(**headers))
    told = caplog.text + "".join(answer.text + str(answer.headers) for answer in answers)
    assert "IndexError" in told
    for secret in (*keys.key.values(), wrong, *keys.digest.values(), *(d[7:] for d in keys.digest.values())):
        assert secret not in told


PROGRAM = """
import logging, sys
from ekiden.api.server import serve
from ekiden.config import Config, ServerConfig
from tests.api.scripted import QUICK, ScriptedEngine, make_app, make_tokenizer

async def nothing():
    pass

logging.basicConfig(level="INFO", stream=sys.stdout)
app = make_app(ScriptedEngine(make_tokenizer()), Config(server=ServerConfig(api_keys_file=sys.argv[1])))
sys.exit(serve(lambda: app, QUICK, start=nothing, stop=nothing))
"""


async def test_sighup_reads_the_file_at_once(keys: Keys):
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-u", "-c", PROGRAM, str(keys.path), stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None

    async def line_with(text: str) -> str:
        assert process.stdout is not None
        while text not in (line := (await process.stdout.readline()).decode()):
            assert line
        return line

    try:
        url = (await line_with("Ekiden is ready")).split()[4]
        key, digest = new_key()
        keys.path.write_text(entry("late", digest))
        process.send_signal(signal.SIGHUP)
        await line_with("read 1 API keys")
        async with httpx.AsyncClient(base_url=url, headers={"x-api-key": key}, timeout=60) as http:
            assert (await http.get("/v1/models")).status_code == 200
    finally:
        process.terminate()
        await process.communicate()
    assert process.returncode == 0


def test_what_the_command_prints_can_be_read(tmp_path: Path):
    from click.testing import CliRunner

    from ekiden.cli.keys import command

    result = CliRunner().invoke(command, ["new", "alice", "--tenant", "acme", "--scope", "admin"])
    assert result.exit_code == 0
    path = tmp_path / "keys.toml"
    path.write_text(result.stdout)
    (stored,) = read_keys(path)
    assert stored.principal.name == "alice"
    assert stored.principal.tenant == "acme"
    assert stored.principal.scopes == {Scope.ADMIN}
    key = result.stderr.split()[-1]
    assert KeyStore(path=str(path)).find(key.encode()) == stored.principal
    assert key not in result.stdout
