"""Two kinds of once: a key for "at most one waiting", an idempotency key for "only ever one"."""

from taskharbor import Harbor, Update

harbor = Harbor("memory://")  # every run starts with an empty store


@harbor.task
def reindex(customer: int, reason: str) -> None:
    print(f"reindex {customer}: {reason}")


@harbor.task
def charge(order: int) -> None:
    print(f"charge {order}")


if __name__ == "__main__":
    one = reindex.using(key="customer/7").enqueue(7, "name changed")
    two = reindex.using(key="customer/7").enqueue(7, "street changed")  # replaces what waits
    kept = reindex.using(key="customer/7", update=Update(data=False)).enqueue(7, "ignored")
    print(one.id == two.id == kept.id)

    charged = charge.using(idempotency_key="order/1").enqueue(1)
    again = charge.using(idempotency_key="order/1").enqueue(1)  # a client that repeats its request
    print(charged.id == again.id)

    harbor.worker(concurrency=1).run(until_idle=True)

# Prints:
#   True
#   True
#   reindex 7: street changed
#   charge 1
