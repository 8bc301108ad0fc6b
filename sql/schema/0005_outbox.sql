-- Publishing events. See docs/events.md.

-- A subscription whose next event the broker will not take: its later events wait (outbox.held), all others go on.
CREATE TABLE IF NOT EXISTS outbox_blocked (
  shard_id        SMALLINT UNSIGNED NOT NULL,
  subscription_id VARCHAR(64)  CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  event_id        BIGINT UNSIGNED   NOT NULL,      -- the event that is not taken
  problem         VARCHAR(16)  CHARACTER SET ascii COLLATE ascii_bin NOT NULL,  -- schema, too_large, unroutable
  details         VARCHAR(500) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
  failures        INT UNSIGNED NOT NULL,           -- times it was tried
  since           DATETIME(6)  NOT NULL,
  next_try_at     DATETIME(6)  NOT NULL,
  PRIMARY KEY (shard_id, subscription_id),
  KEY due (shard_id, next_try_at)
);

-- What was deleted after its time, so that the audit can still prove that no event was lost: below `line` every number that
-- is missing was purged, and `purged` of them were; from `line` on none may be missing.
CREATE TABLE IF NOT EXISTS outbox_purged (
  shard_id SMALLINT UNSIGNED NOT NULL PRIMARY KEY,
  purged   BIGINT UNSIGNED   NOT NULL,
  line     BIGINT UNSIGNED   NOT NULL
);
