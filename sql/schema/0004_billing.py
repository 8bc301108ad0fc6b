"""Billing: dunning and changes of subscriptions."""

from pathlib import Path

from alembic import op
from sqlalchemy import inspect

from billing_shards.schema import run_file

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    """The file's last statement is the one that cannot run twice: where its columns are there, nothing is left to do."""
    connection = op.get_bind()
    if "next_dunning_at" not in {column["name"] for column in inspect(connection).get_columns("subscription")}:
        run_file(connection, Path(__file__).with_suffix(".sql"))
