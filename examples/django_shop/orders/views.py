from django.db import transaction
from django.http import JsonResponse
from django.shortcuts import get_object_or_404
from django.views.decorators.http import require_POST

from orders.models import Order
from orders.tasks import send_receipt


@require_POST
def create(request):
    with transaction.atomic():
        order = Order.objects.create(name=request.POST["name"])
        result = send_receipt.enqueue(order.pk)  # exists if and only if the order does
        order.task = result.id
        order.save()
    return JsonResponse({"order": order.pk, "task": order.task}, status=201)


def show(request, order_id):
    order = get_object_or_404(Order, pk=order_id)
    result = send_receipt.get_result(order.task)
    return JsonResponse({"receipt": order.receipt, "status": result.status, "attempts": result.attempts})
