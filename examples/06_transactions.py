"""A job inside your own transaction: it exists if and only if the transaction commits."""

import sqlite3

from taskharbor import Harbor

harbor = Harbor("sqlite:///shop.db")


@harbor.task
def confirm(order: str) -> None:
    print(f"confirmed {order}")


def place(order: str, *, paid: bool) -> None:
    connection = sqlite3.connect("shop.db", isolation_level=None)
    connection.execute("create table if not exists orders (name text)")
    connection.execute("begin immediate")
    try:
        connection.execute("insert into orders values (?)", (order,))
        confirm.using(tx=connection).enqueue(order)
        if not paid:
            raise ValueError(f"{order} was not paid")
        connection.execute("commit")
    except ValueError as error:
        connection.execute("rollback")
        print(error)
    finally:
        connection.close()


if __name__ == "__main__":
    harbor.open()
    place("a book", paid=True)
    place("a boat", paid=False)
    harbor.worker().run(until_idle=True)

# Prints:
#   a boat was not paid
#   confirmed a book
