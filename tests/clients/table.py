"""``python -m tests.clients.table``: try every client, and write the table of docs/clients.md from what they showed."""

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


def write(outcomes: list[Outcome]) -> None:
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    after = rest.partition(END)[2]
    lines = [*HEAD, *(outcome.row() for outcome in outcomes)]
    PAGE.write_text(before + BEGIN + "\n".join(lines) + "\n" + END + after, encoding="utf-8")


def main() -> int:
    outcomes = []
    with servers() as at:
        for client in CLIENTS:
            with tempfile.TemporaryDirectory() as home:
                outcome = try_client(client, at, Path(home))
            outcomes.append(outcome)
            print(f"{client.name} {outcome.version}: {', '.join(outcome.works) or 'nothing'}", flush=True)
            for feature, error in outcome.failed.items():
                print(f"    {feature} FAILED: {error}", flush=True)
    failed = sum(bool(outcome.failed) for outcome in outcomes)
    if failed:
        print("The table stays as it was, since something failed.")
    else:
        write(outcomes)
    print(f"{len(outcomes) - failed} passed, {failed} failed")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
