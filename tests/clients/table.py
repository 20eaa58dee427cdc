"""``python -m tests.clients.table [NAME ...]``: try every client, or those named, and write what they showed into the
table of docs/clients.md. The row of a client that failed stays as it was."""

import sys
import tempfile
from pathlib import Path

from tests.clients.trial import CLIENTS, ROOT, Outcome, servers, try_client

PAGE = ROOT / "docs" / "clients.md"
BEGIN, END = "<!-- The table begins: make test-clients writes it. -->\n", "<!-- The table ends. -->\n"
HEAD = ["| client | version | what works | tried by |", "| --- | --- | --- | --- |"]


def rows() -> list[str]:
    """Of the table as it stands, without its head."""
    text = PAGE.read_text(encoding="utf-8")
    return text.partition(BEGIN)[2].partition(END)[0].splitlines()[len(HEAD) :]


def write(outcome: Outcome) -> None:
    """Put a row into its place; rows of clients that are no more are left out."""
    known = {row.partition(" | ")[0]: row for row in [*rows(), outcome.row()]}
    lines = [known[f"| {client.shown}"] for client in CLIENTS if f"| {client.shown}" in known]
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    PAGE.write_text(before + BEGIN + "\n".join([*HEAD, *lines]) + "\n" + END + rest.partition(END)[2], encoding="utf-8")


def main(names: list[str]) -> int:
    unknown = set(names) - {client.name for client in CLIENTS}
    if unknown:
        print(f"No client has the name {', '.join(sorted(unknown))}: {' '.join(client.name for client in CLIENTS)}")
        return 2
    passed = failed = 0
    with servers() as at:
        for client in CLIENTS:
            if names and client.name not in names:
                continue
            with tempfile.TemporaryDirectory() as home:
                outcome = try_client(client, at, Path(home))
            print(f"{client.name} {outcome.version}: {', '.join(outcome.works) or 'nothing'}", flush=True)
            for feature, error in outcome.failed.items():
                print(f"    {feature} FAILED: {error}", flush=True)
            if outcome.failed:
                failed += 1
            else:
                passed += 1
                write(outcome)
    print(f"{passed} passed, {failed} failed")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
