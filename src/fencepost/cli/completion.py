"""`fencepost completion SHELL`: the script with which a shell completes our commands, options and jobs."""

from __future__ import annotations

import sys

import click
from click.shell_completion import get_completion_class

WHERE = {
    "bash": 'Add to ~/.bashrc:  eval "$(fencepost completion bash)"',
    "zsh": 'Add to ~/.zshrc, after compinit:  eval "$(fencepost completion zsh)"',
    "fish": "Once:  fencepost completion fish > ~/.config/fish/completions/fencepost.fish",
}


@click.command()
@click.argument("shell", type=click.Choice(sorted(WHERE)))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the shell completion script for commands, options and jobs.

    For bash put  eval "$(fencepost completion bash)"  into ~/.bashrc; for zsh the same into ~/.zshrc, after compinit.
    For fish:  fencepost completion fish > ~/.config/fish/completions/fencepost.fish
    """
    kind = get_completion_class(shell)
    assert kind is not None, "click knows the three"
    made = kind(ctx.find_root().command, {}, "fencepost", "_FENCEPOST_COMPLETE")
    # Not source(): for bash that starts one, to complain about old versions.
    click.echo(made.source_template % made.source_vars())
    if sys.stdout.isatty():  # not in the line of ~/.bashrc, which runs for every shell
        click.echo(WHERE[shell], err=True)
