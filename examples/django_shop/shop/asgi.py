import os

from django.core.asgi import get_asgi_application

from taskharbor.integrations.django import with_jobs

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "shop.settings")
application = with_jobs(get_asgi_application(), prefix="/jobs")
