from django.db import models


class Order(models.Model):
    name = models.CharField(max_length=100)
    receipt = models.TextField(blank=True)
    task = models.CharField(max_length=64, blank=True)

    def __str__(self) -> str:
        return self.name
