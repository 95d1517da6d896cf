"""Reads the protobuf wire format, as far as MindSpore's files use it. Source: the protobuf encoding guide."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ckptstore.errors import UnreadableError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ckptstore.formats.header import BytesOf
    from ckptstore.outside import Path

VARINT, FIXED64, LEN, FIXED32 = 0, 1, 2, 5

# Limits for one file: at worst, reading it takes a few seconds and some hundred MB. 400,000 parameters have 4 million
# numbers.
_MOST_NUMBERS = 1 << 22
_MOST_TEXT = 1 << 26  # bytes of all names together
_LONGEST_NAME = 64 * 1024  # bytes

_WINDOW = 512  # bytes read at a time: the head of a parameter, or a few small parameters whole
_HEAD = 256  # bytes: the head of a parameter with a name of some 200 bytes
_LONGEST_NUMBER = 10  # bytes
_CONTINUED = 0x80  # set in each byte of a number but the last


def varint(content: bytes, at: int) -> tuple[int, int]:
    """Read a number of up to ten bytes; return it and where it ends. Raises `IndexError` if it is cut or longer."""
    number = shift = 0
    while (byte := content[at]) >= _CONTINUED:
        number += byte - _CONTINUED << shift
        shift += 7
        at += 1
        if shift >= 7 * _LONGEST_NUMBER:  # stop here: a number of a megabyte would take hours
            raise IndexError
    return number + (byte << shift), at + 1


class WireReader:
    """Walks the messages of a file. `limit` is the end of the current message: no method reads a value past it.

    `what` names the format in errors. Each error is an `UnreadableError` with the position in the file.
    """

    def __init__(self, bytes_of: BytesOf, path: Path, what: str) -> None:
        self.bytes_at, self.end = bytes_of
        self._path = path
        self._what = what
        self._window = b""
        self._window_start = 0
        self._numbers_left = _MOST_NUMBERS
        self._text_left = _MOST_TEXT
        self.position = 0

    def number(self, limit: int) -> int:
        """Read an unsigned number of up to 64 bits."""
        self._numbers_left -= 1
        if self._numbers_left < 0:
            raise self.bad("more parts than any model has")
        at = self.position - self._window_start
        if not 0 <= at <= len(self._window) - _LONGEST_NUMBER:
            at = self._look()
        # Nearly all numbers have one byte.
        if self.position < limit and at < len(self._window) and self._window[at] < _CONTINUED:
            self.position += 1
            return self._window[at]
        try:
            result, stop = varint(self._window, at)
        except IndexError:
            raise self.bad("a cut or malformed number") from None
        if self.position + stop - at > limit or result >> 64:
            raise self.bad("a cut or malformed number")
        self.position += stop - at
        return result

    def _look(self) -> int:
        self._window = self.bytes_at(self.position, _WINDOW)
        self._window_start = self.position
        return 0

    def peek(self) -> bytes:
        """The next bytes, enough for the head of a parameter; fewer at the end of the file."""
        at = self.position - self._window_start
        if not 0 <= at <= len(self._window) - _HEAD:
            at = self._look()
        return self._window[at : at + _HEAD]

    def take(self, count: int, *, numbers: int, text: int) -> None:
        """Skip `count` bytes that the caller read with `peek`, with so many numbers and bytes of names in them."""
        self._spend(numbers, text)
        self.position += count

    def _spend(self, numbers: int, text: int) -> None:
        self._numbers_left -= numbers
        self._text_left -= text
        if self._numbers_left < 0:
            raise self.bad("more parts than any model has")
        if self._text_left < 0:
            raise self.bad("longer names than any model has")

    def signed(self, limit: int) -> int:
        """Read a signed number of up to 64 bits, encoded as int32 and int64 are."""
        value = self.number(limit)
        return value - (1 << 64) if value >> 63 else value

    def key(self, limit: int) -> tuple[int, int]:
        """Read the number of the next field and the wire type of its value."""
        key = self.number(limit)
        if key >> 3 == 0:  # no message has it: a file of zeros ends here
            raise self.bad("field 0")
        return key >> 3, key & 7

    def message(self, limit: int, wire_type: int = LEN) -> int:
        """Read the length of a message; return where it ends."""
        if wire_type != LEN:
            raise self.bad(f"wire type {wire_type}")
        length = self.number(limit)
        if length > limit - self.position:
            raise self.bad(f"a message of {length} bytes, with only {limit - self.position} left")
        return self.position + length

    def text(self, limit: int, wire_type: int = LEN) -> str:
        """Read a name."""
        stop = self.message(limit, wire_type)
        length = stop - self.position
        if length > _LONGEST_NAME:
            raise self.bad(f"a name of {length} bytes")
        self._spend(0, length)
        at = self.position - self._window_start
        raw = self._window[at : at + length] if at >= 0 else b""
        if len(raw) < length:
            raw = self.bytes_at(self.position, length)
        if len(raw) < length:
            raise self.bad("a cut name")
        try:
            text = raw.decode("utf-8")
        except UnicodeDecodeError:
            raise self.bad("a name that is not UTF-8") from None
        self.position = stop
        return text

    def span(self, limit: int, wire_type: int) -> tuple[int, int]:
        """Skip bytes; return where they begin, and their count."""
        stop = self.message(limit, wire_type)
        begin, self.position = self.position, stop
        return begin, stop - begin

    def numbers(self, limit: int, wire_type: int) -> list[int]:
        """Read one element of a repeated signed number, or all elements if they are packed."""
        if wire_type == VARINT:
            return [self.signed(limit)]
        stop = self.message(limit, wire_type)
        found = []
        while self.position < stop:
            found.append(self.signed(stop))
        return found

    def list_of_numbers(self, limit: int, wire_type: int) -> tuple[int, ...]:
        """Read a message that has only a repeated signed number, `{dim = 1}`."""
        found = self.fields(self.message(limit, wire_type), {1: WireReader.numbers})
        return tuple(number for some in found.get(1, ()) for number in some)

    def fields(self, limit: int, readers: Mapping[int, Callable[[WireReader, int, int], Any]]) -> dict[int, list[Any]]:
        """Read the fields that have a reader, and skip the others. Each field comes with all its values, in order."""
        found: dict[int, list[Any]] = {}
        while self.position < limit:
            field, wire_type = self.key(limit)
            if field in readers:
                found.setdefault(field, []).append(readers[field](self, limit, wire_type))
            else:
                self.skip(limit, wire_type)
        return found

    def skip(self, limit: int, wire_type: int) -> None:
        """Skip the value of a field without a reader."""
        if wire_type == VARINT:
            self.number(limit)
        elif wire_type in (FIXED32, FIXED64):
            self.position += 4 if wire_type == FIXED32 else 8
            if self.position > limit:
                raise self.bad("a cut number")
        else:
            self.position = self.message(limit, wire_type)

    def bad(self, what: str) -> UnreadableError:
        """The error for bytes that are not those of the format."""
        return UnreadableError(
            f"{self._path} is not a whole {self._what} file: at byte {self.position}: {what}",
            "it is cut, damaged or of another format",
        )
