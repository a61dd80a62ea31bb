"""The documentation's site, as `make docs` builds it, in a real browser."""

import contextlib
import re
import shlex
import shutil
import subprocess
import sys

import pytest
from conftest import ROOT

import paddle_mnist
from paddle_mnist.mnist.config import FLAT_OPTIONS

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
MAKEFILE = (ROOT / "Makefile").read_text()
COMMANDS = re.findall(r"^\t\$\(SITE\) (.*)$", MAKEFILE, re.M)
# One of them in CI, both before a release.
in_either = pytest.mark.parametrize(
    "language", [pytest.param("en", marks=pytest.mark.release), "zh"]
)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The folder of the site, built by the commands of `make docs`: warnings are errors."""
    pytest.importorskip("sphinx", reason="needs the extra docs")
    folder = tmp_path_factory.mktemp("site")
    (options,) = re.findall(r"^SITE = \$\(RUN\)/python (.*)$", MAKEFILE, re.M)
    for command in COMMANDS:
        *arguments, target = shlex.split(f"{options} {command}")
        built = [sys.executable, *arguments, folder / target.rpartition("/")[2]]
        done = subprocess.run(built, cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    shutil.copy(ROOT / "docs/index.html", folder)
    return folder


@pytest.fixture
def visit(site, browser):
    """`visit("en/train.html#x", width=1280, ...)` opens a page; its scripts raise no error."""
    errors = []
    with contextlib.ExitStack() as closing:

        def open_page(address, width=1280, height=900, **options):
            context = closing.enter_context(
                browser.new_context(viewport={"width": width, "height": height}, **options)
            )
            page = context.new_page()
            page.on("pageerror", lambda error: errors.append(str(error)))
            page.goto(f"{site.as_uri()}/{address}")
            return page

        yield open_page
    assert errors == []


def test_site_has_every_page_option_and_public_name(site):
    missing = [
        path.name
        for language in ("en", "zh")
        for path in (ROOT / "docs" / language).glob("*.md")
        if not (site / language / f"{path.stem}.html").exists()
    ]
    assert not missing
    first, commands, api = (
        (site / f"en/{name}.html").read_text() for name in ("index", "commands", "api")
    )
    assert 'id="kill-it"' in first and 'id="all-pages"' in first  # the README, and what follows it
    assert all(f'id="train-{name}"' in commands for name in FLAT_OPTIONS)
    assert all(f'id="paddle_mnist.{name}"' in api for name in paddle_mnist.__all__)


# What readers look for, and the pages that answer it.
QUERIES = {
    "zh": {
        "学习率": "train",
        "导出模型": "deployment",
        "损失不下降": "looking-inside",
    },
    "en": {
        "learning rate": "train",
        "export": "deployment",
        "own dataset": "any-net",
    },
}


@in_either
def test_search_lists_the_page_among_its_first_three(visit, language):
    page = visit(f"{language}/index.html")
    found = {}
    for query in QUERIES[language]:
        page.locator(".search-button__button").first.click()
        page.locator("input[name=q]:visible").last.fill(query)
        with page.expect_navigation():
            page.keyboard.press("Enter")
        page.wait_for_selector("li.hit")
        hits = page.locator("li.hit h2 a").evaluate_all("links => links.map(link => link.href)")
        found[query] = [hit.rpartition("/")[2] for hit in hits[:3]]
    for query, expected in QUERIES[language].items():
        assert f"{expected}.html" in found[query], query


@in_either
def test_pages_fit_a_phone_and_python_code_a_laptop(visit, site, language):
    page = visit(f"{language}/index.html", width=390, height=800)
    laptop = visit(f"{language}/index.html", width=1280)
    for path in sorted((site / language).glob("*.html")):
        page.goto(path.as_uri())
        assert page.evaluate("document.documentElement.scrollWidth") <= 390, path.name
        if "highlight-python" in path.read_text():
            laptop.goto(path.as_uri())
            clipped = laptop.locator(".highlight-python pre").evaluate_all(
                "blocks => blocks.filter(block => block.scrollWidth > block.clientWidth).length"
            )
            assert clipped == 0, path.name


def test_first_page_is_in_the_readers_language_and_a_switch_keeps_the_anchor(visit):
    for locale, language in (("zh-CN", "zh"), ("en-GB", "en"), ("fr", "en")):
        page = visit("index.html", locale=locale)
        page.wait_for_url(f"**/{language}/index.html")
    page = visit("en/resume.html#signals-and-exceptions")
    for language in ("zh", "en"):
        page.locator("a.language-switch:visible").first.click()
        page.wait_for_url(f"**/{language}/resume.html#signals-and-exceptions")
        assert page.locator("section#signals-and-exceptions").count() == 1
