import time

from orders.models import Order
from taskharbor.integrations.django import job_options

try:
    from django.tasks import task
except ImportError:  # before Django 6
    from django_tasks import task


@task
@job_options(max_attempts=5, timeout="30s", max_stalls=5)
def send_receipt(order_id):
    order = Order.objects.get(pk=order_id)
    time.sleep(1)  # noqa: TID251 - where the mail would be sent
    order.receipt = f"Thank you, {order.name}!"
    order.save()
    return order.receipt
