"""Billing: dunning and changes of subscriptions."""

from pathlib import Path

from alembic import op

from billing_shards.schema import run_file

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    run_file(op.get_bind(), Path(__file__).with_suffix(".sql"))
