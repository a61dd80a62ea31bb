"""Chinese pages whose English page has changed are listed."""

import subprocess

from conftest import ROOT
from translations import MARK, behind, mark, translations


def test_pages_behind_their_english_page_are_listed(tmp_path):
    def write(page, text):
        path = tmp_path / page
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def git(*words):
        identity = ("-c", "user.name=x", "-c", "user.email=x@localhost")
        command = ["git", *identity, "-C", str(tmp_path), *words]
        return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()

    def commit():
        git("add", "-A")
        git("commit", "-qm", "x")
        return git("rev-parse", "--short", "HEAD")

    git("init", "-q")
    for page in ("followed", "behind"):
        write(f"docs/en/{page}.md", "one")
    first = commit()
    for page in ("followed", "behind"):
        write(f"docs/zh/{page}.md", f"一\n\n<!-- en: {first} -->\n")
    write("docs/zh/glossary.md", "only here")
    commit()
    assert not [*behind(tmp_path)]
    write("docs/en/followed.md", "two")
    write("docs/zh/followed.md", f"二\n\n<!-- en: {first} -->\n")
    commit()
    write("docs/en/behind.md", "two")
    write("docs/en/new.md", "new")
    write("docs/zh/new.md", "新")
    write("docs/en/rebased.md", "one")
    write("docs/zh/rebased.md", "一\n\n<!-- en: 0123456789ab -->\n")
    last = commit()
    listed = sorted((page, why) for page, _, why in behind(tmp_path))
    assert listed == [
        ("docs/zh/behind.md", f"docs/en/behind.md has changed in {last}"),
        ("docs/zh/new.md", "no mark <!-- en: COMMIT -->"),
        ("docs/zh/rebased.md", "commit 0123456789ab is unknown"),
    ]
    for page, english, _ in [*behind(tmp_path)]:
        mark(tmp_path, page, english)
    assert not [*behind(tmp_path)]
    assert (tmp_path / "docs/zh/behind.md").read_text().startswith("一\n\n<!-- en: ")


def test_each_chinese_page_has_its_mark():
    pages = [page for page, _ in translations(ROOT)]
    assert "docs/zh/reproduction.md" in pages and "README.zh-CN.md" in pages
    assert not [page for page in pages if not MARK.search((ROOT / page).read_text("utf-8"))]
