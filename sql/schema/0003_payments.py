"""Payments: what providers tell us by themselves, and refunds."""

from pathlib import Path

from alembic import op

from billing_shards.schema import run_file

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    run_file(op.get_bind(), Path(__file__).with_suffix(".sql"))
