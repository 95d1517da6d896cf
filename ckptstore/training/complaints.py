"""Warnings that are logged once, however often their reason comes back."""

from __future__ import annotations

import logging

log = logging.getLogger("ckptstore")


class Complaints:
    """The warnings so far."""

    def __init__(self) -> None:
        self._logged: set[str] = set()

    def warn(self, message: str) -> None:
        """Log a warning, unless it was logged before."""
        if message not in self._logged:
            self._logged.add(message)
            log.warning("%s", message)
