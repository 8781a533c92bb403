"""A server that is started for a run, with the settings of its scenario, and stopped after it."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import signal
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import urlsplit

from capplan.live.run import NOTE, measure
from capplan.live.target import Target
from capplan.results import RunResult
from capplan.scenario import Scenario
from capplan.scenario.fields import walk
from capplan.schema import DataError
from capplan.traffic.trace import Trace

READY_PATHS = ("/health", "/v1/models")
"""Answered with 200 once a server takes requests: vLLM, SGLang, TGI, llama.cpp; any other."""
READY_TIMEOUT_S = 900.0
"""A judgement of the project: a 70B model from disk and the capture of its graphs take minutes."""
STOP_TIMEOUT_S = 30.0
"""How long a server may take to end after SIGTERM, as Kubernetes grants it by default.

Source: Kubernetes documentation, "Pod Lifecycle", terminationGracePeriodSeconds."""
LAST_LINES = 5
"""Lines of a server's log that an error quotes."""
POLL_S = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningServer:
    """A server that is there: a backend that measures on it.

    Attributes
    ----------
    target
        The server.
    confirmed
        Whether it may be loaded though it is not private.
    started
        When the study began, UTC.
    """

    target: Target
    confirmed: bool = False
    started: datetime = field(default_factory=lambda: datetime.now(UTC))
    name: ClassVar = "live"
    notes: ClassVar = (NOTE,)

    def run(
        self, scenario: Scenario, *, trace: Trace, seed: int = 0, replication: int = 0
    ) -> RunResult:
        """Measure the trace; replications differ in their traces."""
        return measure(scenario, self.target, trace=trace, seed=seed, confirmed=self.confirmed)

    def identity(self) -> dict[str, Any]:
        """Return the server and the start of the study."""
        return {"target": self.target.identity(), "started": self.started.isoformat()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Launcher(RunningServer):
    """A backend that starts a server for each run, with the settings of its scenario.

    Attributes
    ----------
    command
        How the server is started. ``{name}`` is a field of the first pool's batching
        (``{max_num_seqs}``) or a dotted path of the scenario
        (``{pools.llm.batching.max_num_seqs}``), ``{port}`` the port of the target.
    ready_timeout_s
        How long it may take until it answers.
    """

    command: str
    ready_timeout_s: float = READY_TIMEOUT_S

    def run(
        self, scenario: Scenario, *, trace: Trace, seed: int = 0, replication: int = 0
    ) -> RunResult:
        """Start the server, measure the trace on it, and stop it.

        Raises :class:`capplan.schema.DataError` with the server's last log lines if it ends before
        it answers, or does not answer in time.
        """
        with self._running(scenario) as cold_start_s:
            return measure(
                scenario,
                self.target,
                trace=trace,
                seed=seed,
                confirmed=self.confirmed,
                cold_start_s=cold_start_s,
            )

    def identity(self) -> dict[str, Any]:
        """Return the command too."""
        return {**super(Launcher, self).identity(), "launch": self.command}

    def command_for(self, scenario: Scenario) -> list[str]:
        """Return the command with the values of a scenario; DataError names an unknown field."""
        values = {path: found for path, _, found in walk(scenario)}
        values |= {path: found for path, _, found in walk(scenario.pools[0].batching)}
        values["port"] = urlsplit(self.target.url).port

        def value(found: re.Match[str]) -> str:
            if found[1] not in values:
                rule = "a field of the scenario, of its first pool's batching, or port"
                raise DataError(rule, field="launch", value=found[0])
            return str(values[found[1]])

        return [re.sub(r"\{([\w.]+)\}", value, word) for word in shlex.split(self.command)]

    @contextmanager
    def _running(self, scenario: Scenario) -> Iterator[float]:
        """Run the server; give how long it took until it answered, s."""
        command = self.command_for(scenario)
        if self._answers():
            raise DataError("a port without a server", field="url", value=self.target.url)
        with tempfile.TemporaryDirectory() as folder:
            log = Path(folder) / "log"
            started_s = time.monotonic()
            try:
                with log.open("w") as out:
                    process = subprocess.Popen(
                        command, stdout=out, stderr=subprocess.STDOUT, start_new_session=True
                    )
            except OSError as err:
                rule = f"a command that starts ({err.strerror})"
                raise DataError(rule, field="launch", value=command[0]) from err
            try:
                self._wait(process, log)
                yield time.monotonic() - started_s
            finally:
                _stop(process)

    def _wait(self, process: subprocess.Popen[bytes], log: Path) -> None:
        """Wait until the server answers."""
        until_s = time.monotonic() + self.ready_timeout_s
        while not self._answers():
            if process.poll() is not None:
                rule = f"a server that starts (it ended with {process.returncode})"
                raise DataError(rule, field="launch", value=_last_lines(log))
            if time.monotonic() > until_s:
                rule = f"a server that answers within {self.ready_timeout_s:g} s"
                raise DataError(rule, field="launch", value=_last_lines(log))
            time.sleep(POLL_S)

    def _answers(self) -> bool:
        for path in READY_PATHS:
            request = urllib.request.Request(
                self.target.url.rstrip("/") + path, headers=self.target.all_headers()
            )
            with contextlib.suppress(OSError), urllib.request.urlopen(request, timeout=2):
                return True
        return False


def _stop(process: subprocess.Popen[bytes]) -> None:
    """End a server with all its processes, and wait until they have."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    try:
        process.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _last_lines(log: Path) -> str:
    return " | ".join(log.read_text(errors="replace").splitlines()[-LAST_LINES:])
