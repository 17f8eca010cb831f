# mypy: ignore-errors
from django.db import models


class Order(models.Model):
    name = models.CharField(max_length=50)

    class Meta:
        app_label = "shop"

    def __str__(self) -> str:
        return self.name
