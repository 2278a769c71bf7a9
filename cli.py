"""The command line: the one place where assembler, verifier and machines meet."""

from __future__ import annotations

import click


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="dla")
def main() -> None:
    """Deep-learning accelerator: assemble tensor programs, run them on NumPy or on a GPU."""
