"""The report in a real browser: it asks for nothing, can be read by anybody, and fits every window and paper."""

from itertools import cycle
from pathlib import Path

import pytest

from ekiden.evaluation.outcome import Label, Verdict
from ekiden.evaluation.report.numbers import Numbers
from ekiden.evaluation.report.page import page
from ekiden.evaluation.report.words import LANGUAGES, words
from tests.browser.conftest import Open
from tests.unit.evaluation.report.sample import HOSTILE, sample

pytestmark = pytest.mark.asyncio(loop_scope="session")
ARMS = ("continuous", "static", "window")
A4_WIDTH = 703
"""CSS pixels between the margins."""


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("reports")
    found = {language: folder / f"{language}.html" for language in LANGUAGES}
    # Fewer rows than there may be: the rules of accessibility are tried on each.
    figures = [each for each in sample().figures if each.arm in ARMS and each.workload == "azure-conversation"]
    for language, file in found.items():
        file.write_text(page(sample(figures=figures), language), encoding="utf-8")
    return found


@pytest.mark.parametrize("language", LANGUAGES)
async def test_nothing_is_asked_for_and_nothing_runs(open_page: Open, reports, language):
    opened = await open_page(reports[language])
    assert opened.requests == []
    assert opened.messages == []  # what the policy blocks would be told here
    assert await opened.page.locator("html").get_attribute("lang") == language
    assert await opened.page.locator("script, img, iframe, link:not([rel=icon]), object").count() == 0


async def test_hostile_names_are_text(open_page: Open, reports):
    opened = await open_page(reports["en"])
    assert await opened.page.title() == "Evaluation: Do not adopt"
    await opened.unfold()
    assert HOSTILE in await opened.page.locator("#plan").inner_text()
    assert HOSTILE in await opened.page.locator("#subgroups").inner_text()
    assert opened.messages == []


async def test_the_policy_stops_what_would_get_through(open_page: Open, reports, tmp_path):
    """The same page with a script and a picture that nobody escaped: neither does anything."""
    broken = tmp_path / "broken.html"
    planted = HOSTILE + "<img src='http://127.0.0.1:9/x.png'><p style='position:fixed'>x</p>"
    broken.write_text(reports["en"].read_text(encoding="utf-8").replace("<main>", "<main>" + planted), encoding="utf-8")
    opened = await open_page(broken)
    assert await opened.page.title() == "Evaluation: Do not adopt"
    assert opened.requests == []
    assert len(opened.messages) >= 4


@pytest.mark.parametrize(("language", "scheme"), [("en", "light"), ("ja", "dark")])
async def test_anybody_can_read_it(open_page: Open, reports, language, scheme):
    opened = await open_page(reports[language], scheme=scheme)
    await opened.unfold()
    assert await opened.violations() == []


async def test_the_accessibility_check_finds_faults(open_page: Open, tmp_path):
    bad = tmp_path / "bad.html"
    bad.write_text("<title>x</title><p style='color:#ccc;background:#fff'>pale</p><img src='data:,'>", encoding="utf-8")
    found = " ".join(await (await open_page(bad)).violations())
    assert all(rule in found for rule in ("color-contrast", "image-alt", "html-has-lang"))


@pytest.mark.parametrize("width", [360, 768, 1440, 2560])
@pytest.mark.parametrize("language", LANGUAGES)
async def test_it_fits_the_window(open_page: Open, reports, language, width):
    opened = await open_page(reports[language], width=width)
    assert await opened.sticking_out() == []
    await opened.unfold()
    assert await opened.sticking_out() == []


@pytest.mark.parametrize("language", LANGUAGES)
async def test_each_verdict_is_as_large_and_in_the_first_screen(open_page: Open, tmp_path, language):
    sizes = set()
    for verdict, label in zip(Verdict, cycle(Label), strict=False):
        file = tmp_path / "report.html"
        file.write_text(page(sample(verdict, label, figures=[], slots=[]), language), encoding="utf-8")
        opened = await open_page(file, width=360, height=640)
        word = opened.page.locator("h1 .word")
        assert await word.inner_text() == words(language)(f"verdict.{verdict.value}")
        box = await word.bounding_box()
        assert box is not None
        assert box["y"] + box["height"] < 640
        assert await opened.page.locator(".chip").first.inner_text() == words(language)(f"label.{label.value}")
        sizes.add(await word.evaluate("each => getComputedStyle(each).fontSize"))
    assert len(sizes) == 1


async def test_a_falsifier_that_is_met_comes_before_all_other_text(open_page: Open, reports):
    opened = await open_page(reports["en"])
    after = await opened.page.locator("h1 + *").inner_text()
    assert after.startswith("A registered falsifier was met: The gain comes from filling freed slots")


async def test_every_figure_of_the_metrics_is_on_the_page(open_page: Open, reports):
    opened = await open_page(reports["en"])
    await opened.unfold()
    text, n = await opened.page.locator("#metrics").inner_text(), Numbers(words("en"))
    for metric in sample().metrics:
        values = metric.comparison
        assert n.result(values, metric.unit) in text
        assert n.result_interval(values, metric.unit) in text
        if values.scale != "share":
            assert n.of(values.candidate, metric.unit) in text
            assert n.of(values.baseline, metric.unit) in text
        if metric.judged and metric.success_condition:
            assert metric.reason in text


async def test_details_are_closed_on_the_screen_and_open_on_paper(open_page: Open, reports):
    opened = await open_page(reports["en"], width=A4_WIDTH)
    inside = opened.page.locator("#formulas dt").first
    assert not await inside.is_visible()
    await opened.page.emulate_media(media="print")
    assert await inside.is_visible()
    height = "document.documentElement.scrollHeight"
    printed = await opened.page.evaluate(height)
    await opened.unfold()
    assert await opened.page.evaluate(height) == pytest.approx(printed, rel=0.01)  # nothing was left closed


@pytest.mark.parametrize("language", LANGUAGES)
async def test_it_prints_on_paper(open_page: Open, reports, language):
    opened = await open_page(reports[language], width=A4_WIDTH, scheme="dark", media="print")
    assert await opened.page.evaluate("getComputedStyle(document.body).color") == "rgb(0, 0, 0)"  # ink, even at night
    assert not await opened.page.locator("nav").is_visible()
    outside = await opened.page.evaluate(
        "() => [...document.querySelectorAll('main *')].filter(each => each.getBoundingClientRect().right"
        " > innerWidth + 1).map(each => each.outerHTML.slice(0, 160))"
    )
    assert outside == []
    tall = await opened.page.evaluate(
        "() => [...document.querySelectorAll('figure')]"
        ".filter(each => each.getBoundingClientRect().height > 1000).length"
    )
    assert tall == 0  # none that a page could not hold whole
    assert (await opened.page.pdf(prefer_css_page_size=True)).startswith(b"%PDF-")


async def test_dark_and_light_differ(open_page: Open, reports):
    colours = set()
    for scheme in ("light", "dark"):
        opened = await open_page(reports["en"], scheme=scheme)
        colours.add(await opened.page.evaluate("getComputedStyle(document.body).backgroundColor"))
        # What drawings are made of follows, as it is the same style.
        colours.add(await opened.page.locator(".line.c0").first.evaluate("each => getComputedStyle(each).stroke"))
    assert len(colours) == 4
