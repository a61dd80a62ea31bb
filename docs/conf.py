"""The documentation's site: `make docs` builds docs/en and docs/zh, each as a site of its own.

The pages are plain Markdown that a repository page shows as well as the site does, so what only
the site needs is here: its navigation, the language switch, and the pages that are made at build
time. README.md, REPRODUCTION.md and CHANGELOG.md, which are at the root of the repository, become
pages too.
"""

import re
import sys
from pathlib import Path

DOCS = Path(__file__).parent
ROOT = DOCS.parent
sys.path[:0] = [str(DOCS / "_extensions"), str(ROOT)]

import repository  # noqa: E402
from repository import linkcode_resolve  # noqa: E402, F401  # Sphinx looks for it here

import paddle_mnist  # noqa: E402

project = "paddle_mnist"
author = "the paddle_mnist contributors"
version = release = paddle_mnist.__version__
language = "en"  # `-D language=zh_CN` for docs/zh
extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.linkcode",
    "command_help",
    "docstrings",
    "site_search",
]
templates_path = ["_templates"]
exclude_patterns = ["build"]
nitpicky = True

myst_heading_anchors = 4
suppress_warnings = ["myst.header"]  # a page may be an excerpt that starts at any level
myst_links_external_new_tab = False

autodoc_preserve_defaults = True  # as in the source, without `<function ...>`
python_maximum_signature_line_length = 88  # a longer one has each argument in a line of its own
nitpick_ignore_regex = [("py:.*", ".*")]  # types of signatures, which name what is not documented
autodoc_member_order = "bysource"

html_theme = "pydata_sphinx_theme"
html_title = "paddle_mnist"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_js_files = [("site.js", {"defer": "defer"})]
html_favicon = "_static/favicon.svg"
html_copy_source = html_show_sourcelink = False
html_theme_options = {
    "logo": {"text": f"paddle_mnist {release}"},
    "navbar_center": [],  # all pages are in the sidebar
    "navbar_end": ["language_switch", "theme_switch"],
    "primary_sidebar_end": [],
    "footer_start": ["copyright"],
    "footer_end": [],
    "secondary_sidebar_items": ["page-toc", "edit_link"],
}
html_sidebars = {"**": ["pages"]}
html_context = {"default_mode": "auto"}
project_copyright = "the paddle_mnist contributors, Apache-2.0"

# What the theme does not say, or not in Chinese.
LABELS = {
    "en": {
        "search": "Search the documentation",
        "needs_script": "The search needs JavaScript.",
        "nothing_found": "Nothing found.",
        "copy": "Copy",
        "copied": "Copied",
        "edit": "Edit this page",
        "colors": "Color mode",
        "light": "Light",
        "dark": "Dark",
        "auto": "As the system",
    },
    "zh": {
        "search": "搜索文档",
        "needs_script": "搜索功能需要启用 JavaScript。",
        "nothing_found": "没有找到相关内容。",
        "copy": "复制",
        "copied": "已复制",
        "edit": "编辑本页",
        "colors": "颜色模式",
        "light": "亮色",
        "dark": "暗色",
        "auto": "跟随系统",
    },
}

# Pages of each language that are files at the root of the repository, by their names in the site.
ROOT_PAGES = {
    "en": {
        "index": "README.md",
        "reproduction": "REPRODUCTION.md",
        "changelog": "CHANGELOG.md",
    },
    "zh": {"index": "README.zh-CN.md"},
}
# The navigation: each part's title in both languages, and its pages.
NAVIGATION = (
    ({"en": "Start", "zh": "入门"}, ("any-net", "images", "install", "ai-studio")),
    (
        {"en": "Train", "zh": "训练"},
        (
            "train",
            "resume",
            "checkpoints",
            "incremental",
            "several-processes",
            "cluster",
        ),
    ),
    ({"en": "Use the model", "zh": "诊断与部署"}, ("looking-inside", "deployment")),
    (
        {"en": "Measurements", "zh": "性能与复现"},
        ("speed", "reproduction", "design-notes", "upstream"),
    ),
    (
        {"en": "Migrate", "zh": "迁移"},
        ("tutorial", "coming-from", "fluid", "parameter-servers"),
    ),
    (
        {"en": "Reference", "zh": "参考"},
        (
            "faq",
            "glossary",
            "commands",
            "api",
            "stability",
            "changelog",
            "architecture",
            "development",
        ),
    ),
)

site_search_reference = [
    *(page for page in NAVIGATION[-1][1] if page not in ("faq", "glossary")),
    "reproduction",
    "design-notes",
    "upstream",
    "index",
]
site_search_keywords = {
    "en": {
        "train": ["learning rate", "batch size", "hyperparameter"],
        "any-net": [
            "own dataset",
            "custom dataset",
            "dataloader",
            "mixed precision",
            "amp",
            "lr scheduler",
            "scheduler",
            "learning rate schedule",
            "early stopping",
        ],
        "images": ["image folder", "own pictures", "image classification"],
        "resume": ["resume", "kill", "crash", "restart", "continue training"],
        "speed": ["memory", "gpu memory"],
        "faq": ["oom", "error message", "troubleshooting", "debug", "overfit one batch"],
        "deployment": ["inference", "to_static", "static graph", "dynamic graph"],
        "looking-inside": ["callback", "hook", "mlflow", "wandb"],
        "several-processes": ["multi-gpu", "distributed", "ddp"],
    },
    "zh": {
        "train": ["学习率", "批大小", "超参数", "调参"],
        "any-net": ["数据集", "自定义数据集", "混合精度", "高层API", "学习率策略", "早停"],
        "images": ["图片文件夹", "自定义图片", "图像分类"],
        "resume": ["续训", "恢复训练", "停止训练", "崩溃", "继续训练"],
        "speed": ["显存", "内存"],
        "faq": ["显存", "显存不足", "报错", "错误信息", "调试", "过拟合一个批次"],
        "deployment": ["推理", "预测", "动态图", "静态图", "动转静"],
        "fluid": ["动态图", "静态图"],
        "looking-inside": ["损失不下降", "回调", "钩子"],
        "several-processes": ["多卡", "多卡训练", "分布式", "分布式训练"],
    },
}


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
    files = r"(?:tools|examples|tests|notebooks|paddle_mnist)/|LICENSE"
    return re.sub(rf"\]\((?={files})", "](../../", text)


def for_the_site(text: str, source: Path) -> str:
    """Return a page with the links that a repository page needs turned into the site's."""
    for code, pages in ROOT_PAGES.items():
        folder = "" if code == source.name else f"../{code}/"
        for name, file in pages.items():
            text = re.sub(rf"\]\((?:\.\./\.\./)?{file}", f"]({folder}{name}.md", text)
    text = repository.link_files(text)
    # The site of the other language is beside this one.
    text = re.sub(
        r"\[([^\]]+)\]\((\.\./(?:en|zh)/[\w-]+)\.md(#[\w-]+)?\)",
        r'<a href="\2.html\3">\1</a>',
        text,
    )
    # Anchors in HTML, which keep old links alive on a repository page too.
    text = re.sub(r'^<a (?:id|name)="([\w-]+)"></a>$', r"(\1)=", text, flags=re.M)
    return re.sub(r'^(#+ .*?)\s*<a (?:id|name)="([\w-]+)"></a>', r"(\2)=\n\1", text, flags=re.M)


def read(source: Path, name: str) -> str:
    """Return a page's Markdown; the first page is the README, then the sections of index.md."""
    text = (source / f"{name}.md").read_text("utf-8")
    if file := ROOT_PAGES[source.name].get(name):
        sections = text[text.index("\n## ") :] if name == "index" else ""
        return from_the_root((ROOT / file).read_text("utf-8"), source.name) + sections
    return text


def complete(app, name: str, contents: list) -> None:
    """Complete a page as it is read: see above."""
    source = Path(app.srcdir)
    text = read(source, name)
    if name == "index":
        text += "\n\n" + toctrees(source, source.name)
    contents[0] = for_the_site(text, source)


def anchor_as_in_english(app, doctree) -> None:
    """Give the headings of a page in Chinese the anchors of those in English, which are as many.

    So an anchor stays what it is when the language is switched.
    """
    from docutils import nodes  # here, as tests read this file where Sphinx is missing
    from sphinx.util import logging

    source, name = Path(app.srcdir), app.env.docname
    if source.name == "en" or not (DOCS / "en" / f"{name}.md").exists():
        return
    text = re.sub(r"^(```+).*?^\1", "", read(DOCS / "en", name), flags=re.M | re.S)
    headings = re.findall(r"^#+ (.*)$", text, re.M)
    sections = list(doctree.findall(nodes.section))
    if len(headings) != len(sections):
        logging.getLogger(__name__).warning(
            f"{len(sections)} headings, but {len(headings)} in English; expected as many, so that "
            "the language switch keeps anchors",
            location=name,
        )
    for heading, section in zip(headings, sections):
        anchor = nodes.make_id(re.sub(r"<[^>]*>|\[|\]\([^)]*\)", "", heading))
        if doctree.ids.setdefault(anchor, section) is section:
            section["ids"] = [anchor, *(each for each in section["ids"] if each != anchor)]


def add_to_template(app, name: str, template: str, context: dict, doctree) -> None:
    """Give the template the page in the other language, or that language's first page; labels."""
    code = Path(app.srcdir).name
    other = "zh" if code == "en" else "en"
    page = name if (DOCS / other / f"{name}.md").exists() else "index"
    context["other_language"] = {"en": "English", "zh": "中文"}[other]
    context["other_page"] = f"{'../' * (name.count('/') + 1)}{other}/{page}.html"
    context["labels"] = LABELS[code]
    context["theme_search_bar_text"] = LABELS[code]["search"]
    if doctree is not None:
        file = ROOT_PAGES[code].get(name)
        context["edit_url"] = repository.edit_url(
            ROOT / file if file else DOCS / code / f"{name}.md"
        )


def setup(app) -> None:
    app.connect("source-read", complete)
    app.connect("doctree-read", anchor_as_in_english, priority=100)  # before anchors are collected
    app.connect("html-page-context", add_to_template)
