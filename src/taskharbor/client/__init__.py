"""How a job gets in."""

from taskharbor.client.client import Client
from taskharbor.client.handle import JobHandle
from taskharbor.client.task import AsyncTask, Task

__all__ = ["AsyncTask", "Client", "JobHandle", "Task"]
