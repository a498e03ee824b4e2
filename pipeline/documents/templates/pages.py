"""The template pages of one wiki. A large wiki has gigabytes of them, so their texts are in a file."""

from array import array
from collections.abc import Iterator, Mapping
from typing import BinaryIO

from pipeline.wikitext.templates.transclusion import Included


class TemplatePages(Mapping[str, Included]):
    """The pages by folded name. Memory has the names, and ``file`` has the bodies.

    The newest copy of a page counts. Ties are resolved in a fixed way.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._end = 0
        self._places: dict[str, int] = {}
        self._revisions, self._begins, self._sizes = array("q"), array("q"), array("q")
        self._redirects: dict[str, str] = {}
        self._too_long: set[str] = set()

    def add(self, name: str, revision: int, page: Included) -> None:
        """Adds a copy of a page."""
        place = self._places.get(name)
        if place is None:
            self._places[name] = len(self._revisions)
            for column in (self._revisions, self._begins, self._sizes):
                column.append(0)
        elif not self._is_newer(place, name, revision, page):
            return
        self._write(self._places[name], revision, page.body.encode())
        self._redirects.pop(name, None)
        self._too_long.discard(name)
        if page.redirect:
            self._redirects[name] = page.redirect
        if page.too_long:
            self._too_long.add(name)

    def _is_newer(self, place: int, name: str, revision: int, page: Included) -> bool:
        if revision != self._revisions[place]:
            return revision > self._revisions[place]
        return _fields(page) > _fields(self[name])

    def _write(self, place: int, revision: int, body: bytes) -> None:
        self._file.seek(self._end)
        self._file.write(body)
        self._revisions[place], self._begins[place], self._sizes[place] = revision, self._end, len(body)
        self._end += len(body)

    def __getitem__(self, name: str) -> Included:
        place = self._places[name]
        self._file.seek(self._begins[place])
        body = self._file.read(self._sizes[place]).decode()
        return Included(body, self._redirects.get(name, ""), name in self._too_long)

    def __contains__(self, name: object) -> bool:
        return name in self._places

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)


def _fields(page: Included) -> tuple[str, str, bool]:
    return page.body, page.redirect, page.too_long
