"""From settings to a guard, and what settings are refused."""

from pathlib import Path

import pytest

from ekiden.build.config_sources import all_settings, resolve
from ekiden.cli import own_server
from ekiden.cli.main import main
from ekiden.config import Config, ConfigError, GuardConfig, LedgerConfig, ServerConfig
from ekiden.errors import UserError
from ekiden.guard.approvals import MAX_OPEN, MAX_SETTLED, Approval, ApprovalError, Approvals, opened, voiced
from ekiden.guard.assemble import read_rules, state_path
from ekiden.guardrails.rules import RulesError


def test_a_guard_without_a_ledger_is_refused_before_anything_starts() -> None:
    with pytest.raises(ConfigError, match="guard is act and ledger is false; the guard reads the ledger"):
        Config(guard=GuardConfig(guard="act"), ledger=LedgerConfig(ledger=False))
    with pytest.raises(ConfigError, match="guard is watch and ledger is false"):
        resolve({"guard": "watch", "ledger": False}, {})


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"guard": "on"}, "guard is 'on'; it must be one of off, watch, act"),
        ({"guard_rules": "rules.toml"}, "guard_rules is given and guard is off; add --guard act"),
        ({"guard": "act", "guard_webhook": "hooks.example.org"}, "it must be a URL"),
        ({"guard": "act", "guard_command": "page 'now"}, "No closing quotation"),
        ({"guard": "act", "guard_command": "  "}, "guard_command is empty"),
    ],
)
def test_settings_that_cannot_work_are_refused(settings: dict[str, str], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        GuardConfig(**settings)  # type: ignore[arg-type]


def test_secrets_are_not_shown() -> None:
    settings = GuardConfig(guard="act", guard_webhook="https://hooks.example.org/SECRET", guard_webhook_key="SECRET")
    config = Config(guard=settings)
    assert "SECRET" not in str([setting.shown(setting.of(config)) for setting in all_settings()])


def test_the_state_is_kept_for_each_address() -> None:
    config = Config(server=ServerConfig(host="unix:/run/ekiden.sock"), ledger=LedgerConfig(ledger_dir="/var/ledger"))
    assert state_path(config) == Path("/var/ledger/guard-unix_run_ekiden.sock-8000.json")
    assert state_path(Config(server=ServerConfig(port=0))) is None
    named = Config(server=ServerConfig(port=0), guard=GuardConfig(guard_state="/var/guard.json"))
    assert state_path(named) == Path("/var/guard.json")


def test_a_server_that_a_command_starts_for_itself_has_no_guard(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not [name for name in own_server._variables(Config(guard=GuardConfig(guard="act"))) if "GUARD" in name]
    started: list[Config] = []

    def start(config: Config) -> None:
        started.append(config)
        raise UserError("that is enough")

    monkeypatch.setattr(own_server, "own_server", start)
    monkeypatch.setattr("ekiden.cli.loading.find_model", lambda config: None)
    monkeypatch.setenv("EKIDEN_GUARD", "act")
    assert main(["chat"]) == 2
    assert [config.guard.guard for config in started] == ["off"]


def test_rules_are_read_where_the_guard_is_on(tmp_path: Path) -> None:
    assert read_rules(Config()).rules == ()
    assert len(read_rules(Config(guard=GuardConfig(guard="watch"))).rules) >= 5
    path = tmp_path / "rules.toml"
    path.write_text("[[rules]]\n")
    with pytest.raises(RulesError):
        read_rules(Config(guard=GuardConfig(guard="act", guard_rules=str(path))))


# --- approvals


def ask(approvals: Approvals, subject: str, needed: int = 1) -> tuple[Approvals, Approval]:
    return opened(
        approvals, kind="release", subject=subject, asked_by="anna", why="w", at=0.0, needed=needed, person=False
    )


def test_settled_approvals_are_kept_to_a_bound_and_their_names_are_never_given_again() -> None:
    approvals, names = Approvals(), set()
    for index in range(MAX_SETTLED + 20):
        approvals, asked = ask(approvals, f"s{index}")
        names.add(asked.id)
        approvals, _ = voiced(approvals, asked.id, who="anna", why="y", at=1.0, yes=True)
    assert len(approvals.all) == MAX_SETTLED
    assert len(names) == MAX_SETTLED + 20
    with pytest.raises(ApprovalError, match="is approved already"):
        voiced(approvals, approvals.all[-1].id, who="bert", why="n", at=2.0, yes=False)
    with pytest.raises(ApprovalError, match="there is no approval 'a1'; open are: none"):
        approvals.find("a1")


def test_not_too_many_can_be_open() -> None:
    approvals = Approvals()
    for index in range(MAX_OPEN):
        approvals, _ = ask(approvals, f"s{index}")
    with pytest.raises(ApprovalError, match="settle some of them first"):
        ask(approvals, "one more")


def test_one_no_refuses() -> None:
    approvals, asked = ask(Approvals(), "s", needed=2)
    approvals, _ = voiced(approvals, asked.id, who="anna", why="y", at=1.0, yes=True)
    approvals, told = voiced(approvals, asked.id, who="anna", why="on second thoughts", at=2.0, yes=False)
    assert (told.state, told.lacking) == ("refused", 0)
