"""A checkpoint's options that cannot be."""

from pathlib import Path

import fencepost as fp

HERE = Path(__file__).parent

job = fp.Job("words", checkpoint=fp.Checkpoint(HERE / "checkpoint", timeout="0 s", keep_epochs=1, min_pause="a while"))
