"""S3 without Spark or Java: through boto3, which finds the credentials; AWS_ENDPOINT_URL sets another endpoint."""

from __future__ import annotations

import errno
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from fencepost.store.base import AT_ONCE, CONNECT_S, READ_S, Found, Remote, Unanswered, split

MANY: Final = 1000
"""The most names that S3 lists or deletes per request."""

TAKEN: Final = {"412", "PreconditionFailed"}
"""Not 409: that means another request is in progress, which may still fail."""
ABSENT: Final = {"404", "NoSuchKey", "NoSuchBucket", "NotFound"}
DENIED: Final = {
    *("400", "401", "403"),  # a HEAD gets no better answer; an expired token gets a 400
    *("AccessDenied", "AccountProblem", "AllAccessDisabled", "AuthorizationHeaderMalformed", "ExpiredToken"),
    *("InvalidAccessKeyId", "InvalidToken", "RequestTimeTooSkewed", "SignatureDoesNotMatch", "TokenRefreshRequired"),
}


class S3Remote(Remote):
    """An S3-compatible store through boto3."""

    @cached_property
    def _s3(self) -> Any:
        from boto3.session import Session  # noqa: PLC0415 - an extra
        from botocore.config import Config  # noqa: PLC0415 - an extra

        # No retries: a create that succeeded, if retried, would report that somebody else was first.
        once = {"total_max_attempts": 1, "mode": "standard"}
        chosen = Config(connect_timeout=CONNECT_S, read_timeout=READ_S, retries=once, max_pool_connections=AT_ONCE)
        return Session().client("s3", config=chosen)

    def create(self, url: str, data: bytes) -> bool:
        try:
            with _told(url):
                self._s3.put_object(**_key(url), Body=data, IfNoneMatch="*")
        except FileExistsError:
            return False
        return True

    def replace(self, url: str, data: bytes) -> None:
        with _told(url):
            self._s3.put_object(**_key(url), Body=data)

    def read(self, url: str) -> bytes | None:
        try:
            with _told(url):
                return bytes(self._s3.get_object(**_key(url))["Body"].read())
        except FileNotFoundError:
            return None

    def look(self, url: str) -> Found | None:
        """The object, or a folder if there is anything below it."""
        name = url.rpartition("/")[2]
        try:
            with _told(url):
                head = self._s3.head_object(**_key(url))
        except FileNotFoundError:
            pages = self._pages(url, "/", 1)
            is_folder = any(page.get("Contents") or page.get("CommonPrefixes") for page in pages)
            return Found(name, True, 0, 0.0, "-") if is_folder else None
        return Found(name, False, head["ContentLength"], head["LastModified"].timestamp(), _tag(head))

    def list(self, url: str) -> Sequence[Found]:
        """What is below, up to the next slash; if an object and a folder have the same name, the object."""
        return self._listed(url, "/")

    def below(self, url: str) -> Sequence[Found]:
        return self._listed(url, "")

    def _listed(self, url: str, delimiter: str) -> Sequence[Found]:
        found: dict[str, Found] = {}
        start = len(_prefix(url))
        for page in self._pages(url, delimiter):
            for entry in page.get("CommonPrefixes", ()):
                name = entry["Prefix"][start:-1]
                found.setdefault(name, Found(name, True, 0, 0.0, "-"))
            for entry in page.get("Contents", ()):
                name = entry["Key"][start:]
                if name and not name.endswith("/"):  # s3a's markers for empty folders
                    found[name] = Found(name, False, entry["Size"], entry["LastModified"].timestamp(), _tag(entry))
        return [found[name] for name in sorted(found)]

    def _pages(self, url: str, delimiter: str, most: int = MANY) -> Iterator[dict[str, Any]]:
        asked = {"Bucket": _key(url)["Bucket"], "Prefix": _prefix(url), "Delimiter": delimiter, "MaxKeys": most}
        try:
            while True:
                with _told(url):
                    page = self._s3.list_objects_v2(**asked)
                yield page
                if not page.get("IsTruncated"):
                    return
                asked["ContinuationToken"] = page["NextContinuationToken"]
        except FileNotFoundError:
            return  # no bucket

    def delete(self, url: str) -> None:
        """Remove the object and everything below it, including s3a's markers for empty folders."""
        below = [entry["Key"] for page in self._pages(url, "") for entry in page.get("Contents", ())]
        bucket, key = _key(url).values()
        with _told(url):
            if key:
                self._s3.delete_object(Bucket=bucket, Key=key)
            for first in range(0, len(below), MANY):
                doomed = [{"Key": key} for key in below[first : first + MANY]]
                answer = self._s3.delete_objects(Bucket=bucket, Delete={"Objects": doomed, "Quiet": True})
                for failed in answer.get("Errors", ())[:1]:
                    raise _by_code(str(failed.get("Code", "")), url)

    def fetch(self, url: str, to: Path) -> None:
        with _told(url):
            self._s3.download_file(*_key(url).values(), str(to))

    def send(self, path: Path, url: str) -> None:
        with _told(url):
            self._s3.upload_file(str(path), *_key(url).values())


def _key(url: str) -> dict[str, str]:
    bucket, key = split(url)
    return {"Bucket": bucket, "Key": key}


def _prefix(url: str) -> str:
    key = split(url)[1]
    return f"{key}/" if key else ""


def _tag(answer: dict[str, Any]) -> str:
    # Some servers list unfinished uploads too: those have no tag, and names of their own.
    return str(answer.get("ETag", "")).strip('"')


@contextmanager
def _told(url: str) -> Iterator[None]:
    """Turn boto3's errors into OSErrors, by code and type only: their texts may contain names and keys."""
    from boto3.exceptions import Boto3Error  # noqa: PLC0415 - an extra
    from botocore import exceptions as said  # noqa: PLC0415 - an extra

    try:
        yield
    except said.ClientError as error:
        raise _by_code(_code(error), url) from None
    except (said.HTTPClientError, said.ConnectionError, said.ResponseStreamingError) as error:
        raise Unanswered(errno.EIO, type(error).__name__, url) from None
    except Boto3Error as error:  # from an upload, wrapped around the actual error
        code = _code(error.__context__) if isinstance(error.__context__, said.ClientError) else type(error).__name__
        raise _by_code(code, url) from None
    except said.BotoCoreError as error:  # credentials, a profile, a region: no request was sent
        raise PermissionError(errno.EACCES, f"no usable credentials ({type(error).__name__})", url) from None


def _code(error: Any) -> str:
    return str(error.response.get("Error", {}).get("Code", ""))


def _by_code(code: str, url: str) -> OSError:
    if code in TAKEN:
        return FileExistsError(errno.EEXIST, "the name is taken", url)
    if code in ABSENT:
        return FileNotFoundError(errno.ENOENT, "No such file", url)
    if code in DENIED:
        return PermissionError(errno.EACCES, f"the store denies access ({code})", url)
    return Unanswered(errno.EIO, code, url)
