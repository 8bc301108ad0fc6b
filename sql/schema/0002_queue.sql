-- Who works on a task of a shard (publishing its events), until when. A lease like a job's: its token fences a late worker out.
CREATE TABLE IF NOT EXISTS shard_task (
  shard_id SMALLINT UNSIGNED NOT NULL,
  task     VARCHAR(32) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  token    BIGINT UNSIGNED   NOT NULL,
  until    DATETIME(6)       NOT NULL,
  PRIMARY KEY (shard_id, task)
);

-- What a person did by hand, and why. Never changed or deleted: the application's user has no UPDATE or DELETE on it.
CREATE TABLE IF NOT EXISTS manual_act (
  shard_id        SMALLINT UNSIGNED NOT NULL,
  id              BIGINT UNSIGNED   NOT NULL,      -- random: after a lost answer to COMMIT its writer looks for it
  actor           VARCHAR(128) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
  act             VARCHAR(32)  CHARACTER SET ascii COLLATE ascii_bin NOT NULL,  -- e.g. job.retry, invoice.refund, subscription.cancel
  subscription_id VARCHAR(64)  CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  subject         VARCHAR(96)  CHARACTER SET ascii COLLATE ascii_bin NOT NULL,  -- e.g. job:17
  reason          VARCHAR(500) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
  before_act      JSON         NOT NULL,
  after_act       JSON         NOT NULL,
  created_at      DATETIME(6)  NOT NULL,
  PRIMARY KEY (shard_id, id),
  KEY subject (shard_id, subscription_id, created_at)
);
