"""taskharbor workflows: jobs that belong together, as a tree and as a graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from operator import itemgetter
from typing import Annotated, Any, Literal

import msgspec
import typer

from taskharbor.cli.commands import jobs
from taskharbor.cli.exit_codes import DONE, UsageError
from taskharbor.cli.ids import job_of
from taskharbor.cli.parameters import parse_duration
from taskharbor.cli.session import Session, with_store, with_store_to_look
from taskharbor.cli.tables import Column
from taskharbor.cli.wait import wait_for
from taskharbor.client.client import Client
from taskharbor.client.family import failed_below, retry_family, send_event
from taskharbor.client.family_graph import FamilyGraph, family_graph, is_workflow
from taskharbor.drivers.messages import MAX_PAGE, Query
from taskharbor.model.family_steps import bonds_of, family_of
from taskharbor.model.job import JobRecord
from taskharbor.model.workflow import WAIT_TYPE, node_name

app = typer.Typer(no_args_is_help=True)

_COLUMNS = [
    Column("ID", itemgetter("id"), is_id=True),
    Column("TASK", itemgetter("type")),
    Column("STATE", itemgetter("state")),
    Column("DONE", itemgetter("done")),
    Column("FAILED", itemgetter("failed"), is_number=True),
]
MOST_LOOKED_AT = 20_000


@app.command("list")
@with_store_to_look
async def list_workflows(session: Session, limit: jobs.LimitFlag = 50) -> None:
    """List workflows, newest first: jobs that have children and no parent."""
    session.out.items([_row(job) for job in await _roots(session, limit)], _COLUMNS)


@app.command()
@with_store_to_look
async def show(session: Session, job_id: jobs.JobId) -> None:
    """Show a workflow as a tree, with the state of every job."""
    job = await job_of(session.driver, job_id)
    tree = _tree(job, await _graph(session, job))
    session.out.document(tree, list(_tree_lines(tree)))


@app.command()
@with_store_to_look
async def graph(
    session: Session,
    job_id: jobs.JobId,
    form: Annotated[
        Literal["text", "dot", "json"], typer.Option("--format", "-f", help="text, dot (Graphviz) or json.")
    ] = "text",
) -> None:
    """Print the nodes of a workflow and what each of them comes after."""
    job = await job_of(session.driver, job_id)
    found = _graph_data(job, await _graph(session, job))
    if form == "json":
        session.out.line(msgspec.json.encode(found).decode())
    else:
        session.out.document(found, _dot(found) if form == "dot" else _edge_lines(found))


@app.command()
@with_store_to_look
async def wait(
    session: Session,
    job_id: jobs.JobId,
    timeout: Annotated[
        timedelta | None,
        typer.Option(
            "--timeout",
            parser=parse_duration,
            metavar="DURATION",
            help="Give up after this time, with exit code 124.",
        ),
    ] = None,
) -> int:
    """Wait for a workflow to end; exit code 7 if it failed or was cancelled."""
    return await wait_for(session, [job_id], timeout)


@app.command()
@with_store
async def cancel(session: Session, job_id: jobs.JobId) -> int:
    """Cancel a workflow with all its jobs. A second cancel also takes what runs in any case."""
    job = await job_of(session.driver, job_id)
    [answer] = await session.driver.cancel([job.id])
    session.out.document({"id": job.id, "result": answer.result.value}, [f"{job.id}: {answer.result.value}"])
    return DONE


@app.command()
@with_store
async def retry(session: Session, job_id: jobs.JobId, dry_run: jobs.DryRun = False) -> int:
    """Run again what failed, was skipped or was stopped in a workflow. What completed stays."""
    job = await job_of(session.driver, job_id)
    client = Client(session.driver)
    if dry_run:
        names = [f"{node_name(one)} {one.id}" async for one in failed_below(client, job)]
        session.out.document({"would_retry": names}, [f"{name} would run again" for name in names])
        return DONE
    count = await retry_family(client, job)
    session.out.document({"id": job.id, "retried": count}, [f"{job.id}: {count} jobs run again"])
    return DONE


@app.command()
@with_store
async def send(
    session: Session,
    job_id: jobs.JobId,
    event: Annotated[str, typer.Argument(metavar="EVENT", help="Name of the event.")],
    values: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME=VALUE]...", help="The value, as fields.")
    ] = None,
) -> int:
    """Send an event to a job that waits for it, or will."""
    job = await job_of(session.driver, job_id)
    value = dict(_field(text) for text in values) if values else None
    is_awaited = await send_event(Client(session.driver), job.id, event, value)
    answer = {"id": job.id, "event": event, "is_awaited": is_awaited}
    later = "" if is_awaited else ", which does not wait for it yet"
    session.out.document(answer, [f"{event} was sent to {job.id}{later}"])
    return DONE


def _field(text: str) -> tuple[str, Any]:
    name, separator, value = text.partition("=")
    if not separator:
        raise UsageError(f"{text!r} is no NAME=VALUE")
    try:
        return name, msgspec.json.decode(value)
    except msgspec.DecodeError:
        return name, value


# ------------------------------------------------------------------ looking


async def _roots(session: Session, limit: int) -> list[JobRecord]:
    """Workflows among the newest jobs: a store has no index of jobs with children."""
    query = Query(newest_first=True, limit=MAX_PAGE, payloads=False)
    found: list[JobRecord] = []
    examined = 0
    while len(found) < limit:
        page = await session.driver.find(query)
        found += filter(is_workflow, page.jobs)
        examined += max(page.examined, len(page.jobs))
        if page.next_cursor is None:
            break
        if examined >= MOST_LOOKED_AT:
            session.out.say(f"looked at the newest {examined:,} jobs; there may be older workflows")
            break
        query = msgspec.structs.replace(query, cursor=page.next_cursor)
    return found[:limit]


def _row(job: JobRecord) -> dict[str, Any]:
    family = family_of(job)
    return {
        "id": job.id,
        "type": job.type,
        "state": job.state.value,
        "done": f"{family.total - family.open}/{family.total}",
        "failed": family.failed,
    }


async def _graph(session: Session, job: JobRecord) -> FamilyGraph:
    return await family_graph(session.driver, job, now=None)


def _tree(job: JobRecord, graph: FamilyGraph) -> dict[str, Any]:
    below: dict[str, list[JobRecord]] = {}
    for node in graph.nodes:
        below.setdefault(bonds_of(node.job).parent or "", []).append(node.job)
    return _branch(job, below)


def _branch(job: JobRecord, below: Mapping[str, Sequence[JobRecord]]) -> dict[str, Any]:
    children = below.get(job.id, ())
    hidden = 0 if job.type == WAIT_TYPE else family_of(job).total - len(children)
    return {
        "id": job.id,
        "name": node_name(job),
        "state": job.state.value,
        "error": job.last_error,
        "children": [_branch(child, below) for child in children],
        "more": max(hidden, 0),
    }


def _tree_lines(tree: dict[str, Any], depth: int = 0) -> list[str]:
    error = f": {tree['error']}" if tree["error"] and tree["state"] != "completed" else ""
    lines = [f"{'  ' * depth}{tree['name']}  {tree['state']}{error}  {tree['id']}"]
    for child in tree["children"]:
        lines += _tree_lines(child, depth + 1)
    if tree["more"]:
        more = f"… and {tree['more']:,} more" if tree["children"] else f"{tree['more']:,} children"
        lines.append(f"{'  ' * (depth + 1)}{more}")
    return lines


def _graph_data(job: JobRecord, graph: FamilyGraph) -> dict[str, Any]:
    """The nodes of the workflow itself; `show` has what is below them."""
    own = [node for node in graph.nodes if bonds_of(node.job).parent == job.id]
    known = {node.job.id for node in own}
    return {
        "nodes": [
            {
                "id": node.job.id,
                "name": node_name(node.job),
                "state": node.job.state.value,
                "layer": node.layer,
            }
            for node in own
        ],
        "edges": [list(edge) for edge in graph.edges if known.issuperset(edge[:2])],
        "more": max(family_of(job).total - len(own), 0),
    }


def _edge_lines(found: dict[str, Any]) -> list[str]:
    names = {node["id"]: node["name"] for node in found["nodes"]}
    lines = []
    for node in found["nodes"]:
        after = [names[first] for first, then, _ in found["edges"] if then == node["id"]]
        lines.append(f"{node['name']}  {node['state']}{'  after ' + ', '.join(after) if after else ''}")
    if found["more"]:
        lines.append(f"… and {found['more']:,} more")
    return lines


def _dot(found: dict[str, Any]) -> list[str]:
    lines = ["digraph workflow {"]
    lines += [f'  "{node["id"]}" [label="{node["name"]}\\n{node["state"]}"];' for node in found["nodes"]]
    lines += [f'  "{first}" -> "{then}" [label="{when}"];' for first, then, when in found["edges"]]
    return [*lines, "}"]
