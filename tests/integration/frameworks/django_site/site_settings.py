"""Settings for whichever Django is installed: django.tasks from Django 6 on, else the back-port."""

from __future__ import annotations

import os
from urllib.parse import parse_qs, unquote, urlsplit

import django

HAS_TASKS = django.VERSION >= (6, 0) and not os.environ.get("TEST_BACKPORT")
BACKEND = "taskharbor.integrations.django.TaskHarborBackend"
if not HAS_TASKS:
    BACKEND = "taskharbor.integrations.django.backport.TaskHarborBackend"


def _database(url: str) -> dict[str, object]:
    parts = urlsplit(url)
    if parts.scheme == "sqlite":
        path = unquote(parts.path)[1:]
        options = {"transaction_mode": "IMMEDIATE", "timeout": 10}
        name = {"NAME": f"{path}.test"}
        return {"ENGINE": "django.db.backends.sqlite3", "NAME": path, "OPTIONS": options, "TEST": name}
    return {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": unquote(parts.path)[1:],
        "USER": unquote(parts.username or ""),
        "PASSWORD": unquote(parts.password or ""),
        "HOST": parts.hostname or parse_qs(parts.query).get("host", [""])[0],
        "PORT": str(parts.port or parse_qs(parts.query).get("port", [""])[0]),
        "TEST": {"NAME": os.environ.get("TEST_DATABASE_NAME")},
    }


SECRET_KEY = "of the tests"
DEBUG = bool(os.environ.get("TEST_DEBUG"))
ALLOWED_HOSTS = ["*"]
USE_TZ = True
ROOT_URLCONF = "site_urls"
ASGI_APPLICATION = "site_asgi.application"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
DATABASES = {"default": _database(os.environ["TEST_DATABASE"])}
INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.messages",
    "django.contrib.sessions",
    *([] if HAS_TASKS else ["django_tasks"]),
    "taskharbor.integrations.django",
    "shop",
]
MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
SILENCED_SYSTEM_CHECKS = ["taskharbor.W003"]
TASKS = {
    "default": {"BACKEND": BACKEND, "QUEUES": ["default", "mail"], "OPTIONS": {"database": "default"}},
    "memory": {"BACKEND": BACKEND, "OPTIONS": {"url": "memory://", "on_commit": True}},
}
LOGGING = {"version": 1, "disable_existing_loggers": False}
