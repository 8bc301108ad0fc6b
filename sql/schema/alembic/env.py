"""Alembic's entry: run the revisions on the connection that `billing_shards.schema` opened and locked."""

from alembic import context

context.configure(connection=context.config.attributes["connection"], transaction_per_migration=True)
with context.begin_transaction():
    context.run_migrations()
