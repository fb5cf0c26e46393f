"""`fencepost ui`: pages that show jobs from what their checkpoints hold; the driver may be running, stopped or dead.

    shelf         which jobs are shown, and what was last known of each
    targets       the sinks of a job whose file was named: what each holds, and its dead letters
    application   pages, by Starlette; only GET, only for this machine
    api           the same as JSON, under /api/v1
    listener      the port

Only reads. Never a row's value and never a secret. Nothing is loaded from another host.
"""
