"""MkDocs hook: adds the pages that are generated from the code and the repository files that pages link to.

A link from a page to a file outside docs/ works in the repository and on the site: the hook adds the file to
the site under ``repository/`` and rewrites the link.
"""

import posixpath
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[2]
# Import the packages of this checkout from any working directory.
sys.path.insert(0, str(ROOT))

import command_page  # noqa: E402
import config_pages  # noqa: E402
import metrics_page  # noqa: E402
import python_page  # noqa: E402
import schema_pages  # noqa: E402

_LINK = re.compile(r"(!?\[[^\]]*\]\()([^)\s#]+)(#[^)\s]*)?(\))")
_REPOSITORY = "repository/"


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the generated pages, then every repository file that a page names in a link."""
    for name, text in _generated():
        files.append(File.generated(config, f"reference/{name}.md", content=text))
    waiting = [file for file in files if file.src_uri.endswith(".md")]
    while waiting:
        page = waiting.pop()
        for target in _outside(page.content_string, _repository_path(page.src_uri)):
            if files.get_file_from_path(_REPOSITORY + target) is None:
                added = File.generated(config, _REPOSITORY + target, abs_src_path=str(ROOT / target))
                files.append(added)
                waiting += [added] if target.endswith(".md") else []
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Points links to repository files at their copies on the site."""
    del config, files
    source = _repository_path(page.file.src_uri)
    folder = posixpath.dirname(page.file.src_uri)

    def replaced(match: re.Match[str]) -> str:
        before, target, anchor, after = match.groups()
        path = _resolve(source, target)
        if path is None or (ROOT / path).is_dir() or not (ROOT / path).exists():
            return match[0]
        on_site = path.removeprefix("docs/") if path.startswith("docs/") else _REPOSITORY + path
        return f"{before}{posixpath.relpath(on_site, folder or '.')}{anchor or ''}{after}"

    return _LINK.sub(replaced, markdown)


def _generated() -> Iterator[tuple[str, str]]:
    yield from config_pages.pages()
    yield from schema_pages.pages()
    yield "command-line", command_page.page()
    yield "metrics", metrics_page.page()
    yield "python-api", python_page.page()


def _repository_path(src_uri: str) -> str:
    """Where the repository keeps the file of a page."""
    return src_uri.removeprefix(_REPOSITORY) if src_uri.startswith(_REPOSITORY) else f"docs/{src_uri}"


def _resolve(source: str, target: str) -> str | None:
    """The repository path of a link in ``source``, or None for a link that leaves the repository."""
    if "://" in target or target.startswith(("mailto:", "/")):
        return None
    path = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
    return None if path.startswith("..") else path


def _outside(text: str, source: str) -> Iterator[str]:
    """Existing files outside docs/ that ``text`` links to."""
    for match in _LINK.finditer(text):
        path = _resolve(source, match[2])
        if path is not None and not path.startswith("docs/") and (ROOT / path).is_file():
            yield path
