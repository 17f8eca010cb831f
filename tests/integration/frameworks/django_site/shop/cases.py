# mypy: ignore-errors
"""The trial cases of a back end, for `manage.py test shop.cases`."""

from __future__ import annotations

from contextlib import redirect_stdout
from datetime import timedelta
from io import StringIO
from types import SimpleNamespace
from unittest.mock import patch

import pytest
from django.conf import settings
from django.contrib.auth.models import User
from django.core.exceptions import ImproperlyConfigured
from django.core.management import CommandError, call_command
from django.db import connection, connections, transaction
from django.test import SimpleTestCase, TestCase, TransactionTestCase
from django.utils import timezone

from shop import tasks
from shop.models import Order
from taskharbor.errors import ConfigurationError, SchemaOutOfDate
from taskharbor.integrations.django import job_options
from taskharbor.integrations.django.backend import our_backends
from taskharbor.integrations.django.checks import check_migrations
from taskharbor.integrations.django.running import handler_of
from taskharbor.integrations.django.store import database_url

if settings.HAS_TASKS:
    from django.tasks import TaskResultStatus, task_backends
    from django.tasks.exceptions import InvalidTask, TaskResultDoesNotExist, TaskResultMismatch
    from django.tasks.signals import task_enqueued, task_finished, task_started
else:
    from django_tasks import TaskResultStatus, task_backends
    from django_tasks.exceptions import InvalidTaskError as InvalidTask
    from django_tasks.exceptions import TaskResultDoesNotExist, TaskResultMismatch
    from django_tasks.signals import task_enqueued, task_finished, task_started

backend = task_backends["default"]


def work():
    backend.harbor.worker(lease="5s", report_every="60s", logbook=False).run(until_idle=True)


class InTransaction(TestCase):
    def test_what_it_supports(self):
        flags = ("defer", "async_task", "get_result", "priority")
        assert all(getattr(backend, f"supports_{flag}") for flag in flags)
        assert type(backend).__name__ == "TaskHarborBackend"

    def test_an_enqueue_is_one_query_and_readable_in_its_own_transaction(self):
        queries = 1 if connection.vendor == "postgresql" else 0  # sqlite3 itself, below Django
        with self.assertNumQueries(queries):
            result = tasks.add.enqueue(1, b=2)
        assert result.status == TaskResultStatus.READY
        assert (result.args, result.kwargs) == ([1], {"b": 2})
        assert (result.attempts, result.errors, result.is_finished) == (0, [], False)
        with self.assertNumQueries(queries):
            assert tasks.add.get_result(result.id) == result

    async def test_async_calls_use_the_same_transaction(self):
        result = await tasks.wait_a_moment.aenqueue("a")
        assert (await tasks.wait_a_moment.aget_result(result.id)).id == result.id

    def test_a_result_of_another_task_and_one_that_is_not_there(self):
        result = tasks.add.enqueue(1, 2)
        with pytest.raises(TaskResultMismatch):
            tasks.fail.get_result(result.id)
        for missing in ("no id", "", "01a1de6c-0000-738c-9f3a-6aa1afc95af6"):
            with pytest.raises(TaskResultDoesNotExist):
                backend.get_result(missing)

    def test_arguments_that_are_no_json_store_nothing(self):
        with pytest.raises((TypeError, ValueError)):
            tasks.add.enqueue(object(), 2)
        with pytest.raises(InvalidTask):
            tasks.add.using(queue_name="unknown")
        assert counts() == 0

    def test_the_signal_is_sent_after_the_store_answered(self):
        seen = []

        def receive(sender, task_result, **_):
            seen.append((sender, tasks.add.get_result(task_result.id).id))

        task_enqueued.connect(receive)
        try:
            result = tasks.add.enqueue(1, 2)
        finally:
            task_enqueued.disconnect(receive)
        assert seen == [(type(backend), result.id)]

    def test_a_key_keeps_one_waiting_job(self):
        first, second = tasks.keyed.enqueue(7), tasks.keyed.enqueue(7)
        assert first.id == second.id
        assert first.id != tasks.keyed.enqueue(8).id


class Committed(TransactionTestCase):
    def test_a_task_runs(self):
        order = Order.objects.create(name="a")
        result = tasks.rename.enqueue(order.pk, "b")
        work()
        result.refresh()
        order.refresh_from_db()
        assert order.name == "b"
        assert result.status == TaskResultStatus.SUCCESSFUL
        assert result.return_value == {"renamed": order.pk, "as": ["b"]}
        assert (result.attempts, result.task.priority, result.task.queue_name) == (1, 5, "mail")
        assert result.enqueued_at <= result.started_at <= result.finished_at

    def test_an_async_task_runs(self):
        result = tasks.wait_a_moment.enqueue("a")
        work()
        result.refresh()
        assert result.return_value == "A"

    def test_a_failure_has_its_class_and_its_traceback(self):
        seen = []

        def receive(sender, task_result, **_):
            seen.append((sender, task_result.status))

        for signal in (task_started, task_finished):
            signal.connect(receive)
        result = tasks.fail.enqueue("there")
        with self.assertLogs(level="ERROR"):
            work()
        for signal in (task_started, task_finished):
            signal.disconnect(receive)
        result.refresh()
        assert result.status == TaskResultStatus.FAILED
        assert result.errors[0].exception_class is ValueError
        assert "route to there" in result.errors[0].traceback
        assert result.attempts == 1
        kind = type(backend)
        assert seen == [(kind, TaskResultStatus.RUNNING), (kind, TaskResultStatus.FAILED)]

    def test_a_return_value_that_is_no_json_is_a_failure(self):
        result = tasks.return_an_object.enqueue()
        with self.assertLogs(level="ERROR"):
            work()
        result.refresh()
        assert result.errors[0].exception_class is TypeError

    def test_the_context_has_the_attempt_and_the_result(self):
        result = tasks.attempts.enqueue(1)
        work()
        result.refresh()
        assert result.return_value == [1, result.id]

    def test_job_options_bring_retries(self):
        order = Order.objects.create(name="a")
        result = tasks.flaky.enqueue(order.pk)
        for _ in range(3):
            work()
        result.refresh()
        assert (result.return_value, result.attempts) == ("a!!", 2)
        assert [error.exception_class for error in result.errors] == [ConnectionError]

    def test_a_roll_back_takes_the_task_with_it(self):
        with transaction.atomic():
            gone = tasks.add.enqueue(1, 2)
            transaction.set_rollback(True)
        with pytest.raises(TaskResultDoesNotExist):
            backend.get_result(gone.id)

    def test_a_savepoint_takes_its_tasks_with_it(self):
        with transaction.atomic():
            kept = tasks.add.enqueue(1, 2)
            with transaction.atomic():
                gone = tasks.add.enqueue(1, 2)
                transaction.set_rollback(True)
        assert backend.get_result(kept.id).status == TaskResultStatus.READY
        with pytest.raises(TaskResultDoesNotExist):
            backend.get_result(gone.id)

    def test_a_deferred_task_waits_and_equals_its_result(self):
        later = timezone.now() + timedelta(hours=1)
        result = tasks.add.using(run_after=later).enqueue(1, 2)
        work()
        again = tasks.add.get_result(result.id)
        assert again == result
        assert (again.status, again.task.run_after) == (TaskResultStatus.READY, later)

    def test_the_higher_priority_runs_first(self):
        first = tasks.add.using(priority=-10).enqueue(1, 1)
        second = tasks.add.using(priority=10).enqueue(2, 2)
        backend.harbor.worker(concurrency=1, lease="5s", logbook=False).run(until_idle=True)
        first.refresh()
        second.refresh()
        assert second.started_at <= first.started_at

    def test_on_another_store_the_commit_is_awaited(self):
        store = task_backends["memory"]
        with transaction.atomic():
            result = tasks.elsewhere.enqueue()
            with pytest.raises(TaskResultDoesNotExist):
                store.get_result(result.id)
        assert store.get_result(result.id).status == TaskResultStatus.READY


class Names(SimpleTestCase):
    def test_only_tasks_are_run(self):
        with self.assertRaisesMessage(Exception, "does not point to a Task"):
            handler_of(backend, "shop.tasks.os_path").function(None, None)
        assert handler_of(backend, "shop.tasks.gone") is None
        assert handler_of(backend, "gone.tasks.gone") is None

    def test_our_back_ends_are_found(self):
        assert [one.alias for one in our_backends()] == ["default", "memory"]


class NothingIsLeft(TestCase):
    """Runs after the classes above: Django runs TestCase before TransactionTestCase."""

    def test_other_tests_left_nothing(self):
        assert counts() == 0


def counts():
    table = "taskharbor.jobs" if connection.vendor == "postgresql" else "th_jobs"
    with connection.cursor() as cursor:
        cursor.execute(f"select count(*) from {table}")
        return cursor.fetchone()[0]


class Checks(SimpleTestCase):
    databases = ("default",)

    def found(self, database=None, **params):
        made = type(backend)("other", {"OPTIONS": {"database": "default"}, **params})
        if database is None:
            return {one.id for one in made.check()}
        with patch.dict(connections["default"].settings_dict, database):
            return {one.id for one in made.check()}

    def test_the_settings_of_a_back_end(self):
        assert self.found() <= {"taskharbor.W003"}
        assert "taskharbor.E002" in self.found(OPTIONS={"database": "gone"})
        assert "taskharbor.E004" in self.found(QUEUES=["no spaces"])
        assert self.found(OPTIONS={"url": "redis://localhost"}) == set()
        with self.modify_settings(INSTALLED_APPS={"remove": "taskharbor.integrations.django"}):
            assert "taskharbor.E001" in self.found()
        with patch.object(type(connections["default"]), "vendor", "mysql"):
            assert "taskharbor.E003" in self.found()

    def test_the_settings_of_sqlite(self):
        if connection.vendor != "sqlite":
            self.skipTest("about SQLite")
        assert "taskharbor.W001" in self.found({"OPTIONS": {}})
        assert "taskharbor.W002" in self.found({"TEST": {"NAME": None}})

    def test_options_that_cannot_work(self):
        for options in ({"colour": 1}, {"url": "memory://", "database": "default"}, {"on_commit": True}):
            with pytest.raises(ImproperlyConfigured):
                type(backend)("other", {"OPTIONS": options})

    def test_options_of_jobs_that_cannot_work(self):
        for options in ({"colour": 1}, {"max_attempts": 0}, {"timeout": "soon"}):
            with pytest.raises(ValueError, match=r"colour|max_attempts|timeout"):
                job_options(**options)
        with pytest.raises(ValueError, match="under @task"):
            job_options(max_attempts=2)(tasks.add)


class Unmigrated(TransactionTestCase):
    def test_what_is_missing_is_named_and_migrate_brings_it(self):
        with connection.cursor() as cursor:
            if connection.vendor == "postgresql":
                cursor.execute("drop function taskharbor.retention cascade")
                cursor.execute("delete from taskharbor.function_text where name = 'retention'")
            else:
                cursor.execute("delete from th_migration where name like '0002%'")
                cursor.execute("drop table th_log")
        [warning] = check_migrations(databases=["default"])
        assert warning.id == "taskharbor.W004"
        call_command("migrate", verbosity=0)
        assert check_migrations(databases=["default"]) == []

    def test_an_enqueue_names_the_command(self):
        other = type(backend)("other", {"OPTIONS": {"namespace": "unmigrated"}})
        with pytest.raises(SchemaOutOfDate, match=r"manage\.py migrate"):
            other.enqueue(tasks.add, (1, 2), {})
        with pytest.raises(SchemaOutOfDate, match=r"manage\.py migrate"):
            other.get_result("01a1de6c-0000-738c-9f3a-6aa1afc95af6")


class Commands(TransactionTestCase):
    def test_the_command_line_uses_the_store_of_the_back_end(self):
        call_command("makemigrations", "--check", "--dry-run", verbosity=0)
        call_command("check", databases=["default"], verbosity=0, stdout=StringIO(), stderr=StringIO())
        result = tasks.add.enqueue(1, 2)
        with redirect_stdout(StringIO()) as shown:
            call_command("taskharbor", "jobs", "show", result.id)
        assert f"{result.id}  shop.tasks.add  ready" in shown.getvalue()
        with pytest.raises(CommandError, match="there is default, memory"):
            call_command("taskharbor", "queues", "list", backend="gone")


class Admin(TransactionTestCase):
    def test_the_page_shows_queues_and_failures_and_retries(self):
        result = tasks.fail.enqueue("there")
        with self.assertLogs(level="ERROR"):
            work()
        page = "/admin/taskharbor/job/"
        assert self.client.get(page).status_code == 302
        self.client.force_login(User.objects.create_user("user", is_staff=True))
        assert self.client.get(page).status_code == 403
        self.client.force_login(User.objects.create_superuser("admin"))
        shown = self.client.get(page)
        self.assertContains(shown, "shop.tasks.fail")
        self.assertContains(shown, "<td>default</td>")
        answer = self.client.post(page, {"id": result.id, "retry": "1"}, follow=True)
        self.assertContains(answer, f"Retry: {result.id}")
        result.refresh()
        assert result.status == TaskResultStatus.READY
        answer = self.client.post(page, {"id": result.id, "cancel": "1"}, follow=True)
        result.refresh()
        assert result.status == TaskResultStatus.FAILED
        self.assertContains(self.client.post(page, {"id": "no id", "retry": "1"}, follow=True), "no id")


class Settings(SimpleTestCase):
    def test_the_address_follows_the_settings_of_the_database(self):
        params = {"dbname": "a b", "user": "me@x", "password": "s/1", "host": "::1", "port": "5433"}
        made = SimpleNamespace(vendor="postgresql", get_connection_params=lambda: params)
        url = "postgresql://me%40x:s%2F1@[::1]:5433/a%20b"
        assert database_url(made) == url
        params |= {"sslmode": "require", "context": object()}
        assert database_url(made, "shop") == f"{url}?sslmode=require&namespace=shop"
        params.update(host="/run/pg", port="", user="", password="", sslmode="")
        assert database_url(made) == "postgresql:///a%20b?host=%2Frun%2Fpg"

    def test_a_database_that_cannot_keep_jobs_is_refused(self):
        made = SimpleNamespace(vendor="sqlite", get_connection_params=lambda: {"database": ":memory:"})
        with pytest.raises(ConfigurationError, match=r"TEST\.NAME"):
            database_url(made)
        with pytest.raises(ConfigurationError, match="url"):
            database_url(SimpleNamespace(vendor="mysql"))
