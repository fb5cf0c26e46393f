"""A session for those that need one; without it, what the command line says."""

from __future__ import annotations

from sessions import spark

__all__ = ["spark"]
