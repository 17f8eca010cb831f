"""The web application: orders, their invoices, and the jobs at /jobs/."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from decimal import Decimal
from typing import Annotated, Any

import asyncpg
from fastapi import Depends, FastAPI, HTTPException, Request, Response
from pydantic import BaseModel, Field
from tasks import harbor, write_invoice
from users import COOKIE, User, logged_in, may_see_jobs, user_of

from taskharbor.integrations.asgi import lifespan
from taskharbor.web import create_app

TABLES = """
create table if not exists orders (
    id bigint generated always as identity primary key, customer text not null, amount numeric not null
);
create table if not exists invoices (order_id bigint primary key references orders, total numeric not null);
"""


@asynccontextmanager
async def database(_: FastAPI) -> AsyncIterator[dict[str, Any]]:
    async with asyncpg.create_pool(os.environ["DATABASE_URL"], min_size=1, max_size=5) as pool:
        await pool.execute(TABLES)
        yield {"pool": pool}


jobs = create_app(harbor, authenticate=may_see_jobs)
app = FastAPI(lifespan=lifespan(harbor, server=jobs, inner=database))
app.mount("/jobs", jobs)


class Login(BaseModel):
    name: str
    password: str


class NewOrder(BaseModel):
    amount: Decimal = Field(gt=0)


class Order(BaseModel):
    id: int
    amount: Decimal
    invoiced: Decimal | None


def customer(request: Request) -> User:
    user = user_of(request)
    if user is None:
        raise HTTPException(401, "log in first: POST /login")
    return user


Customer = Annotated[User, Depends(customer)]


@app.post("/login", status_code=204)
async def login(sent: Login, response: Response) -> None:
    cookie = logged_in(sent.name, sent.password)
    if cookie is None:
        raise HTTPException(401, "no such user, or another password")
    response.set_cookie(COOKIE, cookie, httponly=True, samesite="strict")


@app.post("/orders", status_code=201)
async def place(sent: NewOrder, user: Customer, request: Request) -> dict[str, Any]:
    """Store the order and the job for its invoice: both, or neither."""
    async with request.state.pool.acquire() as connection, connection.transaction():
        order = await connection.fetchval(
            "insert into orders (customer, amount) values ($1, $2) returning id", user.name, sent.amount
        )
        job = await write_invoice.using(tx=connection).aenqueue(order)
    return {"order": order, "job": job.id}


@app.get("/orders/{order}")
async def show(order: int, user: Customer, request: Request) -> Order:
    row = await request.state.pool.fetchrow(
        "select id, amount, total as invoiced from orders left join invoices on order_id = id"
        " where id = $1 and customer = $2",
        order,
        user.name,
    )
    if row is None:
        raise HTTPException(404, "you have no such order")
    return Order(**row)
