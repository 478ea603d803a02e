"""An append-only list whose front is stored in pages: the turns of a session, the items of a transcript.

The end of the list is in memory; `Paged` has the rest. A page is a separate snapshot next to that of the view. Its
name has its number and the event at which it was written, so a rewritten page never replaces one that an older view
refers to. An operation that needs an unloaded part raises `PartNeeded` with the part to load, and the caller
repeats it: until then nothing may have changed. Entries are found by keys, which are stored as hashes in separate
parts.

  P1  Together the pages and the end are the list that a fold over the whole log produces.
  P2  A stored page is never modified: an entry of a loaded page may change, and then the page is rewritten.
  P3  A page that `put_away` or `written_again` has registered is in the log already.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator
from hashlib import blake2b
from typing import Final, Generic, TypeAlias, TypeVar

import msgspec
from msgspec import Struct

from turnwire.errors import PartNeeded

Key: TypeAlias = tuple[str | int | None, ...]

KEYS: Final = 4096
"""Keys of one part: about 65 KB."""
LOADED: Final = 32
"""Pages that stay in memory after a read."""

_T = TypeVar("_T")


class StoredPages(Struct, omit_defaults=True, rename="camel", array_like=True):
    """The metadata of the pages, available without loading them."""

    end: int = 0
    """The number of stored entries."""
    firsts: list[int] = []
    """The position of the first entry of each page."""
    offsets: list[int] = []
    """The event at which each page was written."""
    key_parts: list[int] = []
    """The event at which each full part of the keys was written."""
    hashes: bytes = b""
    """The hashes of the part that is not full; `pages` has the page of each."""
    pages: bytes = b""


class _KeyPart(Struct, array_like=True):
    hashes: bytes
    pages: bytes


_read_keys = msgspec.json.Decoder(_KeyPart).decode
_encode = msgspec.json.Encoder().encode


class Paged(Generic[_T]):
    """The front of a list, in pages."""

    __slots__ = ("_is_final", "_keys_of", "_loaded", "_name", "_new", "_parts", "_places", "_read", "known")

    def __init__(
        self,
        name: str,
        read: Callable[[bytes], list[_T]],
        keys_of: Callable[[_T], Collection[Key]],
        known: StoredPages | None = None,
        *,
        is_final: bool = False,
    ) -> None:
        """`is_final`: stored entries never change again."""
        self._is_final = is_final
        self._name = name
        self._read = read
        self._keys_of = keys_of
        self.known = known or StoredPages()
        self._loaded: dict[int, list[_T]] = {}
        """Loaded pages; the most recently used one is last."""
        self._places: dict[int, dict[Key, int]] = {}
        """Positions of the keys in a loaded page, if entries are final."""
        self._parts: dict[int, tuple[array[int], array[int]]] = {}
        """Full parts of the keys, sorted by hash."""
        self._new: dict[int, list[int]] = {}
        """The part that is not full: pages by hash."""
        for key, page in zip(_unpacked(self.known.hashes), _unpacked(self.known.pages), strict=True):
            self._new.setdefault(key, []).append(page)

    @property
    def end(self) -> int:
        """The number of stored entries: the position of the first one in memory."""
        return self.known.end

    # -- reading -------------------------------------------------------------------------------------------

    def at(self, place: int) -> _T:
        """Return the entry at a position before the end. All of these methods raise `PartNeeded`."""
        number = bisect_right(self.known.firsts, place) - 1
        return self.page(number)[place - self.known.firsts[number]]

    def page(self, number: int) -> list[_T]:
        """Return the entries of a page."""
        page = self._loaded.pop(number, None)
        if page is None:
            name = self.page_name(number, self.known.offsets[number])
            raise PartNeeded.of(name, lambda body: self._loaded.__setitem__(number, self._read(body)))
        self._loaded[number] = page
        return page

    def between(self, first: int, end: int) -> Iterator[_T]:
        """Yield the stored entries from `first` up to, but excluding, `end`."""
        end = min(end, self.end)
        number = bisect_right(self.known.firsts, first) - 1
        while first < end:
            start, page = self.known.firsts[number], self.page(number)
            yield from page[first - start : end - start]
            first, number = start + len(page), number + 1

    def find(self, key: Key) -> tuple[int, _T] | None:
        """Return the newest entry with a key, and its position."""
        for number in self.pages_with(key):
            # Only the page is authoritative: two keys may have one hash, and an entry may have got another key
            # since its page was registered.
            page = self.page(number)
            index = self._place_in(number, page, key)
            if index is not None:
                return self.known.firsts[number] + index, page[index]
        return None

    def _place_in(self, number: int, page: list[_T], key: Key) -> int | None:
        """Return the index of the newest entry with a key in a page."""
        if not self._is_final:
            return next((each for each in range(len(page) - 1, -1, -1) if key in self._keys_of(page[each])), None)
        places = self._places.get(number)
        if places is None:
            places = {each: index for index, entry in enumerate(page) for each in self._keys_of(entry)}
            self._places[number] = places
        return places.get(key)

    def has(self, key: Key) -> bool:
        """True if an entry has this key, by its hash alone."""
        return next(self.pages_with(key), None) is not None

    def pages_with(self, key: Key) -> Iterator[int]:
        """Yield the pages that have entries with a key, the newest first."""
        if not self.known.end:
            return
        hashed = _hash(key)
        found = set(self._new.get(hashed, ()))
        for number in range(len(self.known.key_parts)):
            hashes, pages = self._part(number)
            place = bisect_left(hashes, hashed)
            while place < len(hashes) and hashes[place] == hashed:
                found.add(pages[place])
                place += 1
        yield from sorted(found, reverse=True)

    def _part(self, number: int) -> tuple[array[int], array[int]]:
        part = self._parts.get(number)
        if part is None:
            raise PartNeeded.of(self._part_name(number), lambda body: self._take_part(number, body))
        return part

    def _take_part(self, number: int, body: bytes) -> None:
        part = _read_keys(body)
        self._parts[number] = _unpacked(part.hashes), _unpacked(part.pages)

    # -- writing -------------------------------------------------------------------------------------------

    def page_name(self, number: int, offset: int) -> str:
        return f"{self._name}.{number}.{offset}"

    def _part_name(self, number: int) -> str:
        return f"{self._name}.keys.{number}.{self.known.key_parts[number]}"

    def put_away(self, entries: list[_T], offset: int) -> None:
        """Register the entries after the last page as a new page, written at an event."""
        number = len(self.known.firsts)
        self.known.firsts.append(self.known.end)
        self.known.offsets.append(offset)
        self.known.end += len(entries)
        self.note(number, entries)

    def note(self, number: int, entries: Iterable[_T]) -> None:
        """Register the keys of entries of a page."""
        for key in {key for entry in entries for key in self._keys_of(entry)}:
            pages = self._new.setdefault(_hash(key), [])
            if number not in pages:
                pages.append(number)

    def written_again(self, number: int, offset: int) -> None:
        """Register that a loaded page was written again, at another event."""
        self.known.offsets[number] = offset
        # A changed entry may have a new key. Obsolete keys remain and find nothing.
        self.note(number, self._loaded[number])

    def full_part(self, offset: int) -> tuple[str, bytes] | None:
        """Return the name and the body of a part for the newest keys, if they fill one."""
        if sum(map(len, self._new.values())) < KEYS:
            return None
        hashes, pages = self._sorted()
        name = f"{self._name}.keys.{len(self.known.key_parts)}.{offset}"
        return name, _encode(_KeyPart(hashes.tobytes(), pages.tobytes()))

    def part_written(self, offset: int) -> None:
        """Register that the full part is in the log."""
        # Sorted again, with the same result: the code that saves a view allows no folding meanwhile.
        self._parts[len(self.known.key_parts)] = self._sorted()
        self.known.key_parts.append(offset)
        self._new.clear()

    def _sorted(self) -> tuple[array[int], array[int]]:
        pairs = sorted((key, page) for key, pages in self._new.items() for page in pages)
        return array("Q", (key for key, _ in pairs)), array("Q", (page for _, page in pairs))

    def stored(self) -> StoredPages | None:
        """Return the metadata for a snapshot of the view."""
        if not self.known.end:
            return None
        self.known.hashes = array("Q", (key for key, pages in self._new.items() for _ in pages)).tobytes()
        self.known.pages = array("Q", (page for pages in self._new.values() for page in pages)).tobytes()
        return self.known

    def missing(self) -> Iterator[PartNeeded]:
        """Yield the parts that must be loaded before all pages are in memory."""
        for number in range(len(self.known.firsts)):
            if number not in self._loaded:
                try:
                    self.page(number)
                except PartNeeded as needed:
                    yield needed

    def loaded(self) -> list[tuple[int, list[_T]]]:
        """Return the pages that are in memory."""
        return list(self._loaded.items())

    def let_go(self, number: int) -> None:
        """Evict a page that is unchanged in the log."""
        del self._loaded[number]
        self._places.pop(number, None)

    def many(self) -> list[int]:
        """Return the least recently used pages, which need not stay in memory."""
        return list(self._loaded)[:-LOADED] if len(self._loaded) > LOADED else []


def _hash(key: Key) -> int:
    # Not Python's `hash`, which differs between processes: these are stored.
    return int.from_bytes(blake2b(_encode(key), digest_size=8).digest(), "little")


def _unpacked(packed: bytes) -> array[int]:
    found = array("Q")
    found.frombytes(packed)
    return found
