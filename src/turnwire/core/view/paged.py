"""A list that only grows, whose front is put away in pages: the turns of a session, the items of a transcript.

What is in memory is the end of the list; `Paged` knows the rest. A page is a snapshot of its own beside that of the
view, named by its number and the event it is of, so one that is written again never replaces what an older view
refers to. Whoever needs a part that is not in memory is told by `PartNeeded` what to load, and begins again: until
then nothing may have changed. Entries are found by keys, which are kept as hashes in parts of their own.

    P1  Together the pages and the end are the list, as a fold over the whole log makes it.
    P2  A page never changes on its own: an entry of one that was loaded may, and then the page is written again.
    P3  What `put_away` or `write_again` has registered is in the log already.
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
"""Keys of one part: some 65 KB."""
LOADED: Final = 32
"""Pages that stay in memory when a read is over."""

_T = TypeVar("_T")


class StoredPages(Struct, omit_defaults=True, rename="camel", array_like=True):
    """What is known of the pages without having one of them."""

    end: int = 0
    """Entries that are put away."""
    firsts: list[int] = []
    """The place of the first entry of each page."""
    offsets: list[int] = []
    """The event that each page is of."""
    key_parts: list[int] = []
    """The event that each full part of the keys is of."""
    hashes: bytes = b""
    """Those of the part that is not full, and the page of each."""
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
        """`is_final`: what is put away never changes again."""
        self._is_final = is_final
        self._name = name
        self._read = read
        self._keys_of = keys_of
        self.known = known or StoredPages()
        self._loaded: dict[int, list[_T]] = {}
        """The one that was used last at the end."""
        self._places: dict[int, dict[Key, int]] = {}
        """Where the keys of a loaded page are in it, if it is final."""
        self._parts: dict[int, tuple[array[int], array[int]]] = {}
        """Full parts of the keys, sorted by hash."""
        self._new: dict[int, list[int]] = {}
        """The part that is not full: pages by hash."""
        for key, page in zip(_unpacked(self.known.hashes), _unpacked(self.known.pages), strict=True):
            self._new.setdefault(key, []).append(page)

    @property
    def end(self) -> int:
        """How many entries are put away: the place of the first that is not."""
        return self.known.end

    # -- reading -------------------------------------------------------------------------------------------

    def at(self, place: int) -> _T:
        """The entry at a place before the end. Raises `PartNeeded`, as all of these."""
        number = bisect_right(self.known.firsts, place) - 1
        return self.page(number)[place - self.known.firsts[number]]

    def page(self, number: int) -> list[_T]:
        """The entries of a page."""
        page = self._loaded.pop(number, None)
        if page is None:
            name = self.page_name(number, self.known.offsets[number])
            raise PartNeeded.of(name, lambda body: self._loaded.__setitem__(number, self._read(body)))
        self._loaded[number] = page
        return page

    def between(self, first: int, end: int) -> Iterator[_T]:
        """The entries from a place to before another, as far as they are put away."""
        end = min(end, self.end)
        number = bisect_right(self.known.firsts, first) - 1
        while first < end:
            start, page = self.known.firsts[number], self.page(number)
            yield from page[first - start : end - start]
            first, number = start + len(page), number + 1

    def find(self, key: Key) -> tuple[int, _T] | None:
        """The newest entry with a key, and its place."""
        for number in self.pages_with(key):
            # Whether the key is there is for the page to say: two keys may have one hash, and an entry may have got
            # another key since its page was noted.
            page = self.page(number)
            index = self._place_in(number, page, key)
            if index is not None:
                return self.known.firsts[number] + index, page[index]
        return None

    def _place_in(self, number: int, page: list[_T], key: Key) -> int | None:
        """Where the newest entry with a key is in a page."""
        if not self._is_final:
            return next((each for each in range(len(page) - 1, -1, -1) if key in self._keys_of(page[each])), None)
        places = self._places.get(number)
        if places is None:
            places = {each: index for index, entry in enumerate(page) for each in self._keys_of(entry)}
            self._places[number] = places
        return places.get(key)

    def has(self, key: Key) -> bool:
        """Whether an entry has this key, by its hash alone."""
        return next(self.pages_with(key), None) is not None

    def pages_with(self, key: Key) -> Iterator[int]:
        """The pages that have entries with a key, the newest first."""
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
        """The entries behind the last page are a page of its own now, as of an event."""
        number = len(self.known.firsts)
        self.known.firsts.append(self.known.end)
        self.known.offsets.append(offset)
        self.known.end += len(entries)
        self.note(number, entries)

    def note(self, number: int, entries: Iterable[_T]) -> None:
        """Learn the keys of entries of a page."""
        for key in {key for entry in entries for key in self._keys_of(entry)}:
            pages = self._new.setdefault(_hash(key), [])
            if number not in pages:
                pages.append(number)

    def written_again(self, number: int, offset: int) -> None:
        """A page that was loaded is in the log as of another event."""
        self.known.offsets[number] = offset
        # An entry that changed may have a key that it had not. Those that it has no more stay and find nothing.
        self.note(number, self._loaded[number])

    def full_part(self, offset: int) -> tuple[str, bytes] | None:
        """The name and the body of a part for the newest keys, if they are many."""
        if sum(map(len, self._new.values())) < KEYS:
            return None
        hashes, pages = self._sorted()
        name = f"{self._name}.keys.{len(self.known.key_parts)}.{offset}"
        return name, _encode(_KeyPart(hashes.tobytes(), pages.tobytes()))

    def part_written(self, offset: int) -> None:
        """The full part is in the log."""
        # Sorted anew, and the same that was written: who saves a view lets nobody fold it meanwhile.
        self._parts[len(self.known.key_parts)] = self._sorted()
        self.known.key_parts.append(offset)
        self._new.clear()

    def _sorted(self) -> tuple[array[int], array[int]]:
        pairs = sorted((key, page) for key, pages in self._new.items() for page in pages)
        return array("Q", (key for key, _ in pairs)), array("Q", (page for _, page in pairs))

    def stored(self) -> StoredPages | None:
        """As a snapshot of the view keeps it."""
        if not self.known.end:
            return None
        self.known.hashes = array("Q", (key for key, pages in self._new.items() for _ in pages)).tobytes()
        self.known.pages = array("Q", (page for pages in self._new.values() for page in pages)).tobytes()
        return self.known

    def missing(self) -> Iterator[PartNeeded]:
        """What has to be loaded so that all pages are in memory."""
        for number in range(len(self.known.firsts)):
            if number not in self._loaded:
                try:
                    self.page(number)
                except PartNeeded as needed:
                    yield needed

    def loaded(self) -> list[tuple[int, list[_T]]]:
        """The pages that are in memory."""
        return list(self._loaded.items())

    def let_go(self, number: int) -> None:
        """Forget a page that is in the log as it is."""
        del self._loaded[number]
        self._places.pop(number, None)

    def many(self) -> list[int]:
        """The pages that need not stay in memory, those used longest ago."""
        return list(self._loaded)[:-LOADED] if len(self._loaded) > LOADED else []


def _hash(key: Key) -> int:
    # Not Python's own, which is another one in each process: these are stored.
    return int.from_bytes(blake2b(_encode(key), digest_size=8).digest(), "little")


def _unpacked(packed: bytes) -> array[int]:
    found = array("Q")
    found.frombytes(packed)
    return found
