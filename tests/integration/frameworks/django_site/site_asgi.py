import os

from django.core.asgi import get_asgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "site_settings")
_site = get_asgi_application()

from taskharbor.integrations.django import with_jobs  # noqa: E402 - after Django's setup

application = with_jobs(_site, prefix="/jobs")
