"""The harbor, and the one task of this service."""

import os

from taskharbor import Harbor, JobContext

harbor = Harbor("env:DATABASE_URL")

PRINTING_SECONDS = float(os.environ.get("PRINTING_SECONDS", "0.1"))
"""How long the printer takes; longer in tests, which kill the worker meanwhile."""


@harbor.task(queue="invoices", max_attempts=5, timeout="1m")
async def write_invoice(ctx: JobContext, order_id: int) -> None:
    """Write the invoice of an order. The invoice and the end of this job are one commit."""
    await ctx.clock.sleep(PRINTING_SECONDS)
    async with ctx.transaction() as connection:
        await connection.execute(
            "insert into invoices (order_id, total) select id, amount * 1.2 from orders where id = $1",
            order_id,
        )
