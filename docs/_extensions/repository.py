"""Links from the site into the repository, if `make docs REPOSITORY_URL=...` says where it is.

To a file that a page names, to the source of what the reference describes, and to the page itself,
for editing. Without an address a page's own link to a file is a download, and one to a folder is
plain text.
"""

import inspect
import os
import pkgutil
import re
from pathlib import Path
from typing import Optional

ROOT = Path(__file__).parents[2]
URL = os.environ.get("REPOSITORY_URL", "").rstrip("/")
BRANCH = "main"

LINK = re.compile(r"\[(?P<text>[^\]]+)\]\(\.\./\.\./(?P<path>[\w./-]+?)/?(?P<title> \"[^\"]*\")?\)")


def link_files(text: str) -> str:
    """Return a page with its links to files of the repository as the site has them."""
    return LINK.sub(_file_link, text)


def _file_link(link: re.Match[str]) -> str:
    text, path, title = link["text"], link["path"], link["title"] or ""
    if URL:
        kind = "tree" if (ROOT / path).is_dir() else "blob"
        return f"[{text}]({URL}/{kind}/{BRANCH}/{path}{title})"
    if (ROOT / path).is_dir():
        return text
    if path.endswith(".md"):  # which MyST takes for a page of the site
        return f"{{download}}`{text.replace('`', '')} <../../{path}>`"
    return link[0]


def edit_url(path: Path) -> str:
    """Return where a page can be edited."""
    return f"{URL}/edit/{BRANCH}/{path.resolve().relative_to(ROOT).as_posix()}" if URL else ""


def linkcode_resolve(domain: str, info: dict[str, str]) -> Optional[str]:
    """Return where a name of the reference is defined, for sphinx.ext.linkcode."""
    if not URL:
        return None
    found = inspect.unwrap(pkgutil.resolve_name(f"{info['module']}:{info['fullname']}"))
    try:
        path = Path(inspect.getsourcefile(found)).relative_to(ROOT)
        lines, first = inspect.getsourcelines(found)
    except (TypeError, ValueError):  # a property, or from elsewhere
        return None
    return f"{URL}/blob/{BRANCH}/{path.as_posix()}#L{first}-L{first + len(lines) - 1}"
