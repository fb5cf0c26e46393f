"""What tests of what a job says about itself may rely on."""

from __future__ import annotations

from sessions import spark

__all__ = ["spark"]
