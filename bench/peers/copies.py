"""The rest of a deep backlog for peers that would take 8 minutes to an hour to enqueue it themselves.

The first jobs are enqueued as always; SQL then copies their rows, behind them in line. SAQ and DBOS, whose
copies have the arguments of the first, never reach them within the time of a drain. `$first` is how many were
enqueued, `$times` how often each is copied.
"""

from __future__ import annotations

COPIES: dict[str, tuple[int, str]] = {
    "peer_chancy": (
        10_000,
        """
        insert into chancy_jobs (
            id, queue, func, kwargs, limits, meta, state, priority, attempts, max_attempts, scheduled_at)
        select gen_random_uuid(), queue, func,
               jsonb_set(kwargs, '{seq}', to_jsonb((kwargs ->> 'seq')::bigint + n * $first)),
               limits, meta, state, priority, attempts, max_attempts, now()
        from chancy_jobs cross join generate_series(1, $times) n
        """,
    ),
    "peer_oban": (
        10_000,
        """
        insert into oban_jobs (
            state, queue, worker, attempt, max_attempts, priority, args, meta, tags, errors)
        select state, queue, worker, attempt, max_attempts, priority,
               jsonb_set(args, '{seq}', to_jsonb((args ->> 'seq')::bigint + n * $first)), meta, tags, errors
        from oban_jobs cross join generate_series(1, $times) n
        """,
    ),
    "peer_saq_pg": (
        15_000,
        """
        insert into saq_jobs (key, job, queue, status, priority, scheduled)
        select k.key, convert_to(
                   jsonb_set(convert_from(job, 'utf8')::jsonb, '{key}', to_jsonb(k.key))::text, 'utf8'),
               queue, status, priority, extract(epoch from now())
        from saq_jobs s cross join generate_series(1, $times) n
        cross join lateral (select s.key || '-' || n) as k(key)
        """,
    ),
    "peer_dbos": (
        10_000,
        """
        insert into dbos.workflow_status
        select r.* from dbos.workflow_status w cross join generate_series(1, $times) n
        cross join lateral jsonb_populate_record(w, jsonb_build_object(
            'workflow_uuid', w.workflow_uuid || '-' || n,
            'created_at', (extract(epoch from now()) * 1000)::bigint)) r;
        insert into dbos.workflow_input
        select r.* from dbos.workflow_input w cross join generate_series(1, $times) n
        cross join lateral jsonb_populate_record(
            w, jsonb_build_object('workflow_uuid', w.workflow_uuid || '-' || n)) r
        """,
    ),
}
