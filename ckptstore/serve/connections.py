"""The HTTP server, with limits: clients that send or read too slowly do not delay others."""

from __future__ import annotations

from typing import TYPE_CHECKING

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

if TYPE_CHECKING:
    import asyncio

    from starlette.types import ASGIApp

MOST_CONNECTIONS = 500
HEADER_SECONDS = 10.0
STALLED_SECONDS = 30.0
_HEADER_BYTES = 64 * 1024


def server(app: ASGIApp) -> uvicorn.Server:
    """A server of `app`. The address of a client is that of its connection; headers of proxies are ignored."""
    return uvicorn.Server(
        uvicorn.Config(
            app,
            http=Bounded,
            ws="none",
            log_level="warning",
            access_log=False,
            server_header=False,
            proxy_headers=False,
            limit_concurrency=MOST_CONNECTIONS,
            h11_max_incomplete_event_size=_HEADER_BYTES,
            timeout_graceful_shutdown=2,
        )
    )


class Bounded(H11Protocol):
    """A connection that is closed if a request's header takes 10 s, or if the client stops reading for 30 s."""

    _late: asyncio.TimerHandle | None = None
    _stalled: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the time limit for the first request's header."""
        super().connection_made(transport)
        self._await_header()

    def on_response_complete(self) -> None:
        """Start the time limit for the next request's header."""
        super().on_response_complete()
        self._await_header()

    def shutdown(self) -> None:
        """Close the connection, also one with a stream of events: a stream has no end."""
        super().shutdown()
        if self.cycle is not None and self.cycle.response_started:
            self.transport.close()

    def pause_writing(self) -> None:
        """Start the time limit for a client that reads too slowly, or not at all."""
        super().pause_writing()
        self._stalled = self.loop.call_later(STALLED_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        """Stop this time limit: the client reads again."""
        super().resume_writing()
        if self._stalled is not None:
            self._stalled.cancel()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop all time limits."""
        super().connection_lost(exc)
        for timer in (self._late, self._stalled):
            if timer is not None:
                timer.cancel()

    def _await_header(self) -> None:
        if self._late is not None:
            self._late.cancel()
        self._late = self.loop.call_later(HEADER_SECONDS, self._give_up_unless_asked)

    def _give_up_unless_asked(self) -> None:
        if self.cycle is None or self.cycle.response_complete:
            self.transport.abort()
