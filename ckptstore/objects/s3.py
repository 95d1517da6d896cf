"""A bucket of an S3-compatible server as a store, and the proofs that the bytes have arrived.

- On the way: each request is signed with the SHA-256 of its body, which the server compares.
- In the store: an object's checksum (ETag) is the MD5 of the file, or the MD5 of its parts' MD5s. It is computed while
  the file is read, beside its BLAKE3. A store that encrypts with its own keys has another ETag: then the object is read
  back.
- A file that is cut while it is sent never appears: an upload in parts is completed at its end, and only if the bytes
  have the recorded BLAKE3.
"""

from __future__ import annotations

import re
from collections import deque
from contextlib import contextmanager
from datetime import timedelta
from email.utils import parsedate_to_datetime
from hashlib import md5
from typing import TYPE_CHECKING, Any

from ckptstore.objects.asked import ask, text, values
from ckptstore.objects.errors import (
    DeniedError,
    FullError,
    MissingError,
    StoreError,
    UnreachableError,
    WrongBytesError,
)
from ckptstore.objects.settings import settings
from ckptstore.objects.store import PIECE, Finding, Seen, Store, limited, read_pieces
from ckptstore.outside import ThreadPoolExecutor, token_hex, utc_now

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ckptstore.objects.store import Limit
    from ckptstore.outside import Future

_PARALLEL = 4
_MOST_PARTS = 10_000
_SECONDS = timedelta(seconds=60)
_RETRIES = {
    "max_retries": 3,
    "retry_timeout": timedelta(seconds=60),
    "backoff": {"init_backoff": timedelta(milliseconds=200), "max_backoff": timedelta(seconds=5), "base": 2},
}
_SKEW_SECONDS = 60
_OK = 200
_NOT_MADE = (404, 501)  # the answers of a server that does not know the request
# As obstore writes it: a key with `status/503` in it, or a port, has no space before its number.
_STATUS = re.compile(r"(?:status|code): ([45]\d\d)\b", re.IGNORECASE)
_ASKS_FOR_A_ROLE = re.compile(r"/latest/(?:api/token|meta-data/iam/)")  # without a key, obstore asks the machine
_CODE = re.compile(r"<Code>([A-Za-z0-9.]{1,60})</Code>")


class S3Store(Store):
    """Objects in a bucket, below a prefix."""

    def __init__(self, bucket: str, prefix: str) -> None:
        self.name = f"s3://{bucket}/{prefix}".rstrip("/")
        self._bucket, self._prefix = bucket, f"{prefix}/" if prefix else ""
        self._settings = own = settings()
        self._api = _obstore()
        told: dict[str, Any] = {"region": own.region, "virtual_hosted_style_request": own.is_in_host}
        if own.endpoint:
            told["endpoint"] = own.endpoint
        if own.key:  # handed over as a whole: obstore adds a token of the environment to a key, also an empty one
            whole = {"access_key_id": own.key, "secret_access_key": own.secret, "expires_at": None}
            told["credential_provider"] = lambda: {**whole, "token": own.token or None}
        with self._named("be opened"):
            self._client = self._api.store.S3Store(
                bucket,
                client_options={
                    "allow_http": own.endpoint.startswith("http://"),
                    "connect_timeout": timedelta(seconds=10),
                    "timeout": _SECONDS,
                },
                retry_config=_RETRIES,
                **told,
            )

    def put(self, path: str, key: str, size: int, digest: str, limit: Limit | None = None) -> None:
        """Send a file in parts of 8 MiB or more, 4 at a time; a smaller file at once."""
        sums = _Sums(max(PIECE, -(-size // _MOST_PARTS)))
        seen = self.head(key)
        if seen is not None and seen.size == size:
            for _ in read_pieces(path, size, digest, (sums.add,)):
                pass
            if seen.tag == sums.tag() or self.digest_of(key, size) == digest:
                return
            sums = _Sums(sums.part)
        pieces = limited(read_pieces(path, size, digest, (sums.add,)), limit)
        kept: list[BaseException] = []
        with self._named(f"take {key}"):
            if size <= sums.part:
                body = b"".join(pieces)
                told = self._api.put(self._client, self._at(key), body, use_multipart=False)
            else:
                self._abort(key)
                try:
                    told = self._api.put(
                        self._client,
                        self._at(key),
                        _kept(pieces, kept),
                        chunk_size=sums.part,
                        max_concurrency=_PARALLEL,
                    )
                except BaseException:
                    if kept:
                        raise kept[0] from None
                    raise
        if told["e_tag"] is None or told["e_tag"].strip('"') != sums.tag():
            self._prove(key, size, digest)

    def head(self, key: str) -> Seen | None:
        """The size, time and checksum of an object, from the store."""
        try:
            with self._named(f"be asked for {key}"):
                return self._seen(self._api.head(self._client, self._at(key)))
        except MissingError:
            return None

    def list(self, prefix: str = "") -> Iterator[Seen]:
        """Every object below the prefix, in portions of 1,000."""
        with self._named("be listed"):
            # S3 lists by any prefix, obstore by whole folders only: the names in the folder are filtered here.
            for some in self._api.list(self._client, f"{self._prefix}{prefix.rpartition('/')[0]}".rstrip("/") or None):
                for each in some:
                    seen = self._seen(each)
                    if seen.key.startswith(prefix):
                        yield seen

    def remove(self, key: str) -> None:
        """Delete an object; a bucket with versions marks it as deleted."""
        try:
            with self._named(f"delete {key}"):
                self._api.delete(self._client, self._at(key))
        except MissingError:
            pass

    def pieces(self, key: str, begin: int, end: int) -> Iterator[memoryview]:
        """The bytes of an object, in order; 4 ranges are fetched at a time."""
        waiting: deque[Future[Any]] = deque()
        with ThreadPoolExecutor(_PARALLEL, "ckptstore-fetch") as pool:
            try:
                for start in range(begin, end, PIECE):
                    waiting.append(pool.submit(self._range, key, start, min(PIECE, end - start)))
                    if len(waiting) > _PARALLEL:
                        yield waiting.popleft().result()
                while waiting:
                    yield waiting.popleft().result()
            finally:
                for each in waiting:
                    each.cancel()

    def check(self) -> tuple[Finding, ...]:
        """Check rights, the clock, versions, and rules of the bucket that delete objects by themselves."""
        answer = ask(self._settings, self._bucket, "HEAD")
        key = f".ckptstore/check-{token_hex(8)}"
        with self._named("be written to"):
            self._api.put(self._client, self._at(key), b"ckptstore", use_multipart=False)
            if bytes(self._api.get_range(self._client, self._at(key), start=0, length=9)) != b"ckptstore":
                raise WrongBytesError(f"{self.name} gives other bytes than it got", "do not use it")
            self._api.delete(self._client, self._at(key))
        return (*self._clock(answer.headers.get("date", "")), *self._versions(), *self._rules())

    def _range(self, key: str, start: int, length: int) -> memoryview:
        with self._named(f"give {key}"):
            piece = memoryview(self._api.get_range(self._client, self._at(key), start=start, length=length))
        if piece.nbytes != length:
            raise WrongBytesError(f"{key} of {self.name} ends at byte {start + piece.nbytes}", "another copy is needed")
        return piece

    def _prove(self, key: str, size: int, digest: str) -> None:
        seen = self.head(key)
        if seen is None or seen.size != size or self.digest_of(key, size) != digest:
            raise WrongBytesError(f"{key} of {self.name} has other bytes than the file", "it is sent again")

    def _abort(self, key: str) -> None:
        """Have the store delete the parts of interrupted uploads of this key. No listing of objects shows them.

        If the store refuses, a rule of the bucket must delete them (docs/how-to/keep-copies.md); `check` reports that.
        """
        if not self._settings.key:
            return
        at = self._at(key)
        answer = ask(self._settings, self._bucket, "GET", query={"uploads": "", "prefix": at})
        if answer.status != _OK:
            return
        for each in values(answer.body, "Upload"):
            if text(each, "Key") == at:
                ask(self._settings, self._bucket, "DELETE", at, {"uploadId": text(each, "UploadId")})

    def _clock(self, date: str) -> tuple[Finding, ...]:
        try:
            skew = (utc_now() - parsedate_to_datetime(date)).total_seconds()
        except (ValueError, TypeError):
            return ()
        if abs(skew) <= _SKEW_SECONDS:
            return ()
        what = f"the clock of this machine differs by {abs(skew):.0f} s from that of {self.name}"
        return (Finding(what, "set it: servers refuse requests that are 15 minutes off"),)

    def _versions(self) -> tuple[Finding, ...]:
        answer = ask(self._settings, self._bucket, "GET", query={"versioning": ""})
        status = next(values(answer.body, "Status"), None)
        if answer.status != _OK or status is None or status.text != "Enabled":
            return ()
        what = f"{self.name} keeps versions: purged objects stay there as older versions"
        return (Finding(what, "have a rule of the bucket delete noncurrent versions", is_fault=False),)

    def _rules(self) -> tuple[Finding, ...]:
        answer = ask(self._settings, self._bucket, "GET", query={"lifecycle": ""})
        if answer.status != _OK:
            if answer.status in _NOT_MADE:
                return (_no_abort(self.name),)
            what = f"the rules of {self.name} cannot be read (status {answer.status})"
            return (Finding(what, "see by hand that none of them deletes objects below the prefix", is_fault=False),)
        return rules_found(answer.body, self.name, self._prefix)

    def _at(self, key: str) -> str:
        return f"{self._prefix}{key}"

    def _seen(self, told: Any) -> Seen:
        return Seen(told["path"][len(self._prefix) :], told["size"], (told["e_tag"] or "").strip('"'))

    @contextmanager
    def _named(self, what: str) -> Iterator[None]:
        """Raise errors of obstore as `StoreError`, without their text: it may contain signed parts of a request."""
        try:
            yield
        except (self._api.exceptions.BaseError, OSError, ValueError) as error:
            if isinstance(error, StoreError):
                raise
            raise _translated(f"{self.name} cannot {what}", error) from None


def _obstore() -> Any:
    """The optional package. Raises `StoreError` if it is not installed."""
    try:
        import obstore  # noqa: PLC0415 — takes 50 ms
        import obstore.exceptions  # noqa: PLC0415
        import obstore.store  # noqa: PLC0415
    except ModuleNotFoundError:
        hint = "run: pip install 'ckptstore[objects]'"
        raise StoreError("object storage needs a package that is not installed", hint) from None
    return obstore


def rules_found(body: bytes, name: str, prefix: str) -> tuple[Finding, ...]:
    """The lifecycle rules of a bucket that endanger copies below a prefix."""
    found: list[Finding] = []
    aborts = False
    for rule in values(body, "Rule"):
        tags = {each.tag.rpartition("}")[2]: each for each in rule.iter()}
        below = next(filter(None, (text(tags[of], "Prefix") for of in ("Rule", "Filter", "And") if of in tags)), "")
        if text(rule, "Status") != "Enabled" or not (prefix.startswith(below) or below.startswith(prefix)):
            continue
        aborts |= "AbortIncompleteMultipartUpload" in tags
        which = f"rule {text(rule, 'ID') or 'without a name'!r} of {name}"
        if "Expiration" in tags and "ExpiredObjectDeleteMarker" not in tags:
            what = f"{which} deletes objects by their age: copies vanish behind the catalog"
            found.append(Finding(what, "take the prefix out of it; gc deletes what no policy keeps"))
        if "Transition" in tags:
            what = f"{which} moves objects to a storage class that may take hours to read"
            found.append(Finding(what, "see that its class is read at once", is_fault=False))
    return (*found, *(() if aborts else (_no_abort(name),)))


def _no_abort(name: str) -> Finding:
    what = f"no rule of {name} ends uploads that were cut off: their parts are paid for, and not listed"
    return Finding(what, "add a rule AbortIncompleteMultipartUpload, of 7 days or so", is_fault=False)


class _Sums:
    """Computes the ETag that S3 gives to an object which is sent in parts of one size."""

    def __init__(self, part: int) -> None:
        self.part = part
        self._parts: list[bytes] = []
        self._now, self._left = _md5(), part

    def add(self, piece: bytes) -> None:
        """Add the next bytes."""
        view = memoryview(piece)
        while view:
            some, view = view[: self._left], view[self._left :]
            self._now.update(some)
            self._left -= some.nbytes
            if not self._left:
                self._parts.append(self._now.digest())
                self._now, self._left = _md5(), self.part

    def tag(self) -> str:
        """The ETag of all bytes so far."""
        if not self._parts or (len(self._parts) == 1 and self._left == self.part):
            return (self._parts[0] if self._parts else self._now.digest()).hex()
        rest = [self._now.digest()] if self._left < self.part else []
        every = [*self._parts, *rest]
        return f"{_md5(b''.join(every)).hexdigest()}-{len(every)}"


def _md5(content: bytes = b"") -> Any:
    return md5(content, usedforsecurity=False)  # S3's own checksum


def _kept(pieces: Iterator[bytes], kept: list[BaseException]) -> Iterator[bytes]:
    """Yield the pieces. An error that ends them is kept, since obstore raises only its text."""
    try:
        yield from pieces
    except GeneratorExit:  # obstore stopped reading, and raises its own error
        raise
    except BaseException as error:
        kept.append(error)
        raise


_ANSWERS: tuple[tuple[str, type[StoreError], str, str], ...] = (
    (r"\b416\b|InvalidRange", WrongBytesError, "it has fewer bytes", "another copy is needed"),
    (
        r"AuthorizationHeaderMalformed|PermanentRedirect|another region",
        UnreachableError,
        "its region is another one",
        "set AWS_REGION to the bucket's region",
    ),
    (
        r"RequestTimeTooSkewed|RequestInTheFuture|RequestExpired",
        DeniedError,
        "the clock of this machine differs from the server's",
        "set the clock",
    ),
    (
        r"\b507\b|\b413\b|insufficient.?storage|storage.?full|quota|EntityTooLarge",
        FullError,
        "it is full",
        "make room there, or raise the quota",
    ),
    (
        r"\b40[13]\b|Denied|Unauthenticated|Forbidden|InvalidAccessKeyId|SignatureDoesNotMatch|(?:Expired|Invalid)Token",
        DeniedError,
        "it refuses this user",
        "see AWS_ACCESS_KEY_ID and the rights of the user",
    ),
)
"""Answers by their codes: the error that each becomes, its reason, and its hint. The first one that fits counts."""


def _translated(message: str, error: Exception) -> StoreError:
    kind, said = type(error).__name__, str(error)
    if _ASKS_FOR_A_ROLE.search(said):
        hint = "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or the profile in ~/.aws/credentials"
        return DeniedError(f"{message}: no key is set, and this machine gives none", hint)
    if isinstance(error, FileNotFoundError) or kind == "NotFoundError":
        return MissingError(f"{message}: it is not there", "see that the bucket and the prefix are the right ones")
    code, status = _CODE.search(said), _STATUS.search(said)
    told = [*([code[1]] if code else []), *([f"status {status[1]}"] if status else [])] or [_short(said)]
    answer = " ".join((kind, *told))  # not all that is said: it has the key, and that the global step, as 403
    for pattern, becomes, reason, hint in _ANSWERS:
        if re.search(pattern, answer, re.IGNORECASE):
            return becomes(f"{message}: {reason} ({told[0]})", hint)
    hint = "see that it runs and has room, and that AWS_ENDPOINT_URL names it"
    return UnreachableError(f"{message} now ({told[0]})", hint)


def _short(said: str) -> str:
    """Why no answer came, in ckptstore's own words."""
    lower = said.lower()
    if "timed out" in lower or "timedout" in lower:
        return "no answer in time"
    if " incorrectly configured region" in lower:
        return "another region"
    if "dns" in lower or "resolve" in lower:
        return "its host is not known"
    return "no connection" if "connect" in lower or "error sending request" in lower else "it failed"
