-- The settings of queues, and the rates that they set.

-- name: settings_all
-- Every queue that was configured.
select queue, settings from th_queue_settings order by queue

-- name: settings_put
-- The settings of a queue.
insert into th_queue_settings (queue, settings) values (:queue, :settings)
on conflict (queue) do update set settings = excluded.settings

-- name: settings_changed
-- Every handle reads the settings again.
update th_meta set rules = rules + 1

-- name: running
-- How many unexpired leases :queue has.
select coalesce(sum(held), 0) from th_claim where queue = :queue and expires_at > :now

-- name: running_anywhere
-- How many unexpired leases there are.
select coalesce(sum(held), 0) from th_claim where expires_at > :now

-- name: rate_entries
-- What was spent, by instant.
select at, count from th_rate_usage where name = :name order by at

-- name: rate_newest
-- When something was last spent.
select max(at) from th_rate_usage where name = :name

-- name: rate_sum_until
-- What was spent up to :until.
select coalesce(sum(count), 0) from th_rate_usage where name = :name and at <= :until

-- name: rate_forget_until
-- Forget what was spent up to :until.
delete from th_rate_usage where name = :name and at <= :until

-- name: rate_sum_after
-- What was spent after :now.
select coalesce(sum(count), 0) from th_rate_usage where name = :name and at > :now

-- name: rate_forget_after
-- Forget what was spent after :now.
delete from th_rate_usage where name = :name and at > :now

-- name: rate_spend
-- Spend.
insert into th_rate_usage (name, at, count) values (:name, :at, :count)
on conflict (name, at) do update set count = count + excluded.count

-- name: rate_total
-- What is spent of a rate in its window.
select spent from th_rate_total where name = :name

-- name: rate_add
-- Change that number.
insert into th_rate_total (name, spent, per) values (:name, :difference, :per)
on conflict (name) do update set spent = spent + excluded.spent, per = excluded.per

-- name: rate_forget
-- Forget a rate.
delete from th_rate_total where name = :name

-- name: rate_forget_entries
-- Forget what was spent of it.
delete from th_rate_usage where name = :name
