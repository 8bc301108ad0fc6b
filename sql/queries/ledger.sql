-- Rows come as one JSON array: the statement's text never changes, and 500 rows are one parameter.

-- name: insert_entries
INSERT INTO ledger_entry
  (shard_id, id, debit_account, credit_account, amount, currency, kind, invoice_id, idempotency_key, created_at)
SELECT %(shard)s, r.id, r.debit, r.credit, r.amount, r.currency, r.kind, r.invoice_id, UNHEX(r.idempotency_key), NOW(6)
FROM JSON_TABLE(%(rows)s, '$[*]' COLUMNS (
  id              BIGINT UNSIGNED PATH '$[0]',
  debit           VARCHAR(96)     PATH '$[1]',
  credit          VARCHAR(96)     PATH '$[2]',
  amount          BIGINT          PATH '$[3]',
  currency        CHAR(3)         PATH '$[4]',
  kind            TINYINT         PATH '$[5]',
  invoice_id      BIGINT UNSIGNED PATH '$[6]',
  idempotency_key CHAR(64)        PATH '$[7]')) AS r
