"""The page about releases shows a plan that can be run."""

import re
from pathlib import Path

from ekiden.release.plan import parse_release

PAGE = Path(__file__).parents[3] / "docs" / "release.md"


def test_the_plan_of_the_page_is_sound() -> None:
    (text,) = re.findall(r"```toml\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    plan = parse_release(text)
    assert plan.name == "more-slots"
    assert plan.canary.pairs == 12
