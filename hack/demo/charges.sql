-- The attempts that succeeded, by the reference that the provider was given.
SELECT CONCAT(a.shard_id, '/', j.invoice_id, '/', a.attempt_no), a.amount, a.currency
FROM payment_attempt AS a JOIN billing_job AS j ON j.shard_id = a.shard_id AND j.id = a.job_id
WHERE a.outcome = 1
