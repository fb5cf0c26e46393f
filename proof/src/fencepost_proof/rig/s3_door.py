"""A door before an S3 server: counts what goes through, and answers wrongly, late or not at all when told to.

Never looks at signatures, so that it can change headers; never tries anything twice, so that what it counts was asked.
"""

from __future__ import annotations

import contextlib
import http.client
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Self
from urllib.parse import parse_qsl, urlsplit

from fencepost_proof.rig.process import HOST, PATIENCE_S, free_ports
from fencepost_proof.rig.s3 import Endpoint

CONDITIONS = ("if-none-match", "if-match")
NOT_PASSED_ON = ("connection", "keep-alive", "expect", "transfer-encoding", "content-length")
"""Between two neighbours only; the length is said anew."""


@dataclass(frozen=True)
class Request:
    """What a client asks for."""

    method: str
    path: str
    """As it was sent, with its query."""
    headers: dict[str, str] = field(repr=False)
    """Their names in small letters."""

    @property
    def bucket(self) -> str:
        """The first part of the path."""
        return self._parts[0]

    @property
    def key(self) -> str:
        """The rest of it, as it was sent; empty for the bucket itself."""
        return self._parts[1]

    @property
    def query(self) -> dict[str, str]:
        """What is behind the question mark."""
        return dict(parse_qsl(urlsplit(self.path).query, keep_blank_values=True))

    @property
    def kind(self) -> str:
        """As stores count and charge: GET, HEAD, LIST, PUT, CONDITIONAL PUT, COPY, POST, DELETE."""
        if self.method == "GET" and not self.key:
            return "LIST"
        if self.method == "PUT" and "x-amz-copy-source" in self.headers:
            return "COPY"
        if self.method == "PUT" and any(condition in self.headers for condition in CONDITIONS):
            return "CONDITIONAL PUT"
        return self.method

    @property
    def _parts(self) -> tuple[str, str]:
        bucket, _, key = self.path.partition("?")[0].removeprefix("/").partition("/")
        return bucket, key


When = Callable[[Request], bool]
"""Which requests are meant."""


@dataclass(frozen=True)
class Answer:
    """One that the server did not give."""

    status: HTTPStatus
    code: str

    @property
    def body(self) -> bytes:
        """As S3 says it."""
        said = f"<Error><Code>{self.code}</Code><Message>{self.code}</Message><RequestId>door</RequestId></Error>"
        return f'<?xml version="1.0" encoding="UTF-8"?>\n{said}'.encode()


SLOW_DOWN = Answer(HTTPStatus.SERVICE_UNAVAILABLE, "SlowDown")
EXPIRED_TOKEN = Answer(HTTPStatus.FORBIDDEN, "ExpiredToken")
LOST = "lost"
IGNORED = "ignored"


@dataclass
class _Fault:
    what: Answer | str
    when: When
    left: int | None

    def hits(self, request: Request) -> bool:
        """Is this request meant? Then there is one less to come."""
        if self.left == 0 or not self.when(request):
            return False
        if self.left is not None:
            self.left -= 1
        return True


@dataclass
class S3Door(Endpoint):
    """Stands before an S3 server at an address of its own. Each fault lasts `times` requests, or until `behave`.

    A lost answer is that of a request that was done: the client cannot tell it from one that never arrived.
    """

    behind: str
    """The server's own endpoint."""
    lost: int = field(default=0, init=False)
    """How many answers were lost."""
    _counted: Counter[str] = field(default_factory=Counter, init=False, repr=False)
    _faults: list[_Fault] = field(default_factory=list, init=False, repr=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False, repr=False)
    _server: _Server | None = field(default=None, init=False, repr=False)

    @property
    def endpoint(self) -> str:
        """Where clients come."""
        assert self._server is not None, "not open yet"
        return f"http://{HOST}:{self._server.server_address[1]}"

    def __enter__(self) -> Self:
        """Open it on a free port."""
        while self._server is None:
            with contextlib.suppress(OSError):  # somebody may be quicker
                self._server = _Server(self, free_ports(1)[0])
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True, name="s3-door").start()
        return self

    def __exit__(self, *_: object) -> None:
        """Close it, and all connections."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server.cut()

    def count(self) -> Counter[str]:
        """How many requests of each kind came, also those that the server never saw."""
        with self._lock:
            return self._counted.copy()

    def reset(self) -> Counter[str]:
        """Count from zero again; what was counted until now."""
        with self._lock:
            counted, self._counted = self._counted, Counter()
        return counted

    def answer(self, what: Answer, *, when: When = lambda _: True, times: int | None = None) -> None:
        """Answer so from now on; the server does not get such requests."""
        self._add(_Fault(what, when, times))

    def lose_answer(self, *, when: When = lambda _: True, times: int | None = 1) -> None:
        """Let the next such request be done, and close the connection in place of its answer."""
        self._add(_Fault(LOST, when, times))

    def ignore_conditions(self, *, when: When = lambda _: True, times: int | None = None) -> None:
        """Be a store that does not know `If-None-Match` and `If-Match`: it never gets to see them."""
        self._add(_Fault(IGNORED, when, times))

    def behave(self) -> None:
        """Pass everything on as it is."""
        with self._lock:
            self._faults.clear()

    def _add(self, fault: _Fault) -> None:
        with self._lock:
            self._faults.append(fault)

    def came(self, request: Request) -> list[Answer | str]:
        """Count a request; what shall go wrong with it."""
        with self._lock:
            self._counted[request.kind] += 1
            hits = [fault.what for fault in self._faults if fault.hits(request)]
            self.lost += LOST in hits
            return hits


class _Server(ThreadingHTTPServer):
    """One thread for each connection, as long as it is open."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def __init__(self, door: S3Door, port: int) -> None:
        self.door = door
        self._open: set[socket.socket] = set()
        super().__init__((HOST, port), _Handler)

    def process_request(self, request: socket.socket | tuple[bytes, socket.socket], client_address: object) -> None:
        assert isinstance(request, socket.socket)
        self._open.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: socket.socket | tuple[bytes, socket.socket]) -> None:
        assert isinstance(request, socket.socket)
        self._open.discard(request)
        super().shutdown_request(request)

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that went away is no news."""

    def cut(self) -> None:
        """Close what is still open, so that the threads end."""
        for connection in list(self._open):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = 65536
    server: _Server

    def handle_any(self) -> None:
        """Ask the server in the client's place, unless a fault says otherwise."""
        body = self._body()
        request = Request(self.command, self.path, {name.lower(): value for name, value in self.headers.items()})
        faults = self.server.door.came(request)
        for fault in faults:
            if isinstance(fault, Answer):
                self._reply(fault.status, [("Content-Type", "application/xml")], fault.body)
                return
        try:
            status, headers, answer = self._ask(body, without=CONDITIONS if IGNORED in faults else ())
        except (OSError, http.client.HTTPException):  # the server is gone: so are we
            self.close_connection = True
            return
        if LOST in faults:
            self.close_connection = True
            return
        self._reply(status, headers, answer)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = handle_any  # noqa: N815 - names that http.server looks for

    def handle_expect_100(self) -> bool:
        """Say at once that a body may come: a client waits for that, s3a three seconds."""
        goes_on = super().handle_expect_100()
        self.wfile.flush()
        return goes_on

    def _ask(self, body: bytes, without: tuple[str, ...]) -> tuple[int, list[tuple[str, str]], bytes]:
        """One request on a connection of its own: an old one may have died, and nothing is tried twice."""
        left_out = (*NOT_PASSED_ON, *without)
        behind = http.client.HTTPConnection(urlsplit(self.server.door.behind).netloc, timeout=PATIENCE_S)
        with contextlib.closing(behind):
            behind.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
            for name, value in self.headers.items():
                if name.lower() not in left_out:
                    behind.putheader(name, value)
            if body or self.command in {"PUT", "POST"}:
                behind.putheader("Content-Length", str(len(body)))
            behind.endheaders(body or None)
            answer = behind.getresponse()
            return answer.status, answer.getheaders(), answer.read()

    def _reply(self, status: int, headers: list[tuple[str, str]], body: bytes) -> None:
        self.send_response_only(status)
        told = {name.lower(): value for name, value in headers}
        for name, value in headers:
            if name.lower() not in NOT_PASSED_ON:
                self.send_header(name, value)
        if self.command == "HEAD":  # the length of what a GET would bring
            self.send_header("Content-Length", told.get("content-length", "0"))
        elif status != HTTPStatus.NO_CONTENT:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding", "").lower() == "chunked":
            return b"".join(self._chunks())
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))

    def _chunks(self) -> Iterator[bytes]:
        while size := int(self.rfile.readline().partition(b";")[0], 16):
            yield self.rfile.read(size)
            self.rfile.readline()
        while self.rfile.readline().strip():
            pass  # trailers

    def log_message(self, *_: object) -> None:
        """Not a word."""
