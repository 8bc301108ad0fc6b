-- One line of JSON with the end state: one statement, so all of it is of one moment.
SELECT JSON_OBJECT(
  'currencies', (
    SELECT JSON_ARRAYAGG(JSON_OBJECT(
      'currency', s.currency, 'subscriptions', s.subscriptions, 'invoices', COALESCE(i.invoices, 0),
      'amount', CAST(COALESCE(i.amount, 0) AS SIGNED), 'paid', CAST(COALESCE(i.paid, 0) AS SIGNED),
      'paid_amount', CAST(COALESCE(i.paid_amount, 0) AS SIGNED), 'retry', CAST(COALESCE(i.retry, 0) AS SIGNED),
      'customer', CAST(COALESCE(i.customer, 0) AS SIGNED), 'gave_up', CAST(COALESCE(i.gave_up, 0) AS SIGNED),
      'charged', COALESCE(a.charged, 0), 'charged_amount', CAST(COALESCE(a.charged_amount, 0) AS SIGNED)))
    FROM (SELECT currency, COUNT(*) AS subscriptions FROM subscription GROUP BY currency) AS s
    LEFT JOIN (
      SELECT v.currency, COUNT(*) AS invoices, SUM(v.amount) AS amount, SUM(v.status = 2) AS paid,
             SUM(IF(v.status = 2, v.amount, 0)) AS paid_amount,
             SUM(j.status IN (0, 1) AND j.attempt_no > 0 AND NOT (j.attempt_no = 1 AND j.attempt_open = 1)) AS retry,
             SUM(j.status = 4) AS customer, SUM(j.status = 3) AS gave_up
      FROM invoice AS v JOIN billing_job AS j ON j.shard_id = v.shard_id AND j.invoice_id = v.id
      GROUP BY v.currency) AS i ON i.currency = s.currency
    LEFT JOIN (
      SELECT currency, COUNT(*) AS charged, SUM(amount) AS charged_amount
      FROM payment_attempt WHERE outcome = 1 GROUP BY currency) AS a ON a.currency = s.currency),
  'attempts', COUNT(*),
  'open_attempts', CAST(COALESCE(SUM(outcome IN (0, 5)), 0) AS SIGNED),
  'first_attempt_at', CAST(UNIX_TIMESTAMP(MIN(created_at)) AS DOUBLE),
  'last_outcome_at', CAST(UNIX_TIMESTAMP(MAX(finished_at)) AS DOUBLE)
)
FROM payment_attempt
WHERE attempt_no = 1 -- the others are retries
