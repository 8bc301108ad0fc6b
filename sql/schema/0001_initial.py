"""The first schema. Its tables, each with its reason, are in the file of the same name."""

from pathlib import Path

from alembic import op

from billing_shards.schema import run_file

revision = "0001"
down_revision = None


def upgrade() -> None:
    run_file(op.get_bind(), Path(__file__).with_suffix(".sql"))
