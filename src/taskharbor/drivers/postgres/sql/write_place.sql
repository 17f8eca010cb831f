-- write_place: where a job stands after a step.
update {schema}.place set
    version = $2, lane = $3, rank = $4, state = $5, ties = $6, eligible_at = $7, run_at = $8, updated_at = $9,
    attempts = $10, stalls = $11, starts = $12, fence = $13, cancel_requested = $14, token = $15, claimed_by = $16,
    lease_expires_at = $17, started_at = $18, finished_at = $19, flags = $20, last_error = $21, failed_at = $22,
    failure_kind = $23, result = $24, progress = $25::text::json, history = $26::text::json
where id = $1::text::uuid
