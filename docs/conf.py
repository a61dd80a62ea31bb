"""The documentation's site: `make docs` builds docs/en and docs/zh, each as a site of its own.

The pages are plain Markdown that a repository page shows as well as the site does, so what only
the site needs is here: its navigation, the language switch, and the pages that are made at build
time. REPRODUCTION.md and CHANGELOG.md, which are at the root of the repository, become pages too.
"""

import re
import sys
from pathlib import Path

DOCS = Path(__file__).parent
ROOT = DOCS.parent
sys.path[:0] = [str(DOCS / "_extensions"), str(ROOT)]

import paddle_mnist  # noqa: E402

project = "paddle_mnist"
author = "the paddle_mnist contributors"
version = release = paddle_mnist.__version__
language = "en"  # `-D language=zh_CN` for docs/zh
extensions = ["myst_parser", "sphinx.ext.autodoc", "command_help", "docstrings"]
templates_path = ["_templates"]
exclude_patterns = ["build"]
nitpicky = True

myst_heading_anchors = 4
suppress_warnings = ["myst.header"]  # a page may be an excerpt that starts at any level
myst_links_external_new_tab = False

autodoc_typehints = "none"  # signatures of these lengths read better without
autodoc_member_order = "bysource"

html_theme = "pydata_sphinx_theme"
html_title = "paddle_mnist"
html_copy_source = html_show_sourcelink = False
html_theme_options = {
    "logo": {"text": "paddle_mnist"},
    "navbar_center": [],  # all pages are in the sidebar
    "navbar_end": ["language_switch", "theme-switcher"],
    "footer_start": ["copyright"],
    "footer_end": [],
    "secondary_sidebar_items": ["page-toc"],
}
html_sidebars = {"**": ["pages"]}
html_context = {"default_mode": "auto"}
project_copyright = "the paddle_mnist contributors, Apache-2.0"

# Pages of each language that are files at the root of the repository, by their names in the site.
ROOT_PAGES = {
    "en": {"reproduction": "REPRODUCTION.md", "changelog": "CHANGELOG.md"},
    "zh": {"changelog": "CHANGELOG.md"},
}
# The navigation: each part's title in both languages, and its pages.
NAVIGATION = (
    ({"en": "Start", "zh": "入门"}, ("get-started", "install")),
    (
        {"en": "Train", "zh": "训练"},
        ("train", "resume", "checkpoints", "incremental", "several-processes", "any-net", "state"),
    ),
    ({"en": "Use the model", "zh": "诊断与部署"}, ("looking-inside", "deployment")),
    ({"en": "Measurements", "zh": "性能与复现"}, ("speed", "scale", "reproduction")),
    (
        {"en": "Migrate", "zh": "迁移"},
        ("coming-from", "from-02-to-03", "fluid", "parameter-servers"),
    ),
    (
        {"en": "Reference", "zh": "参考"},
        ("commands", "api", "stability", "changelog", "architecture", "development"),
    ),
)


def toctrees(source: Path, code: str) -> str:
    """Return the navigation as MyST: the pages that a language has."""
    parts = []
    for title, pages in NAVIGATION:
        present = [page for page in pages if (source / f"{page}.md").exists()]
        if present:
            lines = ["```{toctree}", ":hidden:", f":caption: {title[code]}", "", *present, "```"]
            parts.append("\n".join(lines))
    return "\n\n".join(parts)


def from_the_root(text: str, code: str) -> str:
    """Return a page of the repository's root with links as from the folder of a language."""
    text = re.sub(rf"\]\(docs/{code}/", "](", text)
    text = re.sub(r"\]\(docs/", "](../", text)
    return re.sub(r"\]\((?=(?:tools|examples|tests|notebooks|paddle_mnist)/)", "](../../", text)


def for_the_site(text: str, source: Path) -> str:
    """Return a page with the links that a repository page needs turned into the site's."""
    for name, file in ROOT_PAGES["en"].items():
        is_here = name in ROOT_PAGES[source.name] and (source / f"{name}.md").exists()
        page = f"{name}.md" if is_here else f"../en/{name}.md"
        text = re.sub(rf"\]\((?:\.\./\.\./)?{file}", f"]({page}", text)
    # Other pages of the repository are no pages of the site.
    text = re.sub(
        r"\[([^\]]+)\]\((\.\./\.\./[\w/-]+\.md)\)",
        lambda link: f"{{download}}`{link[1].replace('`', '')} <{link[2]}>`",
        text,
    )
    # The site of the other language is beside this one.
    text = re.sub(
        r"\[([^\]]+)\]\((\.\./(?:en|zh)/[\w-]+)\.md(#[\w-]+)?\)",
        r'<a href="\2.html\3">\1</a>',
        text,
    )
    # Anchors in HTML, which keep old links alive on a repository page too.
    text = re.sub(r'^<a (?:id|name)="([\w-]+)"></a>$', r"(\1)=", text, flags=re.M)
    return re.sub(r'^(#+ .*?)\s*<a (?:id|name)="([\w-]+)"></a>', r"(\2)=\n\1", text, flags=re.M)


def complete(app, name: str, contents: list) -> None:
    """Complete a page as it is read: see above."""
    source, text = Path(app.srcdir), contents[0]
    if file := ROOT_PAGES[source.name].get(name):
        text = from_the_root((ROOT / file).read_text("utf-8"), source.name)
    if name == "index":
        text += "\n\n" + toctrees(source, source.name)
    contents[0] = for_the_site(text, source)


def add_switch(app, name: str, template: str, context: dict, doctree) -> None:
    """Give the template the page in the other language, or that language's first page."""
    other = "zh" if Path(app.srcdir).name == "en" else "en"
    page = name if (DOCS / other / f"{name}.md").exists() else "index"
    context["other_language"] = {"en": "English", "zh": "中文"}[other]
    context["other_page"] = f"{'../' * (name.count('/') + 1)}{other}/{page}.html"


def setup(app) -> None:
    app.connect("source-read", complete)
    app.connect("html-page-context", add_switch)
