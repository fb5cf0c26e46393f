"""What tests of stores may rely on."""

from __future__ import annotations

from sessions import spark

__all__ = ["spark"]
