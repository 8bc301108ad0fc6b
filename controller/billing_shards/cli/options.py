"""Options that several commands take."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

PLAIN: dict[str, Any] = {"rich_markup_mode": None, "pretty_exceptions_enable": False, "no_args_is_help": True}
"""For each group of commands: plain text, and our own errors."""

ManifestOption = Annotated[
    Path | None,
    typer.Option(
        "--manifest",
        envvar="BILLING_SHARDS_MANIFEST",
        metavar="FILE",
        help="A BillingShardSet and its Secrets as YAML. Left out: the folders mounted into a pod.",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
ActorOption = Annotated[
    str | None, typer.Option("--actor", metavar="NAME", help="Who does it, for the record. Left out: the system's user.")
]
ReasonOption = Annotated[str, typer.Option("--reason", metavar="TEXT", help="Why, for the record.")]
