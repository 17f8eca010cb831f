"""Arguments are checked when a job is put in, and arrive as what the annotations say."""

from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from enum import Enum

from taskharbor import Harbor
from taskharbor.errors import PayloadError

harbor = Harbor("sqlite:///typed.db")


class Plan(Enum):
    FREE = "free"
    PAID = "paid"


@dataclass
class Customer:
    name: str
    plan: Plan


@harbor.task
def bill(customer: Customer, amount: Decimal, due: date) -> Decimal:
    print(f"{customer.name} ({customer.plan.name}) owes {amount} by {due:%d %B}")
    return amount * 2


if __name__ == "__main__":
    job = bill.enqueue(Customer("Ada", Plan.PAID), Decimal("19.90"), due=date(2030, 5, 1))
    try:
        bill.enqueue("Ada", Decimal(1), due=date(2030, 5, 1))  # type: ignore[arg-type]  # mypy says so, too
    except PayloadError as error:
        print(str(error).partition(" - ")[0])
    harbor.worker().run(until_idle=True)
    print(repr(job.result()))

# Prints:
#   bill: argument 'customer' does not fit Customer: Expected `object`, got `str`
#   Ada (PAID) owes 19.90 by 01 May
#   Decimal('39.80')
