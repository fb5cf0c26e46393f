"""A mistake in Python, before anything of ours."""

import fencepost as fp

job = fp.Job("words", checkpoint="checkpoint")
folder = {"in": "lines"}["input"]
