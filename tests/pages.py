"""The pages that people read, in both languages, and what is in them."""

import re
from pathlib import Path

from conftest import ROOT

ENGLISH = [ROOT / "README.md", *sorted((ROOT / "docs/en").glob("*.md"))]


def translation(page: Path) -> Path:
    """Return the path of a page's translation into Chinese, which may not be there yet."""
    if page.parent == ROOT:
        return page.with_suffix(".zh-CN.md")
    return ROOT / "docs/zh" / page.name


def blocks(page: Path, language: str) -> list[str]:
    """Return the code blocks of a page in one language, such as `sh`."""
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text("utf-8"), re.DOTALL | re.M)


def without_code(text: str) -> str:
    return re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.M)


def name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


# docs/en/reproduction.md points to REPRODUCTION.md, which is the page that is translated.
TRANSLATED = {
    ROOT / "REPRODUCTION.md" if page.stem == "reproduction" else page: translation(page)
    for page in ENGLISH
    if translation(page).exists()
}
