-- What providers tell us by themselves, and refunds.

-- What a provider told us, verified, stored before it is acted upon, and applied once. Events that name none of our attempts or
-- refunds lie on the shard that provider and event_id hash to.
CREATE TABLE IF NOT EXISTS webhook (
  shard_id        SMALLINT UNSIGNED NOT NULL,
  provider        VARCHAR(63)  CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  event_id        VARCHAR(128) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,  -- the provider's: the same each time it is delivered
  kind            VARCHAR(32)  CHARACTER SET ascii COLLATE ascii_bin NOT NULL,  -- in our words: payments.model.WebhookKind
  reference       VARCHAR(64)  CHARACTER SET ascii COLLATE ascii_bin NULL,      -- ours, of the attempt or the refund
  provider_ref    VARCHAR(128) CHARACTER SET ascii COLLATE ascii_bin NULL,
  amount          BIGINT       NULL,
  currency        CHAR(3)      CHARACTER SET ascii COLLATE ascii_bin NULL,
  code            VARCHAR(64)  CHARACTER SET ascii COLLATE ascii_bin NULL,
  body            MEDIUMBLOB   NULL,               -- as received, of reversals and failures: what a person may want to see
  status          TINYINT UNSIGNED  NOT NULL,      -- 0 to be applied, 1 done
  result          VARCHAR(32)  CHARACTER SET ascii COLLATE ascii_bin NULL,      -- what became of it
  tries           SMALLINT UNSIGNED NOT NULL DEFAULT 0,
  due_at          DATETIME(6)  NOT NULL,           -- when it is looked at; done, when it may be deleted
  received_at     DATETIME(6)  NOT NULL,
  applied_at      DATETIME(6)  NULL,
  PRIMARY KEY (shard_id, provider, event_id),
  KEY due (shard_id, status, due_at)
);

-- Money given back, by us or by the customer's bank. Rows are kept: their sum is what bounds the next one.
CREATE TABLE IF NOT EXISTS refund (
  shard_id        SMALLINT UNSIGNED NOT NULL,
  id              BIGINT UNSIGNED   NOT NULL,      -- random: our reference at the provider is <shard>/<invoice>/r<id>
  invoice_id      BIGINT UNSIGNED   NOT NULL,
  request_key     VARCHAR(160) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,  -- of whoever asked: the same key is the same refund
  subscription_id VARCHAR(64)  CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  service         VARCHAR(63)  CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  attempt_no      SMALLINT UNSIGNED NOT NULL,      -- the attempt that took the money
  provider        VARCHAR(63)  CHARACTER SET ascii COLLATE ascii_bin NOT NULL,  -- that attempt's
  charge_ref      VARCHAR(128) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,  -- the provider's name of its charge
  amount          BIGINT       NOT NULL,
  currency        CHAR(3)      CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  idempotency_key BINARY(32)   NOT NULL,           -- sent to the provider
  source          TINYINT UNSIGNED  NOT NULL,      -- 1 asked for by us, 2 taken by the bank (a partial reversal)
  status          TINYINT UNSIGNED  NOT NULL,      -- 0 requested, 1 pending, 2 succeeded, 3 failed, 4 unknown, 5 review
  provider_ref    VARCHAR(128) CHARACTER SET ascii COLLATE ascii_bin NULL,      -- the provider's name of the refund
  code            VARCHAR(64)  CHARACTER SET ascii COLLATE ascii_bin NULL,
  checks          TINYINT UNSIGNED  NOT NULL DEFAULT 0,
  lease_token     BIGINT UNSIGNED   NOT NULL DEFAULT 0,  -- of who is asking the provider now; 0: nobody
  due_at          DATETIME(6)  NULL,               -- when the provider is asked (next), or the lease ends; NULL: no more
  created_at      DATETIME(6)  NOT NULL,
  sent_at         DATETIME(6)  NULL,               -- first send that may have reached the provider: its key's life begins
  succeeded_at    DATETIME(6)  NULL,               -- when it was booked; stays where it failed later
  finished_at     DATETIME(6)  NULL,
  PRIMARY KEY (shard_id, id),
  UNIQUE KEY request (shard_id, invoice_id, request_key),
  KEY due (shard_id, due_at),
  CHECK (amount > 0), CHECK (status BETWEEN 0 AND 5), CHECK (source BETWEEN 1 AND 2)
);
