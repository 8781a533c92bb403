"""The server that is measured: where it is, what it speaks, what it calls its model."""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal
from urllib.parse import urlsplit

from capplan.schema import DataError

Api = Literal["completions", "chat"]
PATHS: Mapping[Api, str] = {"completions": "/v1/completions", "chat": "/v1/chat/completions"}
"""Source: OpenAI API reference, "Completions" and "Chat"; vLLM, SGLang, TGI, llama.cpp and
TensorRT-LLM serve the same paths."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A server that speaks OpenAI's protocol.

    Attributes
    ----------
    url
        Of the server, without the path of the API.
    api
        ``completions`` sends prompts as token ids, ``chat`` as text.
    model
        The name that requests carry; None asks the server.
    key_variable
        Environment variable that holds the API key; it is read when a run begins and is not kept.
    headers, extra
        Added to each request and to its JSON body.
    """

    url: str
    api: Api = "completions"
    model: str | None = None
    key_variable: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    extra: Mapping[str, Any] = field(default_factory=lambda: {"ignore_eos": True})

    def __post_init__(self) -> None:
        parts = urlsplit(self.url)
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise DataError("http://HOST[:PORT] or https://…", field="url", value=self.url)
        if self.api not in PATHS:
            rule = f"one of {', '.join(PATHS)}"
            raise DataError(rule, field="api", value=self.api)

    @property
    def is_private(self) -> bool:
        """Return whether the server is on loopback or in a private network.

        >>> [Target(url=f"http://{host}").is_private for host in ("127.0.0.1:8000", "8.8.8.8")]
        [True, False]
        """
        host = urlsplit(self.url).hostname or ""
        if host == "localhost":
            return True
        try:
            return ipaddress.ip_address(host).is_private
        except ValueError:
            return False

    def identity(self) -> dict[str, str | None]:
        """Return what names the server in a record: no key, no password."""
        parts = urlsplit(self.url)
        address = parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
        return {"url": address, "api": self.api, "model": self.model}

    @property
    def address(self) -> str:
        """Return the address that requests go to."""
        return self.url.rstrip("/") + PATHS[self.api]

    def all_headers(self) -> dict[str, str]:
        """Return the headers of a request, with the key; DataError if its variable is not set."""
        headers = dict(self.headers)
        if self.key_variable is not None:
            key = os.environ.get(self.key_variable)
            if not key:
                rule = "an environment variable that holds the API key"
                raise DataError(rule, field=self.key_variable, value="nothing")
            headers["Authorization"] = f"Bearer {key}"
        return headers
