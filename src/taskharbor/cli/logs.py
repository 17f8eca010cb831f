"""Logs of long-running commands, on stderr; how they look is decided in observe/logs.py."""

from __future__ import annotations

from taskharbor.observe.logs import LogFormat, LogLevel, StderrHandler, log_to_stderr, tell_attempts

__all__ = ["LogFormat", "LogLevel", "StderrHandler", "log_to_stderr", "tell_attempts"]
