-- name: lock
-- Named locks are the server's, not the schema's: the schema's name is part of it.
SELECT GET_LOCK(CONCAT('billing-shards:', LEFT(DATABASE(), 40)), %(seconds)s)

-- name: unlock
SELECT RELEASE_LOCK(CONCAT('billing-shards:', LEFT(DATABASE(), 40)))

-- name: tables_of_others
-- Alembic's table is written before any of ours: tables without it were here before us.
SELECT table_name
FROM information_schema.tables
WHERE table_schema = DATABASE()
  AND 'alembic_version' NOT IN (SELECT table_name FROM information_schema.tables WHERE table_schema = DATABASE())
ORDER BY table_name
LIMIT 5

-- name: create_user
CREATE USER IF NOT EXISTS %(user)s@'%%' IDENTIFIED BY %(password)s

-- name: set_password
ALTER USER %(user)s@'%%' IDENTIFIED BY %(password)s

-- name: table_rights
-- The ledger, manual acts and the record of whose database this is are never changed by the application.
SELECT table_name,
       CASE WHEN table_name IN ('alembic_version') THEN 'SELECT'
            WHEN table_name IN ('ledger_entry', 'installation', 'manual_act') THEN 'SELECT, INSERT'
            ELSE 'SELECT, INSERT, UPDATE, DELETE' END
FROM information_schema.tables
WHERE table_schema = DATABASE() AND table_type = 'BASE TABLE'
ORDER BY table_name

-- name: grant
-- {rights} and {table} are filled from table_rights alone.
GRANT {rights} ON {table} TO %(user)s@'%%'
