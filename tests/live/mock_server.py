"""A server of known delays that speaks OpenAI's protocol; run as a process of its own.

``python mock_server.py PORT``. A request says in ``mock`` how it is answered: ``ttft_s``, ``itl_s``
(seconds), ``status`` and ``retry_after``, ``fail`` (``error_event`` | ``half`` | ``reset``) after
``fail_after`` tokens, ``per_chunk`` tokens in a chunk; ``stale`` connections are closed when they
are used again. The text of each token is the moment at which it was written, of the clock that all
processes of the machine share.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import time

state = {"running": 0, "served": 0, "last_prompt": None}


async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
        stale = False
        while True:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            length = next(
                (int(line.split(":")[1]) for line in head.split("\r\n")
                 if line.lower().startswith("content-length")), 0
            )  # fmt: skip
            body = json.loads(await reader.readexactly(length) or b"{}")
            path = head.split()[1]
            if head.startswith("GET") and path != "/state":
                whole(writer, {}, status=404)
                continue
            if stale:
                break
            stale = body.get("mock", {}).get("stale", False)
            if path == "/tokenize":
                words = body["prompt"].split()
                whole(writer, {"tokens": [100 + sum(map(ord, word)) for word in words]})
            elif path == "/state":
                whole(writer, state)
            else:
                await answer(head, body, reader, writer)
            await writer.drain()
    writer.close()


def whole(writer: asyncio.StreamWriter, data: object, *, status: int = 200, head: str = "") -> None:
    text = json.dumps(data).encode()
    writer.write(
        f"HTTP/1.1 {status} X\r\nContent-Type: application/json\r\n{head}"
        f"Content-Length: {len(text)}\r\n\r\n".encode()
        + text
    )


async def answer(
    head: str, body: dict, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    how = body.get("mock", {})
    if how.get("need_key") and "Bearer secret-4711" not in head:
        how = {"status": 401}
    if status := how.get("status"):
        head = f"Retry-After: {how['retry_after']}\r\n" if "retry_after" in how else ""
        whole(writer, {"error": {"message": "no", "code": status}}, status=status, head=head)
        return
    state["running"] += 1
    state["last_prompt"] = body.get("prompt")
    try:
        if body.get("stream"):
            await stream(body, how, reader, writer)
        else:
            await asyncio.sleep(how.get("ttft_s", 0) + how.get("itl_s", 0) * body["max_tokens"])
            whole(writer, {"choices": [{"text": " x", "finish_reason": "length"}],
                           "usage": usage(body)})  # fmt: skip
        state["served"] += 1
    finally:
        state["running"] -= 1


async def stream(
    body: dict, how: dict, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    writer.write(
        b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    )
    await writer.drain()
    loop = asyncio.get_running_loop()
    at_s = loop.time() + how.get("ttft_s", 0)
    step = how.get("per_chunk", 1)
    for n in range(0, body["max_tokens"], step):
        await asyncio.sleep(at_s - loop.time())
        if reader.at_eof():  # the caller has left
            return
        if "fail" in how and n >= how.get("fail_after", 0):
            fail(how["fail"], writer)
            return
        event(writer, {"choices": [{"text": f"{time.monotonic()} ", "finish_reason": None}]})
        await writer.drain()
        at_s += how.get("itl_s", 0)
    event(writer, {"choices": [{"text": "", "finish_reason": "length"}]})
    event(writer, {"choices": [], "usage": usage(body)})
    chunk(writer, b"data: [DONE]\n\n")
    writer.write(b"0\r\n\r\n")


def fail(how: str, writer: asyncio.StreamWriter) -> None:
    if how == "error_event":
        event(writer, {"error": {"message": "the engine is full", "code": 503}})
        writer.write(b"0\r\n\r\n")
    elif how == "half":
        writer.close()
    else:
        writer.transport.abort()


def usage(body: dict) -> dict:
    return {"prompt_tokens": len(body["prompt"]), "completion_tokens": body["max_tokens"]}


def event(writer: asyncio.StreamWriter, data: object) -> None:
    chunk(writer, b"data: " + json.dumps(data).encode() + b"\n\n")


def chunk(writer: asyncio.StreamWriter, data: bytes) -> None:
    writer.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")


async def main() -> None:
    server = await asyncio.start_server(handle, "127.0.0.1", int(sys.argv[1]))
    sys.stdout.write(f"{server.sockets[0].getsockname()[1]}\n")
    sys.stdout.flush()
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
