"""The two forms of an export: a directory, and a tar file from which `tar xf` makes that directory.

A tar file must equal, byte for byte, the tar file that `export` writes for its manifest. No header in it is trusted.
"""

from __future__ import annotations

import tarfile
from stat import S_ISREG
from typing import TYPE_CHECKING

from ckptstore.disk.files import opened_directory
from ckptstore.errors import DamageError, UsageError, reason_of
from ckptstore.formats.safetensors import write
from ckptstore.handover import manifest as manifests
from ckptstore.handover.manifest import MOST_BYTES, NAME
from ckptstore.outside import Path, open_file, os

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from io import FileIO

    from typing_extensions import Self

    from ckptstore.handover.manifest import Manifest, Part

TAR = ".tar"
_PIECE = 4 << 20  # bytes
_AGAIN = "make the export again, or copy it again"
_UNPACK = "if another program packed an export, unpack it, and import the directory"


class DirectoryWriter:
    """Writes an export as a directory: the manifest comes last."""

    def __init__(self, path: str) -> None:
        self._root = path

    def begin(self, draft: Manifest) -> None:
        """Make the directories of all parts. The digests in `draft` are not known yet."""
        for directory in sorted({part.place.rpartition("/")[0] for part in draft.parts}):
            Path(self._root, directory).mkdir(parents=True, exist_ok=True)

    def add(self, place: str, pieces: Iterable[memoryview]) -> str:
        """Write a file; return its digest."""
        with open_file(f"{self._root}/{place}", "xb", buffering=0) as file:
            return write(file, pieces)

    def end(self, manifest: Manifest) -> None:
        """Write the manifest."""
        Path(self._root, NAME).write_bytes(manifests.to_text(manifest))


class TarWriter:
    """Writes an export as a tar file. Its manifest comes first; the digests are put into the manifest at the end."""

    def __init__(self, path: str) -> None:
        self._path = path

    def begin(self, draft: Manifest) -> None:
        """Write the manifest, whose digests are not known yet."""
        self._moment = int(draft.made.at.timestamp())
        self._parts = {part.place: part for part in draft.parts}
        with open_file(self._path, "xb", buffering=0) as file:
            self._write_manifest(file, draft)

    def _write_manifest(self, file: FileIO, manifest: Manifest) -> None:
        text = manifests.to_text(manifest)
        write(file, map(memoryview, (_head(NAME, len(text), self._moment), text, _padding(len(text)))))

    def add(self, place: str, pieces: Iterable[memoryview]) -> str:
        """Append a file; return its digest. Files must be added in the order of the manifest."""
        size = self._parts[place].size
        with open_file(self._path, "ab", buffering=0) as file:
            write(file, [memoryview(_head(place, size, self._moment))])
            digest = write(file, pieces)
            write(file, [memoryview(_padding(size))])
        return digest

    def end(self, manifest: Manifest) -> None:
        """Write the end of a tar file, and overwrite the manifest with the one that has the digests."""
        with open_file(self._path, "r+b", buffering=0) as file:
            file.seek(0, os.SEEK_END)
            write(file, [memoryview(_ending(file.tell()))])
            file.seek(0)
            self._write_manifest(file, manifest)


Writer = DirectoryWriter | TarWriter


def _head(place: str, size: int, moment: int) -> bytes:
    """The header of a file in a tar file."""
    info = tarfile.TarInfo(place)
    info.size, info.mtime, info.mode = size, moment, 0o644
    return info.tobuf(tarfile.GNU_FORMAT, "utf-8", "surrogateescape")


def _padding(size: int) -> bytes:
    """The padding of the last block of a file."""
    return bytes(-size % tarfile.BLOCKSIZE)


def _ending(position: int) -> bytes:
    """Two empty blocks, and the padding of the last record."""
    ending = 2 * tarfile.BLOCKSIZE
    return bytes(ending + -(position + ending) % tarfile.RECORDSIZE)


def pieces_of(descriptor: int, offset: int, size: int) -> Iterator[memoryview]:
    """Yield bytes of an open file. Each piece reuses the memory of the one before. Raises `EOFError` and `OSError`."""
    memory = memoryview(bytearray(min(size, _PIECE)))
    end = offset + size
    while offset < end:
        count = os.preadv(descriptor, [memory[: end - offset]], offset)
        if not count:
            raise EOFError(f"it ends at byte {offset}")
        offset += count
        yield memory[:count]


class DirectorySource:
    """Reads an export that is a directory. Files that its manifest does not name are ignored."""

    def __init__(self, path: str) -> None:
        self._root = path
        opened, size = self._open(NAME)
        try:
            if size > MOST_BYTES:
                raise DamageError(f"{path}/{NAME} is longer than any manifest", _AGAIN)
            raw = b"".join(map(bytes, pieces_of(opened, 0, size)))
        except EOFError as error:
            raise _damaged(f"{path}/{NAME}", str(error)) from None
        finally:
            os.close(opened)
        self.manifest = manifests.read(raw, path)

    def __enter__(self) -> Self:
        """Itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Do nothing: no file is open."""

    def read(self, part: Part) -> Iterator[memoryview]:
        """The bytes of a part. Raises `DamageError` if it is missing, a link, or of another size."""
        opened, size = self._open(part.place)
        try:
            if size != part.size:
                raise _damaged(f"{self._root}/{part.place}", f"it has {size} bytes, its manifest says {part.size}")
            yield from pieces_of(opened, 0, size)
        except EOFError as error:
            raise _damaged(f"{self._root}/{part.place}", str(error)) from None
        finally:
            os.close(opened)

    def check_end(self) -> None:
        """Do nothing: nothing follows the parts."""

    def _open(self, place: str) -> tuple[int, int]:
        """Open a file below the directory without following links; return its descriptor and size."""
        directory, _, name = f"{self._root}/{place}".rpartition("/")
        try:
            with opened_directory(directory) as above:
                opened = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=above)
        except OSError as error:
            why = reason_of(error)
            if place == NAME:
                raise UsageError(f"{self._root} is no export: {NAME}: {why}", "give what `export` wrote") from None
            raise _damaged(f"{self._root}/{place}", why) from None
        try:
            return opened, _size_of(opened, f"{self._root}/{place}")
        except BaseException:
            os.close(opened)
            raise


class TarSource:
    """Reads an export that is a tar file."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            self._begin(_size_of(self._file, path))
        except BaseException:
            os.close(self._file)
            raise

    def _begin(self, size: int) -> None:
        """Read the manifest, and check that the file is as long as its parts: only the manifest tells their sizes."""
        try:
            info = tarfile.TarInfo.frombuf(os.pread(self._file, tarfile.BLOCKSIZE, 0), "utf-8", "surrogateescape")
        except tarfile.HeaderError:
            if not self._path.endswith(TAR):
                hint = "give the directory or the .tar that `export` wrote; if it was compressed, decompress it first"
                raise UsageError(f"{self._path} is no export: it is no tar file", hint) from None
            raise _damaged(self._path, "its beginning is not that of an export") from None
        if info.name != NAME:
            raise UsageError(f"{self._path} is no export: its first file is {info.name!a}", _UNPACK)
        if not 0 < info.size <= MOST_BYTES:
            raise DamageError(f"the manifest of {self._path} is longer than any", _AGAIN)
        self._moment = int(info.mtime)
        self._expect(0, _head(NAME, info.size, self._moment))
        begin = tarfile.BLOCKSIZE
        self.manifest = manifests.read(os.pread(self._file, info.size, begin), self._path)
        self._expect(begin + info.size, _padding(info.size))
        position = begin + info.size + len(_padding(info.size))
        self._begins: dict[str, int] = {}
        for part in self.manifest.parts:
            self._begins[part.place] = position
            position += len(_head(part.place, part.size, self._moment)) + part.size + len(_padding(part.size))
        self._end = position
        whole = position + len(_ending(position))
        if size != whole:
            raise _damaged(self._path, f"it has {size} bytes, its manifest says {whole}")

    def __enter__(self) -> Self:
        """Itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the file."""
        os.close(self._file)

    def read(self, part: Part) -> Iterator[memoryview]:
        """The bytes of a part. Raises `DamageError` if the header or the padding around them was changed."""
        head, begin = _head(part.place, part.size, self._moment), self._begins[part.place]
        self._expect(begin, head)
        try:
            yield from pieces_of(self._file, begin + len(head), part.size)
        except EOFError as error:
            raise _damaged(self._path, str(error)) from None
        self._expect(begin + len(head) + part.size, _padding(part.size))

    def check_end(self) -> None:
        """Raise `DamageError` if the end of the file was changed."""
        self._expect(self._end, _ending(self._end))

    def _expect(self, offset: int, content: bytes) -> None:
        if os.pread(self._file, len(content), offset) != content:
            raise _damaged(self._path, f"what stands at byte {offset} is not what `export` wrote there")


Source = DirectorySource | TarSource


def open_source(path: str) -> Source:
    """Open an export to read. Raises `UsageError` if the path is no export, `DamageError` if the export was changed."""
    try:
        return DirectorySource(os.path.realpath(path)) if os.path.isdir(path) else TarSource(path)
    except OSError as error:
        raise UsageError(f"cannot read {path}: {reason_of(error)}", "give what `export` wrote") from None


def _size_of(opened: int, path: str) -> int:
    """The size of an open file, in bytes. Raises `DamageError` if it is no regular file."""
    status = os.fstat(opened)
    if not S_ISREG(status.st_mode):
        raise _damaged(path, "it is no regular file")
    return status.st_size


def _damaged(path: str, why: str) -> DamageError:
    return DamageError(f"{path} is damaged: {why}", f"{_AGAIN}; {_UNPACK}" if path.endswith(TAR) else _AGAIN)
