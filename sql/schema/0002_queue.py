"""The queue: manual acts and who works on a shard's tasks."""

from pathlib import Path

from alembic import op

from billing_shards.schema import run_file

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    run_file(op.get_bind(), Path(__file__).with_suffix(".sql"))
