"""The port that the pages are served on: always of this machine's loopback."""

from __future__ import annotations

import errno
import socket
from typing import Final

import uvicorn

from fencepost.errors import UNCHANGED, BadConfig
from fencepost.ui.application import Guard

LOOPBACK: Final = "127.0.0.1"


def listen(port: int) -> socket.socket:
    """The port, ours alone; `BadConfig` if it is taken. 0: any that is free."""
    made = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        made.bind((LOOPBACK, port))
        made.listen(100)
    except OSError as error:
        made.close()
        taken = error.errno == errno.EADDRINUSE
        what = f"Port {port} is in use" if taken else f"Port {port} cannot be used: {error.strerror}"
        raise BadConfig(
            "port_in_use" if taken else "port_refused",
            f"{what}.",
            safe=UNCHANGED,
            next="Choose another one: --port N, or --port 0 for any that is free.",
        ) from error
    return made


def serve(app: Guard, opened: socket.socket) -> None:
    """Until Ctrl-C. A page that is open does not hold it up."""
    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        server_header=False,
        lifespan="off",
        timeout_graceful_shutdown=5,
        timeout_keep_alive=30,
        h11_max_incomplete_event_size=16_384,
    )
    server = uvicorn.Server(config)
    app.end_with(lambda: server.should_exit)
    server.run(sockets=[opened])
