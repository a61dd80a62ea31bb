"""The site's search: an index of its sections, through which _static/search.js looks.

Sphinx's own index holds words, which Chinese does not separate, and not how often a page has them,
so that most hits come in the order of the alphabet. This one holds the text itself.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Optional

from docutils import nodes
from sphinx import addnodes

NOT_TEXT = (nodes.title, nodes.raw, nodes.Invisible)
# Below a table, on what and by which command it was measured: no answer to a search.
FOOTER = re.compile(
    r"^(?:Measured on: .*|Made by python tools/.*?\.(?=\s|$)|测试环境：.*|由 python tools/.*?。)",
    re.DOTALL,
)


def sections_of(page: str, doctree: nodes.document) -> Iterator[list[str]]:
    """Yield a page's sections: page, anchor, the page's title, their own, and their text.

    What the reference says of a name is a section, too.
    """
    texts: dict[nodes.Element, list[str]] = {}
    for block in doctree.findall(nodes.TextElement):
        if isinstance(block, NOT_TEXT) or isinstance(block.parent, nodes.TextElement):
            continue
        if owner := _owner(block):
            texts.setdefault(owner, []).append(_text(block))
    page_title = _title(next(doctree.findall(nodes.section)))
    for owner in doctree.findall(_is_owner):
        text = " ".join(" ".join(texts.get(owner, ())).split())
        yield [page, _anchor(owner), page_title, _title(owner), text]


def _text(block: nodes.Element) -> str:
    """Return the text of a block without the comments in it; of a table's footer, none."""
    text = "".join(
        text for text in block.findall(nodes.Text) if not isinstance(text.parent, nodes.raw)
    )
    return FOOTER.sub("", text)


def _is_owner(node: nodes.Node) -> bool:
    if isinstance(node, addnodes.desc):
        return bool(node[0]["ids"])
    return isinstance(node, nodes.section)


def _owner(node: nodes.Node) -> Optional[nodes.Element]:
    while node.parent is not None:
        node = node.parent
        if _is_owner(node):
            return node
    return None


def _anchor(owner: nodes.Element) -> str:
    return (owner if isinstance(owner, nodes.section) else owner[0])["ids"][0]


def _title(owner: nodes.Element) -> str:
    return owner[0].astext() if isinstance(owner, nodes.section) else owner[0]["fullname"]


def use_own_index(app) -> None:
    app.builder.search = False  # Sphinx's


def add_page(app) -> list[tuple[str, dict, str]]:
    return [("search", {}, "search.html")]


def write(app, error) -> None:
    if error is None:
        sections = [
            section
            for page in sorted(app.env.found_docs)
            for section in sections_of(page, app.env.get_doctree(page))
        ]
        parts = {
            "SECTIONS": sections,
            "KEYWORDS": app.config.site_search_keywords.get(Path(app.srcdir).name, {}),
            "REFERENCE": app.config.site_search_reference,
        }
        text = "".join(
            f"const {name} = {json.dumps(part, ensure_ascii=False)};\n"
            for name, part in parts.items()
        )
        (Path(app.outdir) / "_static/search_index.js").write_text(text, "utf-8")


def setup(app) -> None:
    # By language and page, words by which readers look for it and which it does not use, or little.
    app.add_config_value("site_search_keywords", {}, "html")
    # Pages that come after the guides: they name everything.
    app.add_config_value("site_search_reference", [], "html")
    app.connect("builder-inited", use_own_index)
    app.connect("html-collect-pages", add_page)
    app.connect("build-finished", write)
